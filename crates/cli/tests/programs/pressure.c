/* One thread touches a block that fits here and there, so it is left to the system, whatever comes later. Then threads write and read pages of their own all over mappings that come one after the other, go back to zeros and are unmapped, while more and more is mapped.
 * Says so only if each page has what its thread wrote last, or zeros. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, CALM = 128, LEN = 1 << 20, PAGES = LEN / PAGE, MAPS = 24, THREADS = 4, TOUCHES = 6000, ROUNDS = 3 };

static char *maps[MAPS];
static atomic_int mapped;
static atomic_long wrong;
/* What each page has; page p of each mapping is thread p % THREADS's. */
static uint64_t holds[MAPS][PAGES];

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static void *touches(void *number) {
    uint64_t thread = (uint64_t)(uintptr_t)number, state = 77 + thread;
    for (int n = 0; n < TOUCHES; n++) {
        uint64_t at = next(&state), map = (at >> 8) % (uint64_t)atomic_load(&mapped);
        uint64_t page = ((at >> 32) % (PAGES / THREADS)) * THREADS + thread;
        volatile uint64_t *first = (uint64_t *)(maps[map] + page * PAGE), *last = first + PAGE / 8 - 1;
        if (*first != holds[map][page] || *last != holds[map][page]) wrong++;
        switch (at & 15) {
        case 0:
            if (madvise((void *)first, PAGE, MADV_DONTNEED)) wrong++;
            holds[map][page] = 0;
            break;
        case 1 ... 6:
            *first = *last = holds[map][page] = at | 1;
        }
    }
    return NULL;
}

/* In a child: everything is as it was at the fork, whatever the parent does. */
static int looks(void) {
    int odd = 0;
    for (int map = 0; map < atomic_load(&mapped); map++)
        for (int page = 0; page < PAGES; page++) odd += *(volatile uint64_t *)(maps[map] + page * PAGE) != holds[map][page];
    return odd > 0;
}

/* Page 37 n modulo their number: each once, and none beside the one before. */
static uint64_t *calm_page(char *block, int n) { return (uint64_t *)(block + (size_t)(37 * n % CALM) * PAGE); }

int main(void) {
    char *calm = mmap(NULL, CALM * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (calm == MAP_FAILED) return 2;
    for (int n = 0; n < CALM; n++) *calm_page(calm, n) = n + 1;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        atomic_store(&mapped, 0);
        for (int map = 0; map < MAPS; map++) {
            maps[map] = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (maps[map] == MAP_FAILED) return 2;
            for (int page = 0; page < PAGES; page++) holds[map][page] = 0;
            atomic_store(&mapped, map + 1);
            if (map == 0)
                for (uintptr_t n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, touches, (void *)n);
            usleep(1000);
        }
        for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
        pid_t child = fork();
        if (child == 0) _exit(looks());
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) wrong++;
        /* Every second one grows where it is, or moves; it keeps its bytes, and has zeros behind them. */
        for (int map = 0; map < MAPS; map++) {
            if (map % 2) {
                char *moved = mremap(maps[map], LEN, 2 * LEN, MREMAP_MAYMOVE);
                if (moved == MAP_FAILED) return 2;
                for (int page = 0; page < PAGES; page++) {
                    wrong += *(uint64_t *)(moved + page * PAGE) != holds[map][page];
                    wrong += *(uint64_t *)(moved + LEN + page * PAGE) != 0;
                }
                munmap(moved, 2 * LEN);
            } else {
                munmap(maps[map], LEN);
            }
        }
    }
    for (int n = 0; n < CALM; n++) wrong += *calm_page(calm, n) != (uint64_t)n + 1;
    printf("%ld wrong\n", atomic_load(&wrong));
    return wrong != 0;
}
