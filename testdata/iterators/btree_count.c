/*
 * btree_find.c with the rank counted key by key instead of searched: more work than registers can hold, so that clang spills values
 * and the pointer to the scratch pad. What it computes is the same.
 */
#include <farmem/iterator.h>

#define KEYS 15

struct node {
    uint64_t leaf;
    uint64_t keys[KEYS];
    union {
        struct node *children[KEYS + 1];
        uint64_t values[KEYS + 1];
    };
};

struct find {
    uint64_t wanted;
    uint64_t found;
    uint64_t value;
};

FARMEM_ITERATOR(btree_count, struct node, struct find) {
    uint64_t wanted = sp->wanted, rank = 0;
    if (wanted == UINT64_MAX) {
        sp->found = 0;
        return FARMEM_RETURN;
    }
    FARMEM_UNROLL
    for (int i = 0; i < KEYS; i++)
        rank += win->keys[i] <= wanted;
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
