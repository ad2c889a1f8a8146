/*
 * The searches of signed_search.c on this machine, beside plain loops. A case on standard input is three things of 8 bytes words: the
 * number of a type, the node (13 words, filled from the front), the bits of a key. For each case the 16 results go to standard output
 * twice: what plain loops find, and what the iterator leaves in its scratch pad.
 */
#include "../signed_search.c"
#include <stdio.h>
#include <string.h>

#define PLAIN(place, numbers_type, key_type)                                                                          \
    {                                                                                                                 \
        const numbers_type *numbers = (const numbers_type *)node;                                                     \
        key_type key = (key_type)bits;                                                                                \
        int match = NUMBERS;                                                                                          \
        for (int i = NUMBERS - 1; i >= 0; i--) {                                                                      \
            plain.ranks[place] += numbers[i] <= key;                                                                  \
            if (numbers[i] == key)                                                                                    \
                match = i;                                                                                            \
        }                                                                                                             \
        plain.matches[place] = (uint64_t)match;                                                                       \
    }

#define CASE(number, name, type)                                                                                      \
    case number:                                                                                                      \
        PLAIN(0, type, int8_t)                                                                                        \
        PLAIN(1, type, int16_t)                                                                                       \
        PLAIN(2, type, int32_t)                                                                                       \
        PLAIN(3, type, int64_t)                                                                                       \
        PLAIN(4, type, uint8_t)                                                                                       \
        PLAIN(5, type, uint16_t)                                                                                      \
        PLAIN(6, type, uint32_t)                                                                                      \
        PLAIN(7, type, uint64_t)                                                                                      \
        name((const struct node_of_##name *)node, &found, 0);                                                         \
        break;

int main(void) {
    uint64_t type, node[NUMBERS], bits;
    while (fread(&type, 8, 1, stdin) == 1) {
        if (fread(node, 8, NUMBERS, stdin) != NUMBERS || fread(&bits, 8, 1, stdin) != 1)
            return 2;
        struct search plain = {.key = bits}, found = {.key = bits};
        switch (type) {
            CASE(0, search_i8, int8_t)
            CASE(1, search_i16, int16_t)
            CASE(2, search_i32, int32_t)
            CASE(3, search_i64, int64_t)
            CASE(4, search_u8, uint8_t)
            CASE(5, search_u16, uint16_t)
            CASE(6, search_u32, uint32_t)
            CASE(7, search_u64, uint64_t)
        default:
            return 2;
        }
        fwrite(plain.ranks, sizeof plain.ranks + sizeof plain.matches, 1, stdout);
        fwrite(found.ranks, sizeof found.ranks + sizeof found.matches, 1, stdout);
    }
    return 0;
}
