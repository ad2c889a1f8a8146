// refused: unsupported signed division
// refused: farmem: signed division: divide uint64_t or uint32_t, or shift
#include <farmem/iterator.h>

struct node {
    int64_t sum, count;
};

struct scratch {
    int64_t mean;
};

FARMEM_ITERATOR(mean, struct node, struct scratch) {
    sp->mean = win->sum / win->count;
    return FARMEM_RETURN;
}
