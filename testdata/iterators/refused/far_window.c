// refused: far_window.c:15: find: reads byte 407 of the node: the load window has at most 256 bytes
#include <farmem/iterator.h>

struct node {
    uint64_t count;
    uint64_t keys[];
};

struct scratch {
    uint64_t key;
};

// The array behind the node counts nothing in its size.
FARMEM_ITERATOR(find, struct node, struct scratch) {
    return FARMEM_NEXT(win->keys[49]);
}
