/* Bits are counted and bytes turned around by the compiler's built-in functions. */
#include <farmem/iterator.h>

struct node {
    struct node *next;
    uint64_t word;
};

struct counts {
    uint64_t zeros, zeros_low, first, first_low, ones, leading, turned, turned_low, turned_lowest;
};

FARMEM_ITERATOR(bits_and_bytes, struct node, struct counts) {
    const uint64_t word = win->word;
    sp->zeros = (uint64_t)__builtin_ctzll(word);
    sp->zeros_low = (uint64_t)__builtin_ctz((uint32_t)word | 1U << 31);
    sp->first = (uint64_t)__builtin_ffsll((int64_t)word);
    sp->first_low = (uint64_t)__builtin_ffs((int)(uint32_t)word);
    sp->ones = (uint64_t)__builtin_popcountll(word);
    sp->leading = (uint64_t)__builtin_clzll(word);
    sp->turned = __builtin_bswap64(word);
    sp->turned_low = __builtin_bswap32((uint32_t)word);
    sp->turned_lowest = __builtin_bswap16((uint16_t)word);
    return FARMEM_NEXT(win->next);
}
