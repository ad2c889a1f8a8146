// What is taken from the node on one path and from the scratch pad on another: clang makes one access of each two.
#include <farmem/iterator.h>

struct node {
    uint64_t key, weight;
    struct node *next[2];
    uint64_t values[4];
};

struct scratch {
    uint64_t by_node, key, sum, place;
    uint64_t values[4];
};

FARMEM_ITERATOR(pick_either, struct node, struct scratch) {
    uint64_t key = sp->by_node ? win->key : sp->key;
    sp->sum += key;
    sp->sum ^= (win->weight & 1) ? win->values[sp->place & 3] : sp->values[win->key & 3];
    const uint64_t *from = (win->weight & 2) ? win->values : sp->values;
    sp->place += from[0] + from[key & 3];
    return FARMEM_NEXT(win->next[sp->sum & 1]);
}
