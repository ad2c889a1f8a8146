// refused: stack.c:18: gather: local variables take
// refused: bytes of the stack, 128 are there: keep large arrays in the scratch pad, or fewer values at once
#include <farmem/iterator.h>

struct node {
    uint64_t values[24];
};

struct scratch {
    uint64_t index, value;
};

// 192 bytes: clang has 512.
FARMEM_ITERATOR(gather, struct node, struct scratch) {
    uint64_t copy[24];
    FARMEM_UNROLL
    for (int i = 0; i < 24; i++)
        copy[i] = win->values[i] * 3;
    sp->value = copy[sp->index % 24];
    return FARMEM_RETURN;
}
