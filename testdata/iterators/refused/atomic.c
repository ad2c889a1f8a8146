// refused: atomic.c:14: count: an atomic operation: nothing else can touch node or scratch pad within an iteration; read and write them plainly
#include <farmem/iterator.h>

struct node {
    struct node *next;
};

struct scratch {
    uint64_t count;
};

FARMEM_ITERATOR(count, struct node, struct scratch) {
    // The scratch pad belongs to one traversal: a plain += is enough.
    __sync_fetch_and_add(&sp->count, 1);
    return FARMEM_NEXT(win->next);
}
