// refused: two_hops.c:15: find: follows a pointer within an iteration: only the node at cur_ptr is loaded; return FARMEM_NEXT(pointer) and read there
#include <farmem/iterator.h>

struct node {
    uint64_t key;
    struct node *next;
};

struct scratch {
    uint64_t key;
};

// PULSE has one load an iteration; the next node is the next iteration's.
FARMEM_ITERATOR(find, struct node, struct scratch) {
    return FARMEM_NEXT(win->next->next);
}
