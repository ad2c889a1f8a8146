// refused: string.c:15: letter: uses a table that clang laid out in .rodata.str1.1: a constant array, a string, what a local array begins with
// refused: write constants out, or carry them in the scratch pad
#include <farmem/iterator.h>

struct node {
    uint64_t kind;
    struct node *next;
};

struct scratch {
    uint64_t letter;
};

FARMEM_ITERATOR(letter, struct node, struct scratch) {
    sp->letter = (uint64_t)"abcdefghijklmnop"[win->kind & 15];
    return FARMEM_NEXT(win->next);
}
