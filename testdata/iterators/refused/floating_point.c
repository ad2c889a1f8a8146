// refused: floating_point.c:6:5: error: attempt to use a poisoned identifier
// refused: farmem: an iterator has no library and no floating point
#include <farmem/iterator.h>

struct node {
    double value;
};

struct scratch {
    uint64_t found;
};

FARMEM_ITERATOR(find, struct node, struct scratch) {
    return FARMEM_RETURN;
}
