// refused: loop.c:15: sum: the loop is not unrolled: write FARMEM_LOOP(i, rounds)
#include <farmem/iterator.h>

struct node {
    uint64_t count;
    uint64_t values[30];
};

struct scratch {
    uint64_t sum;
};

// The number of rounds is data: nothing bounds the iteration.
FARMEM_ITERATOR(sum, struct node, struct scratch) {
    for (uint64_t i = 0; i < win->count; i++)
        sp->sum += win->values[i];
    return FARMEM_RETURN;
}
