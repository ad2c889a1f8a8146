// refused: floating_point.c:15:11: error: attempt to use a poisoned identifier
// refused: farmem: an iterator has no library and no floating point
#include <farmem/iterator.h>

// That a node has such a number is no harm: it is copied as any eight bytes.
struct node {
    double value;
};

struct scratch {
    uint64_t found;
};

FARMEM_ITERATOR(find, struct node, struct scratch) {
    const double least = 0.5;
    sp->found += win->value > least;
    return FARMEM_RETURN;
}
