// std::map<uint64_t, uint64_t>::lower_bound over libstdc++'s red-black tree, as it lies in memory (PULSE, table 1).
//
// The traversal starts at the root, _M_header._M_parent. As in libstdc++ the search remembers the last node whose key is not less.
#include <farmem/iterator.h>

// _Rb_tree_node<std::pair<const Key, Value>>: _Rb_tree_node_base, then the pair.
template <class Key, class Value>
struct rb_node {
    uint32_t color;
    rb_node *parent;
    rb_node *left;
    rb_node *right;
    Key key;
    Value value;
};

template <class Key, class Value>
struct lower_bound {
    Key wanted;
    uint64_t node;  // before: 0; after: the entry's address, 0 when every key is less
    Key key;        // before: 0; after: the entry's
    Value value;    // before: 0; after: the entry's
};

template <class Key, class Value>
FARMEM_INLINE uint64_t step(const rb_node<Key, Value> *win, lower_bound<Key, Value> *sp, uint64_t cur_ptr) {
    if (win->key < sp->wanted)
        return FARMEM_NEXT(win->right);
    sp->node = cur_ptr;
    sp->key = win->key;
    sp->value = win->value;
    return FARMEM_NEXT(win->left);
}

using node = rb_node<uint64_t, uint64_t>;
using scratch = lower_bound<uint64_t, uint64_t>;

static_assert(offsetof(node, left) == 16 && offsetof(node, key) == 32, "libstdc++'s layout");

FARMEM_ITERATOR(map_lower_bound, node, scratch) {
    return step(win, sp, cur_ptr);
}
