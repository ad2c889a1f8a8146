// refused: pointer_array.c:
// refused: takes a pointer out of a local array, or puts one in, at an index that is data
// refused: choose by `if` or `switch`, or index what the pointers lead to
#include <farmem/iterator.h>

struct node {
    uint64_t kind;
    struct node *next;
    uint64_t values[4];
};

struct scratch {
    uint64_t sum;
    uint64_t values[4];
};

// One of the arrays is in the node, one in the scratch pad.
FARMEM_ITERATOR(sum, struct node, struct scratch) {
    const uint64_t *arrays[2] = {win->values, sp->values};
    sp->sum += arrays[win->kind & 1][win->kind & 3];
    return FARMEM_NEXT(win->next);
}
