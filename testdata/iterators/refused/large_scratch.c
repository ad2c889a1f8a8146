// refused: farmem: the scratch pad of find is larger than 4032 bytes
#include <farmem/iterator.h>

struct node {
    struct node *next;
};

struct scratch {
    uint64_t keys[505];
};

FARMEM_ITERATOR(find, struct node, struct scratch) {
    return FARMEM_NEXT(win->next);
}
