// refused: atomic_load.c:16:
// refused: error: an atomic operation (clang calls it AtomicLoad)
// refused: farmem: nothing else can touch node or scratch pad within an iteration: read and write them plainly, declare no member _Atomic
#include <farmem/iterator.h>

struct node {
    _Atomic uint64_t count;
    struct node *next;
};

struct scratch {
    uint64_t sum;
};

FARMEM_ITERATOR(sum, struct node, struct scratch) {
    sp->sum += win->count;
    return FARMEM_NEXT(win->next);
}
