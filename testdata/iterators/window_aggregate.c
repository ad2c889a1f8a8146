/*
 * Sum, minimum, maximum and count of the values in a time window, over a list of leaves in the order of their times (PULSE 6, the
 * time series database). The traversal starts at the leaf that holds the window's first time, or before it.
 */
#include <farmem/iterator.h>

#define POINTS 14

struct point {
    uint64_t time;
    uint64_t value;
};

struct leaf {
    uint64_t last; /* the largest time in it */
    struct leaf *next;
    struct point points[POINTS]; /* in the order of their times; unused ones have the time 2^64 - 1 */
};

struct aggregate {
    uint64_t from, until; /* the window: from <= time < until */
    uint64_t sum;         /* before: 0; modulo 2^64 */
    uint64_t min;         /* before: 2^64 - 1 */
    uint64_t max;         /* before: 0 */
    uint64_t count;       /* before: 0 */
};

FARMEM_ITERATOR(window_aggregate, struct leaf, struct aggregate) {
    FARMEM_UNROLL
    for (int i = 0; i < POINTS; i++) {
        uint64_t time = win->points[i].time, value = win->points[i].value;
        if (time >= sp->until)
            break;
        if (time < sp->from)
            continue;
        sp->sum += value;
        sp->count++;
        if (value < sp->min)
            sp->min = value;
        if (value > sp->max)
            sp->max = value;
    }
    return win->last < sp->until ? FARMEM_NEXT(win->next) : FARMEM_RETURN;
}
