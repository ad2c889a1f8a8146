/*
 * Finds a key in a B+tree of 256-byte nodes with 15 keys and 16 children. It computes what testdata/programs/btree_find.pulse does,
 * over the same node and scratch pad.
 */
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

FARMEM_ITERATOR(btree_find, struct node, struct find) {
    uint64_t wanted = sp->wanted, rank;
    if (wanted == UINT64_MAX) {
        sp->found = 0;
        return FARMEM_RETURN;
    }
    rank = FARMEM_RANK(win->keys, wanted);
    if (!win->leaf)
        return FARMEM_NEXT(win->children[rank]);
    if (rank == 0 || win->keys[rank - 1] != wanted) {
        sp->found = 0;
        return FARMEM_RETURN;
    }
    sp->value = win->values[rank - 1];
    sp->found = 1;
    return FARMEM_RETURN;
}
