// refused: table.c:17: weigh: uses the table or variable weights:
// refused: only the node, the scratch pad and local variables are in reach
#include <farmem/iterator.h>

struct node {
    uint64_t kind;
    struct node *next;
};

struct scratch {
    uint64_t sum;
};

static const uint64_t weights[8] = {3, 1, 4, 1, 5, 9, 2, 6};

FARMEM_ITERATOR(weigh, struct node, struct scratch) {
    sp->sum += weights[win->kind % 8];
    return FARMEM_NEXT(win->next);
}
