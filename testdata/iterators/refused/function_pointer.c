// refused: function_pointer.c:22: choose: calls a function through a pointer: an iterator calls nothing
#include <farmem/iterator.h>

struct node {
    uint64_t key;
    struct node *next;
};

struct scratch {
    uint64_t value;
};

static uint64_t twice(uint64_t key) {
    return key * 2;
}

static uint64_t next_to(uint64_t key) {
    return key + 1;
}

FARMEM_ITERATOR(choose, struct node, struct scratch) {
    uint64_t (*how)(uint64_t) = win->key & 1 ? twice : next_to;
    sp->value = how(win->key);
    return FARMEM_NEXT(win->next);
}
