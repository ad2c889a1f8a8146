/* Memory that moves (mremap) while threads add to the words in it: between two places, and out to a third that is not for far memory. A thread
   that finds nothing at the old place (SIGSEGV) looks where the memory is now. No increment is lost. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 256, LEN = PAGES * PAGE, THREADS = 2, MOVES = 300, OUTS = 30, SOME = 400 };

static _Atomic(char *) place; /* NULL: the threads are to wait */
static atomic_int over, rests, parked[THREADS]; /* a thread that waits says for which rest */
static uint64_t counts[THREADS][PAGES]; /* increments that were done */
static _Atomic uint64_t total;
static __thread sigjmp_buf back;

static void lost(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

/* Where it went: the place is unmapped, or so it was. */
static void *adder(void *arg) {
    const uintptr_t me = (uintptr_t)arg;
    volatile unsigned seed = (unsigned)me + 1;
    sigsetjmp(back, 0);
    while (!atomic_load(&over)) {
        int now = atomic_load(&rests);
        char *at = atomic_load(&place);
        if (!at) {
            atomic_store(&parked[me], now);
            while (!atomic_load(&place) && atomic_load(&rests) == now && !atomic_load(&over)) sched_yield();
            continue;
        }
        seed = seed * 1103515245 + 12345;
        unsigned page = (seed >> 8) % PAGES;
        volatile uint64_t *word = (uint64_t *)(at + (size_t)page * PAGE) + me * 8;
        (*word)++;
        counts[me][page]++;
        atomic_fetch_add_explicit(&total, 1, memory_order_relaxed);
    }
    return NULL;
}

static void until_some_more(void) {
    uint64_t goal = atomic_load(&total) + SOME;
    while (atomic_load(&total) < goal) sched_yield();
}

/* The threads are not in it. */
static void rest(void) {
    atomic_store(&place, NULL);
    int now = atomic_fetch_add(&rests, 1) + 1;
    for (int t = 0; t < THREADS; t++)
        while (atomic_load(&parked[t]) != now) sched_yield();
}

static uint64_t missing(const char *at) {
    uint64_t n = 0;
    for (int t = 0; t < THREADS; t++)
        for (int page = 0; page < PAGES; page++)
            n += counts[t][page] - ((const uint64_t *)(at + (size_t)page * PAGE))[t * 8];
    return n;
}

static char *map(int flags) {
    char *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (at == MAP_FAILED) exit(2);
    return at;
}

static void move(char *from, char *to) {
    if (mremap(from, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) exit(3);
}

int main(void) {
    struct sigaction action = {.sa_handler = lost, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    char *places[2] = {map(0), map(0)}, *local = map(MAP_STACK);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, adder, (void *)i);

    atomic_store(&place, places[0]);
    for (int i = 0; i < MOVES; i++) {
        until_some_more();
        move(places[i % 2], places[1 - i % 2]);
        atomic_store(&place, places[1 - i % 2]);
    }
    rest();
    printf("between two places: %llu lost\n", (unsigned long long)missing(places[MOVES % 2]));

    uint64_t n = 0;
    for (int i = 0; i < OUTS; i++) {
        char *far = map(0);
        memset(counts, 0, sizeof counts);
        atomic_store(&place, far);
        until_some_more();
        move(far, local);
        atomic_store(&place, local);
        until_some_more();
        rest();
        n += missing(local);
        memset(local, 0, LEN);
    }
    printf("out: %llu lost\n", (unsigned long long)n);
    atomic_store(&over, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
