// refused: window_store.c:15: visit: stores to the node: the window is read-only; declare the iterator with FARMEM_STORING_ITERATOR if it shall change far memory
#include <farmem/iterator.h>

struct node {
    uint64_t visits;
    struct node *next;
};

struct scratch {
    uint64_t unused;
};

// C lets a cast take the const away.
FARMEM_ITERATOR(visit, struct node, struct scratch) {
    ((struct node *)win)->visits++;
    return FARMEM_NEXT(win->next);
}
