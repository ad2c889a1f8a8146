// refused: standard_header.cpp:4:10: fatal error: 'map' file not found
// refused: those of C++ are not: declare the node's layout yourself
#include <farmem/iterator.h>
#include <map>

struct scratch {
    uint64_t key;
};

FARMEM_ITERATOR(find, std::_Rb_tree_node_base, scratch) {
    return FARMEM_NEXT(win->_M_left);
}
