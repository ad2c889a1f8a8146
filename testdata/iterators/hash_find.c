/*
 * Finds a key of 128 bits in a chained hash table: PULSE's unordered_map::find (PULSE 3, listing 3). It computes what
 * testdata/programs/hash_find.pulse does, over the same node and scratch pad (PROTOCOL 10.21).
 */
#include <farmem/iterator.h>

struct key {
    uint64_t low, high;
};

struct value {
    uint64_t words[5];
};

/* A bucket is a node itself; the key (0, 0) marks an empty one. */
struct node {
    struct key key;
    struct node *next;
    struct value value;
};

struct find {
    union {
        struct key wanted;
        uint64_t found; /* after RETURN: 1 or 0 */
    };
    struct value value;
};

FARMEM_ITERATOR(hash_find, struct node, struct find) {
    if (FARMEM_EQUAL(&win->key, &sp->wanted) && (win->key.low | win->key.high) != 0) {
        FARMEM_COPY(&sp->value, &win->value);
        sp->found = 1;
        return FARMEM_RETURN;
    }
    if (win->next == NULL) {
        sp->found = 0;
        return FARMEM_RETURN;
    }
    return FARMEM_NEXT(win->next);
}
