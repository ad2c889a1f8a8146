/* Finds a key in a linked list. The scratch pad's `found` and `value` are 0 when the traversal starts. */
#include <farmem/iterator.h>

struct node {
    uint64_t key;
    struct node *next;
    uint64_t value;
};

struct find {
    uint64_t wanted;
    uint64_t found;
    uint64_t value;
};

FARMEM_ITERATOR(list_find, struct node, struct find) {
    if (win->key == sp->wanted) {
        sp->value = win->value;
        sp->found = 1;
        return FARMEM_RETURN;
    }
    return FARMEM_NEXT(win->next);
}
