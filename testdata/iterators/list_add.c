/* Adds to the value of every node of a list. It computes what testdata/programs/list_add.pulse does, over the same node and scratch pad. */
#include <farmem/iterator.h>

struct node {
    uint64_t value;
    struct node *next;
};

struct add {
    uint64_t add;
    uint64_t count; /* 0 when the traversal starts */
};

FARMEM_STORING_ITERATOR(list_add, struct node, struct add) {
    win->value += sp->add;
    sp->count++;
    return FARMEM_NEXT(win->next);
}
