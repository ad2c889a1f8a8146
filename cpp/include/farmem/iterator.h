/*
 * farmem/iterator.h: the header for authors of traversals, in C and C++ (PULSE 3). docs/iterators.md shows how to use it.
 *
 * An iterator is a function over one node. The memory node that holds the data runs it, once for each node on the path:
 *
 *     struct node { uint64_t key, value; struct node *next; };
 *     struct find { uint64_t key, value, found; };
 *
 *     FARMEM_ITERATOR(list_find, struct node, struct find) {
 *         if (win->key == sp->key) {
 *             sp->value = win->value;
 *             sp->found = 1;
 *             return FARMEM_RETURN;
 *         }
 *         return FARMEM_NEXT(win->next);
 *     }
 *
 * The body uses three names:
 *   win      the node, read-only: a copy of the bytes at cur_ptr, loaded before the body runs and discarded afterwards.
 *            In an iterator declared with FARMEM_STORING_ITERATOR the body may also write to it: when the body returns, its
 *            contents replace the node, atomically.
 *   sp       the scratch pad: the only state that outlives a node. The caller of the traversal fills it, and gets it back.
 *   cur_ptr  the node's address in far memory. (win is no such address, and must not be stored or returned.)
 *
 * The rules, each checked by this header, by clang or by `farmem compile`, which names the line:
 *   - Only *win, *sp and local variables are accessible: the next iteration reads the target of a pointer in the node.
 *   - Loops have a constant number of rounds: FARMEM_LOOP(i, 14) { ... }. `break` and `return` end them early.
 *   - Calls only to `static inline` functions; no library, no tables (`static const`), no floating point, no signed division.
 *   - Locals without a register take at most 128 bytes, the node at most 256, the scratch pad at most 4032
 *     (with a path MTU below 4096: 64 bytes less than the MTU).
 *   - Division is unsigned: x / 0 is 0 and x % 0 is x, in the node's memory as in BPF.
 *
 * All data is little-endian. The same file compiles for the host too, where an iterator is an ordinary function.
 */
#ifndef FARMEM_ITERATOR_H
#define FARMEM_ITERATOR_H

#include <stddef.h>
#include <stdint.h>

/* Most bytes that one iteration loads (PROTOCOL 10.3). */
#define FARMEM_WINDOW_MAX 256
/* Bytes of the largest scratch pad (PROTOCOL 10.3). */
#define FARMEM_SCRATCH_MAX 4032

#ifdef __cplusplus
#define FARMEM_EXTERN_C extern "C"
#define FARMEM_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define FARMEM_EXTERN_C extern
#define FARMEM_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "farmem: far memory is little-endian; compile with -target bpfel"
#endif

/*
 * Begins the definition of an iterator; its body in braces follows. `node` and `scratch` are types without a comma (name a template's
 * instance first).
 */
