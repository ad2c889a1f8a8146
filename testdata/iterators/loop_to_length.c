/* Loops of a constant number of rounds that a `break` at a length leaves: the length is data, and bounded or not before the loop. */
#include <farmem/iterator.h>

struct node {
    struct node *next;
    uint64_t length;
    uint64_t values[14];
};

struct sums {
    uint64_t sum, masked, backwards, compared;
};

FARMEM_ITERATOR(loop_to_length, struct node, struct sums) {
    FARMEM_LOOP(i, 14) {
        if (i >= win->length)
            break;
        sp->sum += win->values[i];
    }
    const uint64_t masked = win->length & 7;
    FARMEM_LOOP(i, 7) {
        if (i == masked)
            break;
        sp->masked += win->values[i];
    }
    /* From the end, down to the length. */
    FARMEM_UNROLL
    for (size_t i = 14; i > 0; i--) {
        FARMEM_ROUND;
        if (i <= masked)
            break;
        sp->backwards ^= win->values[i - 1] * i;
    }
    const uint64_t end = win->length < 14 ? win->length : 14;
    FARMEM_LOOP(i, 14) {
        if (i >= end || win->values[i] > 1000)
            break;
        sp->compared++;
    }
    return FARMEM_NEXT(win->next);
}
