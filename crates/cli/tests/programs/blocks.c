/* Large blocks, allocated and freed again and again: their bytes are right, those of calloc are zeros, and those of realloc stay. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 500, LEN = 200 * 1000, MANY = 24 };

static unsigned state = 7;

static unsigned below(unsigned n) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % n;
}

static int all(const unsigned char *bytes, size_t len, unsigned char value) {
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != value) return 0;
    return 1;
}

#define CHECK(what) do { if (!(what)) { printf("wrong: %s, line %d\n", #what, __LINE__); return 1; } } while (0)

int main(void) {
    for (int i = 0; i < ROUNDS; i++) {
        unsigned char *block = malloc(LEN);
        CHECK(block);
        memset(block, i, LEN);
        CHECK(all(block, LEN, (unsigned char)i));
        free(block);
        unsigned char *zeros = calloc(1, LEN - 100);
        CHECK(zeros && all(zeros, LEN - 100, 0));
        memset(zeros, 255, LEN - 100);
        free(zeros);
    }
    /* Of many lengths, in any order: none has another one's bytes. */
    unsigned char *blocks[MANY] = {0};
    size_t lens[MANY] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        int n = (int)below(MANY);
        if (blocks[n]) CHECK(all(blocks[n], lens[n], (unsigned char)n));
        size_t len = 130 * 1000 + below(500 * 1000);
        size_t kept = lens[n] < len ? lens[n] : len;
        switch (below(4)) {
        case 0:
            free(blocks[n]);
            CHECK((blocks[n] = malloc(len)));
            break;
        case 1:
            free(blocks[n]);
            CHECK((blocks[n] = calloc(len, 1)) && all(blocks[n], len, 0));
            break;
        case 2:
            free(blocks[n]);
            CHECK((blocks[n] = aligned_alloc(1 << 16, len)) && (uintptr_t)blocks[n] % (1 << 16) == 0);
            break;
        default:
            CHECK((blocks[n] = realloc(blocks[n], len)) && all(blocks[n], kept, (unsigned char)n));
        }
        CHECK(malloc_usable_size(blocks[n]) >= len);
        memset(blocks[n], n, len);
        lens[n] = len;
    }
    for (int n = 0; n < MANY; n++) free(blocks[n]);
    puts("right");
    return 0;
}
