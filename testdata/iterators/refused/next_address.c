// refused: next_address.c:15: find: takes the address of the node as a value: these are copies without an address in far memory; the node's is cur_ptr
#include <farmem/iterator.h>

struct node {
    uint64_t key;
    struct node *next;
};

struct scratch {
    uint64_t key;
};

// Goes on at the copy of the field instead of where the field leads.
FARMEM_ITERATOR(find, struct node, struct scratch) {
    return FARMEM_NEXT(&win->next);
}
