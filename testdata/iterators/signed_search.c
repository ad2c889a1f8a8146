/*
 * RANK and MATCH of numbers of every type for keys of every type: what C itself says of `numbers[i] <= key` and `numbers[i] == key`.
 * One iterator for each type of the numbers. The scratch pad has a key's bits; the key is their low bytes as each of the eight types.
 */
#include <farmem/iterator.h>

#define NUMBERS 13

struct search {
    uint64_t key;
    uint64_t ranks[8];   /* for the key as int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t */
    uint64_t matches[8];
};

#define SEARCH(place, type)                                                                                           \
    sp->ranks[place] = FARMEM_FIND_RANK(win->numbers, (type)sp->key);                                                 \
    sp->matches[place] = FARMEM_FIND_MATCH(win->numbers, (type)sp->key);

#define ITERATOR(name, type)                                                                                          \
    struct node_of_##name {                                                                                           \
        type numbers[NUMBERS];                                                                                        \
    };                                                                                                                \
    FARMEM_ITERATOR(name, struct node_of_##name, struct search) {                                                     \
        SEARCH(0, int8_t)                                                                                             \
        SEARCH(1, int16_t)                                                                                            \
        SEARCH(2, int32_t)                                                                                            \
        SEARCH(3, int64_t)                                                                                            \
        SEARCH(4, uint8_t)                                                                                            \
        SEARCH(5, uint16_t)                                                                                           \
        SEARCH(6, uint32_t)                                                                                           \
        SEARCH(7, uint64_t)                                                                                           \
        return FARMEM_RETURN;                                                                                         \
    }

ITERATOR(search_i8, int8_t)
ITERATOR(search_i16, int16_t)
ITERATOR(search_i32, int32_t)
ITERATOR(search_i64, int64_t)
ITERATOR(search_u8, uint8_t)
ITERATOR(search_u16, uint16_t)
ITERATOR(search_u32, uint32_t)
ITERATOR(search_u64, uint64_t)
