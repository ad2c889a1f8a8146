// refused: farmem: the node of find is larger than the load window of 256 bytes
#include <farmem/iterator.h>

struct node {
    uint64_t keys[32];
    struct node *next;
};

struct scratch {
    uint64_t key;
};

FARMEM_ITERATOR(find, struct node, struct scratch) {
    return FARMEM_NEXT(win->next);
}
