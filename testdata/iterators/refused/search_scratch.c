// refused: search_scratch.c:14: pick: searches something else than an array of the node: FARMEM_FIND_RANK and FARMEM_FIND_MATCH take an array that is a member of *win
#include <farmem/iterator.h>

struct node {
    struct node *children[4];
};

struct scratch {
    uint32_t keys[4];
};

FARMEM_ITERATOR(pick, struct node, struct scratch) {
    // Only the node is searched at one stroke.
    return FARMEM_NEXT(win->children[FARMEM_FIND_MATCH(sp->keys, cur_ptr) & 3]);
}
