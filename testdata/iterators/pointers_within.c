/* Pointers into the node: one that may be NULL, an array of them, and places that clang adds up by `or`. */
#include <farmem/iterator.h>

struct entry {
    uint64_t key, value;
};

struct node {
    struct node *next;
    uint64_t kind;
    struct entry entries[4];
    uint32_t small[4], large[4], other[4];
} __attribute__((aligned(64)));

struct wanted {
    uint64_t key, value, of_kind, local;
};

FARMEM_ITERATOR(pointers_within, struct node, struct wanted) {
    const struct entry *found = NULL;
    FARMEM_LOOP(i, 4) {
        if (win->entries[i].key == sp->key)
            found = &win->entries[i];
    }
    if (found != NULL)
        sp->value += found->value;
    const uint32_t *const arrays[3] = {win->other, win->small, win->large};
    sp->of_kind += arrays[win->kind % 3][win->kind & 3];
    uint64_t words[4] __attribute__((aligned(32)));
    FARMEM_LOOP(i, 4)
        words[i] = win->entries[i].key * (i + 1);
    sp->local ^= words[win->kind & 3];
    return FARMEM_NEXT(win->next);
}
