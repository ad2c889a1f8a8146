// refused: mixed: the program has
// refused: slots, 512 are possible: unroll fewer rounds, or take the node in two iterations
#include <farmem/iterator.h>

struct node {
    uint64_t values[32];
};

struct scratch {
    uint64_t state[4];
};

FARMEM_ITERATOR(mixed, struct node, struct scratch) {
    FARMEM_UNROLL
    for (int i = 0; i < 32; i++) {
        sp->state[0] += win->values[i];
        sp->state[1] ^= sp->state[0] << 7;
        sp->state[2] += sp->state[1] >> 9;
        sp->state[3] ^= sp->state[2] * 31;
        sp->state[0] ^= sp->state[3];
    }
    return FARMEM_RETURN;
}
