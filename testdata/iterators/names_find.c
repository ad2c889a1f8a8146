// A hash table's chain with names as keys. How many bytes are compared is data: what bounds the loop is the longest name.
#include <farmem/iterator.h>

#define NAME_MAX 35

struct node {
    struct node *next;
    uint32_t hash;
    uint8_t len;
    char name[NAME_MAX];
    uint64_t value;
};

struct scratch {
    uint64_t value;
    uint32_t hash;
    uint8_t len;
    char name[NAME_MAX];
    uint8_t found;
};

FARMEM_ITERATOR(names_find, struct node, struct scratch) {
    if (win->hash != sp->hash || win->len != sp->len)
        return FARMEM_NEXT(win->next);
    int same = 1;
    FARMEM_UNROLL
    for (int i = 0; i < NAME_MAX; i++) {
        if (i >= win->len)
            break;
        if (win->name[i] != sp->name[i]) {
            same = 0;
            break;
        }
    }
    if (!same)
        return FARMEM_NEXT(win->next);
    sp->found = 1;
    sp->value = win->value;
    return FARMEM_RETURN;
}
