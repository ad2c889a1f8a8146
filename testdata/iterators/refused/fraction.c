// refused: fraction.c:15:17: error: A call to built-in function
// refused: farmem: clang would call its library here, and there is none: no floating point
#include <farmem/iterator.h>

struct node {
    uint64_t key;
    struct node *next;
};

struct scratch {
    uint64_t value;
};

FARMEM_ITERATOR(half, struct node, struct scratch) {
    sp->value = win->key * 1.5;
    return FARMEM_NEXT(win->next);
}
