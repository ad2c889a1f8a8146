/* Finds a key in a B+tree as btree_find.c does, over the same node and scratch pad, with RANK; in a leaf with MATCH. */
#include <farmem/iterator.h>

#define KEYS 15

struct node {
    uint64_t leaf;        /* 0 in an inner node, 1 in a leaf */
    uint64_t keys[KEYS];  /* ascending; unused ones are 2^64 - 1, which is no key */
    union {
        struct node *children[KEYS + 1]; /* child i has the keys from key i - 1 on and below key i */
        uint64_t values[KEYS + 1];       /* value i belongs to key i */
    };
};

struct find {
    uint64_t wanted;
    uint64_t found;
    uint64_t value;
};

FARMEM_ITERATOR(btree_rank, struct node, struct find) {
    uint64_t wanted = sp->wanted, at;
    sp->found = 0;
    if (wanted == UINT64_MAX)
        return FARMEM_RETURN;
    if (!win->leaf)
        return FARMEM_NEXT(win->children[FARMEM_FIND_RANK(win->keys, wanted)]);
    at = FARMEM_FIND_MATCH(win->keys, wanted);
    if (at == KEYS)
        return FARMEM_RETURN;
    sp->value = win->values[at];
    sp->found = 1;
    return FARMEM_RETURN;
}
