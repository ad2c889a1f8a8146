// refused: address.c:17: find: takes the address of the node as a value: these are copies without an address in far memory; the node's is cur_ptr
#include <farmem/iterator.h>

struct node {
    uint64_t key;
    struct node *next;
};

struct scratch {
    uint64_t key;
    const struct node *found;
};

// It should be cur_ptr.
FARMEM_ITERATOR(find, struct node, struct scratch) {
    if (win->key == sp->key) {
        sp->found = win;
        return FARMEM_RETURN;
    }
    return FARMEM_NEXT(win->next);
}
