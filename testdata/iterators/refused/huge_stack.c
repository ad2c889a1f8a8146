// refused: stack limit
// refused: farmem: local variables take more than the stack: 128 bytes are there; keep large arrays in the scratch pad
#include <farmem/iterator.h>

struct node {
    uint64_t values[8];
};

struct scratch {
    uint64_t index, value;
};

FARMEM_ITERATOR(gather, struct node, struct scratch) {
    uint64_t copy[80];
    FARMEM_UNROLL
    for (int i = 0; i < 80; i++)
        copy[i] = win->values[i % 8] * (uint64_t)i;
    sp->value = copy[sp->index % 80];
    return FARMEM_RETURN;
}