#define FARMEM_ITERATOR(name, node, scratch)                                                                          \
    FARMEM_POISON                                                                                                     \
    FARMEM_STATIC_ASSERT(sizeof(node) <= FARMEM_WINDOW_MAX,                                                           \
                         "farmem: the node of " #name " is larger than the load window of 256 bytes");                \
    FARMEM_STATIC_ASSERT(sizeof(scratch) <= FARMEM_SCRATCH_MAX,                                                       \
                         "farmem: the scratch pad of " #name " is larger than 4032 bytes");                           \
    FARMEM_ITERATOR_NOTE(name, node, scratch)                                                                         \
    FARMEM_EXTERN_C FARMEM_ITERATOR_SECTION(name)                                                                     \
    uint64_t name(const node *win __attribute__((unused)), scratch *sp __attribute__((unused)),                       \
                  uint64_t cur_ptr __attribute__((unused)))

/*
 * As FARMEM_ITERATOR, for an iterator that changes its nodes: the body may write to *win. The domain of the traversal needs write
 * permission for every node. Each node is changed once, however often the request is retransmitted.
 */
#define FARMEM_STORING_ITERATOR(name, node, scratch)                                                                  \
    FARMEM_POISON                                                                                                     \
    FARMEM_STATIC_ASSERT(sizeof(node) <= FARMEM_WINDOW_MAX,                                                           \
                         "farmem: the node of " #name " is larger than the load window of 256 bytes");                \
    FARMEM_STATIC_ASSERT(sizeof(scratch) <= FARMEM_SCRATCH_MAX,                                                       \
                         "farmem: the scratch pad of " #name " is larger than 4032 bytes");                           \
    FARMEM_STORING_NOTE(name, node, scratch)                                                                          \
    FARMEM_EXTERN_C FARMEM_ITERATOR_SECTION(name)                                                                     \
    uint64_t name(node *win __attribute__((unused)), scratch *sp __attribute__((unused)),                             \
                  uint64_t cur_ptr __attribute__((unused)))

/* NEXT_ITER: the traversal continues at this far address, a pointer or a number. NULL ends it, as FARMEM_RETURN does. */
#define FARMEM_NEXT(pointer) ((uint64_t)(pointer))
/* RETURN: the traversal ends, and the scratch pad is its result. */
#define FARMEM_RETURN ((uint64_t)0)

/*
 * A loop with a constant number of rounds, in which `i` counts from 0; `break`, `continue` and `return` work as in any
 * loop:
 *
 *     FARMEM_LOOP(i, 14) {
 *         if (i >= win->count)
 *             break;
 *         sp->sum += win->values[i];
 *     }
 */
#if defined(__bpf__)
#define FARMEM_LOOP(i, rounds)                                                                                        \
    FARMEM_UNROLL                                                                                                     \
    for (size_t i = 0; i < (size_t)(rounds) && farmem_round(); i++)
#else
#define FARMEM_LOOP(i, rounds) for (size_t i = 0; i < (size_t)(rounds); i++)
#endif

/*
 * For loops of another form: write FARMEM_UNROLL before the loop, whose number of rounds must be a constant, and FARMEM_ROUND as the
 * first statement of its body. Otherwise clang merges the loop's end and a `break` at a variable length into one condition before it
 * unrolls the loop, and no longer knows the number of rounds.
 */
#define FARMEM_ROUND ((void)farmem_round())
#if defined(__clang__)
#define FARMEM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FARMEM_UNROLL _Pragma("GCC unroll 256")
#endif

/* True if two objects have the same bytes; their sizes are equal and a multiple of 8. Replaces memcmp. */
#define FARMEM_EQUAL(a, b)                                                                                            \
    __extension__({                                                                                                   \
        FARMEM_STATIC_ASSERT(sizeof(*(a)) == sizeof(*(b)), "farmem: FARMEM_EQUAL needs two objects of one size");     \
        FARMEM_STATIC_ASSERT(sizeof(*(a)) % 8 == 0, "farmem: FARMEM_EQUAL compares words of 8 bytes");                \
        farmem_equal_words((const farmem_word *)(a), (const farmem_word *)(b), sizeof(*(a)) / 8);                     \
    })

/* Copies an object over another one; their sizes are equal and a multiple of 8. Replaces memcpy. */
#define FARMEM_COPY(to, from)                                                                                         \
    __extension__({                                                                                                   \
        FARMEM_STATIC_ASSERT(sizeof(*(to)) == sizeof(*(from)), "farmem: FARMEM_COPY needs two objects of one size");  \
        FARMEM_STATIC_ASSERT(sizeof(*(to)) % 8 == 0, "farmem: FARMEM_COPY copies words of 8 bytes");                  \
        farmem_copy_words((farmem_word *)(to), (const farmem_word *)(from), sizeof(*(to)) / 8);                       \
    })

/*
 * The number of an array's words that are at most `key`: the child to take in a node. The array has 1, 3, 7, 15 or 31 words of 8 bytes in
 * ascending order, padded with the largest number. A binary search: one comparison per halving. Signed words need a signed key.
 */
#define FARMEM_RANK(keys, key)                                                                                        \
    __extension__({                                                                                                   \
        FARMEM_STATIC_ASSERT(((sizeof(keys) / 8) & (sizeof(keys) / 8 + 1)) == 0 && sizeof((keys)[0]) == 8,            \
                             "farmem: FARMEM_RANK needs an array of 1, 3, 7, 15 or 31 uint64_t or int64_t");          \
        __typeof__((key) + 0) farmem_key = (key);                                                                     \
        FARMEM_STATIC_ASSERT(!FARMEM_IS_SIGNED((keys)[0]) || !FARMEM_CONVERTS_TO_UNSIGNED((keys)[0], farmem_key),     \
                             "farmem: FARMEM_RANK of signed words needs a key of a signed type: ascending words are " \
                             "not in order once C converts them for a key of uint64_t; cast the key to int64_t");     \
        farmem_rank_words((const farmem_word *)(keys), sizeof(keys) / 8, (uint64_t)farmem_key,                        \
                          FARMEM_IS_SIGNED((keys)[0]));                                                               \
    })

/*
 * RANK and MATCH, an instruction (PROTOCOL 10.22): compares an array of the node, of 1 to 64 numbers of 1, 2, 4 or 8 bytes, at once.
 * FARMEM_FIND_RANK: the number of i for which `array[i] <= key`, in any order. FARMEM_FIND_MATCH: the first i for which
 * `array[i] == key`, from 0; the number of elements if there is none. Both use C's own comparison of the two types. The instructions
 * compare unsigned numbers only: RANK of signed ones for a signed key takes two of them. `array` is a member of *win.
 */
#define FARMEM_FIND_RANK(array, key)                                                                                  \
    __extension__({                                                                                                   \
        FARMEM_SEARCHED(array);                                                                                       \
        FARMEM_SEARCH_KEY(array, key);                                                                                \
        FARMEM_CONVERTS_TO_UNSIGNED((array)[0], farmem_key)                                                           \
            ? FARMEM_SEARCH(RANK, rank, array,                                                                        \
                            FARMEM_IS_SIGNED((array)[0])                                                              \
                                ? farmem_rank_wrapped(farmem_bits, sizeof((array)[0]), farmem_bytes)                  \
                                : farmem_bits)                                                                        \
        : FARMEM_IS_SIGNED((array)[0])                                                                                \
            ? FARMEM_SEARCH(RANK, rank, array, farmem_rank_signed(farmem_bits, sizeof((array)[0]))) -                 \
                  FARMEM_SEARCH(RANK, rank, array, farmem_not_negative(sizeof((array)[0]))) +                         \
                  ((int64_t)farmem_bits < 0 ? 0 : sizeof(array) / sizeof((array)[0]))                                 \
        : (int64_t)farmem_bits < 0 ? 0                                                                                \
                                   : FARMEM_SEARCH(RANK, rank, array, farmem_bits);                                   \
    })

#define FARMEM_FIND_MATCH(array, key)                                                                                 \
    __extension__({                                                                                                   \
        FARMEM_SEARCHED(array);                                                                                       \
        FARMEM_SEARCH_KEY(array, key);                                                                                \
        FARMEM_SEARCH(MATCH, match, array,                                                                            \
                      FARMEM_IS_SIGNED((array)[0])                                                                    \
                          ? farmem_match_signed(farmem_bits, sizeof((array)[0]), farmem_bytes)                        \
                          : farmem_bits);                                                                             \
    })

#define FARMEM_SEARCHED(array)                                                                                        \
    FARMEM_STATIC_ASSERT(sizeof((array)[0]) == 1 || sizeof((array)[0]) == 2 || sizeof((array)[0]) == 4 ||             \
                             sizeof((array)[0]) == 8,                                                                 \
                         "farmem: the elements of an array that is searched have 1, 2, 4 or 8 bytes");                \
    FARMEM_STATIC_ASSERT(sizeof(array) / sizeof((array)[0]) >= 1 && sizeof(array) / sizeof((array)[0]) <= 64,         \
                         "farmem: an array that is searched has 1 to 64 elements")

/*
 * Evaluates the key once: in its own type, and converted to the common type of key and elements, with the common type's size; a negative
 * number of 4 bytes is extended to 8.
 */
#define FARMEM_SEARCH_KEY(array, key)                                                                                 \
    __typeof__((key) + 0) farmem_key = (key);                                                                         \
    FARMEM_STATIC_ASSERT(sizeof(farmem_key) <= 8, "farmem: the key of a search has at most 8 bytes");                 \
    FARMEM_STATIC_ASSERT((__typeof__(farmem_key))1 / 2 == 0, "farmem: the key of a search is a whole number");        \
    const size_t farmem_bytes = FARMEM_CONVERTED_BYTES((array)[0], farmem_key);                                       \
    const uint64_t farmem_bits =                                                                                      \
        (uint64_t)farmem_key &                                                                                        \
        (FARMEM_CONVERTS_TO_UNSIGNED((array)[0], farmem_key) ? farmem_ones(farmem_bytes) : UINT64_MAX);               \
    (void)farmem_bytes

#define FARMEM_SEARCH(call, host, array, key)                                                                         \
    FARMEM_FIND_IN(FARMEM_CALL_##call, farmem_host_##host, (array), sizeof((array)[0]),                               \
                   sizeof(array) / sizeof((array)[0]), (key))

/* True if an integer has a signed type. */
#define FARMEM_IS_SIGNED(x) ((__typeof__(x))-1 < (__typeof__(x))1)
/* C's usual arithmetic conversions: the size of the type in which two integers are compared, and whether it is unsigned. */
#define FARMEM_PROMOTED_BYTES(x) (sizeof(x) < 4 ? 4 : sizeof(x))
#define FARMEM_CONVERTED_BYTES(a, b)                                                                                  \
    (FARMEM_PROMOTED_BYTES(a) > FARMEM_PROMOTED_BYTES(b) ? FARMEM_PROMOTED_BYTES(a) : FARMEM_PROMOTED_BYTES(b))
#define FARMEM_CONVERTS_TO_UNSIGNED(a, b)                                                                             \
    ((sizeof(a) == FARMEM_CONVERTED_BYTES(a, b) && !FARMEM_IS_SIGNED(a)) ||                                           \
     (sizeof(b) == FARMEM_CONVERTED_BYTES(a, b) && !FARMEM_IS_SIGNED(b)))

/* A word of any object. */
typedef uint64_t __attribute__((may_alias)) farmem_word;

#define FARMEM_INLINE static inline __attribute__((always_inline, unused))

/* Marks one round of a loop: an empty statement that clang may not remove or move. */
FARMEM_INLINE int farmem_round(void) {
    __asm__ volatile("");
    return 1;
}

FARMEM_INLINE int farmem_equal_words(const farmem_word *a, const farmem_word *b, size_t words) {
    uint64_t difference = 0;
    FARMEM_UNROLL
    for (size_t i = 0; i < words; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

FARMEM_INLINE void farmem_copy_words(farmem_word *to, const farmem_word *from, size_t words) {
    FARMEM_UNROLL
    for (size_t i = 0; i < words; i++)
        to[i] = from[i];
}

FARMEM_INLINE uint64_t farmem_rank_words(const farmem_word *keys, size_t count, uint64_t key, int is_signed) {
    /* With inverted sign bits, signed words compare as unsigned ones. */
    const uint64_t flip = is_signed ? (uint64_t)1 << 63 : 0;
    /* In bytes, as in an access: no shift per comparison. */
    uint64_t at = 0;
    FARMEM_UNROLL
    for (size_t half = (count + 1) / 2; half > 0; half /= 2)
        if ((*(const farmem_word *)((const char *)keys + at + (half - 1) * 8) ^ flip) <= (key ^ flip))
            at += half * 8;
    return at / 8;
}

/* Returns `bytes` bytes of ones. */
FARMEM_INLINE uint64_t farmem_ones(size_t bytes) {
    return UINT64_MAX >> (64 - 8 * bytes);
}

/* Returns the largest signed number of `bytes` bytes. The unsigned RANK of it counts the numbers that are not negative. */
FARMEM_INLINE uint64_t farmem_not_negative(size_t bytes) {
    return farmem_ones(bytes) >> 1;
}

/*
 * Returns the key of an unsigned RANK in place of a signed one. A negative key keeps its bits, so that numbers that are not negative are
 * counted too; another key is unchanged; a key beyond all numbers is clamped.
 */
FARMEM_INLINE uint64_t farmem_rank_signed(uint64_t key, size_t bytes) {
    const uint64_t most = farmem_not_negative(bytes);
    if ((int64_t)key < 0)
        return key < ~most ? most : key & farmem_ones(bytes);
    return key > most ? most : key;
}

/* As farmem_rank_signed, if C converts both to unsigned with `converted` bytes: negative numbers are then the largest. */
FARMEM_INLINE uint64_t farmem_rank_wrapped(uint64_t key, size_t bytes, size_t converted) {
    const uint64_t most = farmem_not_negative(bytes);
    if (key >= (farmem_ones(converted) & ~most))
        return key & farmem_ones(bytes);
    return key > most ? most : key;
}

/* Returns the key of an unsigned MATCH in place of a signed one: the same bits, or a value that equals no number. */
FARMEM_INLINE uint64_t farmem_match_signed(uint64_t key, size_t bytes, size_t converted) {
    const uint64_t number = converted == 4 ? (uint64_t)(int64_t)(int32_t)key : key;
    const uint64_t most = farmem_not_negative(bytes);
    return number + most + 1 <= farmem_ones(bytes) ? number & farmem_ones(bytes) : UINT64_MAX;
}

#if defined(__bpf__)

/* The object's record of an iterator in addition to its code: the sizes that it may index into. Little-endian, in `.farmem/NAME`. */
struct farmem_iterator_note {
    uint32_t version; /* 1 */
    uint32_t window;  /* bytes of the node */
    uint32_t scratch; /* bytes of the scratch pad */
};

#define FARMEM_ITERATOR_NOTE(name, node, scratch)                                                                     \
    static const struct farmem_iterator_note farmem_note_of_##name                                                    \
        __attribute__((section(".farmem/" #name), used)) = {1, sizeof(node), sizeof(scratch)};
/* The record with flags; 1: the iterator stores to its node. */
struct farmem_storing_note {
    uint32_t version; /* 2 */
    uint32_t window;  /* bytes of the node */
    uint32_t scratch; /* bytes of the scratch pad */
    uint32_t flags;
};

#define FARMEM_STORING_NOTE(name, node, scratch)                                                                      \
    static const struct farmem_storing_note farmem_note_of_##name                                                     \
        __attribute__((section(".farmem/" #name), used)) = {2, sizeof(node), sizeof(scratch), 1};
#define FARMEM_ITERATOR_SECTION(name) __attribute__((section("farmem/" #name), used, nonnull(1, 2)))

/* Numbers of the calls; the element size is added. */
#define FARMEM_CALL_RANK 0x46610000
#define FARMEM_CALL_MATCH 0x46610100
#define FARMEM_FIND_IN(call, host, array, size, count, key)                                                           \
    (((uint64_t(*)(const void *, uint64_t, uint64_t))(uintptr_t)((call) + (size)))((array), (count), (key)))

/*
 * Names that an iterator cannot use, poisoned from the first iterator on; system headers, which declare them, come before it. Use
 * FARMEM_EQUAL, FARMEM_COPY and fixed-point numbers instead.
 */
#define FARMEM_POISON                                                                                                 \
    _Pragma("GCC poison memcmp __builtin_memcmp bcmp __builtin_bcmp strcmp __builtin_strcmp strncmp strlen __builtin_strlen") \
    _Pragma("GCC poison malloc calloc realloc free __builtin_alloca printf fprintf puts")                             \
    _Pragma("GCC poison float double")

/*
 * Returns the number of zeros below the lowest set bit, for which clang would generate a table. The number of the bits below is the same.
 * clang would recognize this too, unless the origin of the number is hidden.
 */
FARMEM_INLINE int farmem_trailing_zeros(uint64_t x) {
    uint64_t lowest = x & -x;
    __asm__("" : "+r"(lowest));
    return __builtin_popcountll(lowest - 1);
}

/* Returns the index of the lowest set bit, from 1; 0 if none is set. */
FARMEM_INLINE int farmem_first_set(uint64_t x) {
    return x == 0 ? 0 : farmem_trailing_zeros(x) + 1;
}

#define __builtin_ctz(x) farmem_trailing_zeros((uint32_t)(x))
#define __builtin_ctzl(x) farmem_trailing_zeros(x)
#define __builtin_ctzll(x) farmem_trailing_zeros(x)
#define __builtin_ffs(x) farmem_first_set((uint32_t)(x))
#define __builtin_ffsl(x) farmem_first_set((uint64_t)(x))
#define __builtin_ffsll(x) farmem_first_set((uint64_t)(x))

#else

#define FARMEM_POISON
#define FARMEM_ITERATOR_NOTE(name, node, scratch)
#define FARMEM_STORING_NOTE(name, node, scratch)
#define FARMEM_FIND_IN(call, host, array, size, count, key) host((array), (size), (count), (key))

FARMEM_INLINE uint64_t farmem_host_element(const void *array, size_t size, size_t number) {
    const unsigned char *bytes = (const unsigned char *)array + number * size;
    uint64_t element = 0;
    for (size_t byte = size; byte > 0; byte--)
        element = element << 8 | bytes[byte - 1];
    return element;
}

FARMEM_INLINE uint64_t farmem_host_rank(const void *array, size_t size, size_t count, uint64_t key) {
    uint64_t rank = 0;
    for (size_t i = 0; i < count; i++)
        rank += farmem_host_element(array, size, i) <= key;
    return rank;
}

FARMEM_INLINE uint64_t farmem_host_match(const void *array, size_t size, size_t count, uint64_t key) {
    size_t i = 0;
    while (i < count && farmem_host_element(array, size, i) != key)
        i++;
    return i;
}

#define FARMEM_ITERATOR_SECTION(name) __attribute__((used, nonnull(1, 2)))

#endif

#endif
