// refused: signed_rank.c:15:
// refused: FARMEM_RANK of signed words needs a key of a signed type
// refused: cast the key to int64_t
#include <farmem/iterator.h>

struct node {
    int64_t keys[3];
    struct node *children[4];
};

struct scratch {
    uint64_t wanted;
};

FARMEM_ITERATOR(pick, struct node, struct scratch) { return FARMEM_NEXT(win->children[FARMEM_RANK(win->keys, sp->wanted) & 3]); }
