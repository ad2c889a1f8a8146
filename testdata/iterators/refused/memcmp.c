// refused: memcmp.c:16:9: error: attempt to use a poisoned identifier
// refused: use FARMEM_EQUAL for memcmp
#include <farmem/iterator.h>

struct node {
    uint64_t key[8];
    struct node *next;
};

struct scratch {
    uint64_t key[8];
};

// clang 14 would call a function that does not exist, 16 and 19 would compare byte by byte.
FARMEM_ITERATOR(find, struct node, struct scratch) {
    if (memcmp(win->key, sp->key, 64) == 0)
        return FARMEM_RETURN;
    return FARMEM_NEXT(win->next);
}
