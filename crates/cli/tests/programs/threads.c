/* Threads that fill, sort and check memory of their own and memory that all of them share. Prints one line per thread, in order. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, WORDS = 1 << 18, ROUNDS = 3, SMALL = 2000 };

static uint64_t *shared;
static uint64_t sums[THREADS];
static atomic_uint_fast64_t turns;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static int order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void *work(void *arg) {
    uintptr_t me = (uintptr_t)arg;
    uint64_t state = me + 1, sum = 0;
    uint64_t *own = malloc(WORDS * sizeof *own);
    char **small = calloc(SMALL, sizeof *small);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < WORDS; i++) own[i] = next(&state);
        for (size_t i = me; i < WORDS; i += THREADS) shared[i] = shared[i] * 31 + own[i];
        qsort(own, WORDS / 8, sizeof *own, order);
        for (size_t i = 1; i < WORDS / 8; i++)
            if (own[i - 1] > own[i]) abort();
        for (size_t i = 0; i < WORDS; i++) sum = sum * 33 + own[i];
        /* Small blocks of many lengths, freed by chance. */
        for (int i = 0; i < SMALL; i++) {
            size_t at = next(&state) % SMALL, len = 1 + next(&state) % 5000;
            if (small[at] && strlen(small[at]) != (unsigned char)small[at][0] % 200 + 1u) abort();
            free(small[at]);
            small[at] = malloc(len + 256);
            size_t text = (unsigned char)('a' + len % 26) % 200 + 1;
            memset(small[at], 'a' + (int)(len % 26), text);
            small[at][text] = 0;
        }
        atomic_fetch_add(&turns, 1);
    }
    for (int i = 0; i < SMALL; i++) free(small[i]);
    free(small);
    free(own);
    sums[me] = sum;
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    shared = calloc(WORDS, sizeof *shared);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    uint64_t all = 0;
    for (size_t i = 0; i < WORDS; i++) all = all * 33 + shared[i];
    for (int i = 0; i < THREADS; i++) printf("thread %d: %016llx\n", i, (unsigned long long)sums[i]);
    printf("shared: %016llx, %llu turns\n", (unsigned long long)all, (unsigned long long)atomic_load(&turns));
    return 0;
}
