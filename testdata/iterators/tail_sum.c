// Nodes with as many values as their maker gave them, four at least: the array at the end has no length, and the node's size does not count
// it.
#include <farmem/iterator.h>

struct node {
    struct node *next;
    uint64_t values[];
};

struct scratch {
    uint64_t sum;
};

FARMEM_ITERATOR(tail_sum, struct node, struct scratch) {
    FARMEM_UNROLL
    for (int i = 0; i < 4; i++)
        sp->sum += win->values[i];
    return FARMEM_NEXT(win->next);
}
