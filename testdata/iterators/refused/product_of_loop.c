// refused: product_of_loop.c:1
// refused: error: A call to built-in function '__multi3' is not supported
// refused: farmem: clang would call its library here, and there is none: no floating point; no product of 128 bits
#include <farmem/iterator.h>

struct node {
    uint64_t count;
    struct node *next;
};

struct scratch {
    uint64_t sum;
};

// clang knows the sum of the numbers up to count, and would compute it at one stroke.
FARMEM_ITERATOR(sum, struct node, struct scratch) {
    uint64_t i;
    for (i = 0; i < win->count; i++)
        sp->sum += i;
    return FARMEM_NEXT(win->next);
}
