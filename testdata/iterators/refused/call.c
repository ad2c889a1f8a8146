// refused: call.c:20: find: calls mix: an iterator calls nothing; make it `static inline` (FARMEM_INLINE)
#include <farmem/iterator.h>

struct node {
    uint64_t key;
    struct node *next;
};

struct scratch {
    uint64_t key;
};

__attribute__((noinline)) uint64_t mix(uint64_t key);

__attribute__((noinline)) uint64_t mix(uint64_t key) {
    return (key ^ key >> 31) * 0x9e3779b97f4a7c15;
}

FARMEM_ITERATOR(find, struct node, struct scratch) {
    if (mix(win->key) == sp->key)
        return FARMEM_RETURN;
    return FARMEM_NEXT(win->next);
}
