/* Calls of a static program that the pager answers, with what each leaves in memory. An argument names the case. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "known_bytes.h"

static size_t not_zero(const unsigned char *at, size_t len) {
    size_t count = 0;
    for (size_t i = 0; i < len; i += 8) count += *(const uint64_t *)(at + i) != 0;
    return count;
}

/* The signal that ends a child which reads or writes a byte there; 0 when none does. */
static int ends_by(unsigned char *at, int writes) {
    pid_t child = fork();
    if (child == 0) {
        volatile unsigned char *byte = at;
        if (writes) *byte = 1;
        _exit(*byte == 255);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static int mappings(void) {
    unsigned char *a = map(24 * MIB);
    fill(a, 24 * MIB, 7);
    printf("filled: %zu wrong\n", wrong(a, 24 * MIB, 7));
    madvise(a + 4 * MIB, 4 * MIB, MADV_DONTNEED);
    printf("dropped: %zu not zero\n", not_zero(a + 4 * MIB, 4 * MIB));
    mmap(a + 8 * MIB, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("mapped anew: %zu not zero\n", not_zero(a + 8 * MIB, 4 * MIB));
    munmap(a + 12 * MIB, 4 * MIB);
    printf("unmapped: signal %d\n", ends_by(a + 13 * MIB, 0));
    mprotect(a, 4 * MIB, PROT_READ);
    printf("read only: signals %d, %d\n", ends_by(a + MIB, 0), ends_by(a + MIB, 1));
    mprotect(a, 4 * MIB, PROT_NONE);
    printf("no rights: signal %d\n", ends_by(a + MIB, 0));
    mprotect(a, 4 * MIB, PROT_READ | PROT_WRITE);
    printf("allowed: %zu wrong\n", wrong(a, 4 * MIB, 7));
    unsigned char *b = mremap(a + 16 * MIB, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE);
    printf("grown: %zu wrong\n", wrong(b, 8 * MIB, 7 + 16 * MIB));
    printf("behind it: %zu not zero\n", not_zero(b + 8 * MIB, 8 * MIB));
    unsigned char *c = mremap(b, 16 * MIB, 4 * MIB, 0);
    printf("shrunk in place: %d, signal %d\n", c == b, ends_by(b + 5 * MIB, 0));
    void *d = mremap(a, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, b + 8 * MIB);
    printf("moved: %d, %zu wrong, signal %d\n", d == b + 8 * MIB, wrong(d, 4 * MIB, 7), ends_by(a, 0));
    printf("unaligned: %d\n", munmap(b + 1, PAGE) == -1 && errno == EINVAL);
    return 0;
}

static int break_of_the_program(void) {
    unsigned char *start = sbrk(0);
    int grown = sbrk(64 * 1024) == start;
    fill(start, 64 * 1024, 3);
    void *more = sbrk(64 * MIB);
    printf("grown: %d, more: %d, %zu wrong\n", grown, more == (void *)-1 && errno == ENOMEM, wrong(start, 64 * 1024, 3));
    unsigned char *blocks[64];
    for (unsigned i = 0; i < 64; i++) fill(blocks[i] = malloc(100 * 1024), 100 * 1024, i);
    size_t count = 0;
    for (unsigned i = 0; i < 64; i++) count += wrong(blocks[i], 100 * 1024, i);
    printf("blocks: %zu wrong\n", count);
    return 0;
}

static unsigned char *common;

static void *worker(void *number) {
    unsigned me = (unsigned)(uintptr_t)number;
    unsigned seed = me;
    size_t count = 0;
    for (int turn = 0; turn < 40; turn++) {
        size_t len = ((seed = seed * 1103515245 + 12345) >> 16) % 64 * PAGE + 256 * 1024;
        unsigned char *block = map(len);
        fill(block, len, me);
        fill(common + me * MIB, MIB, me + (unsigned)turn);
        count += wrong(block, len, me) + wrong(common + me * MIB, MIB, me + (unsigned)turn);
        block = mremap(block, len, len * 2, MREMAP_MAYMOVE);
        count += wrong(block, len, me) + not_zero(block + len, len);
        count += munmap(block, len * 2) != 0;
    }
    return (void *)count;
}

static int threads(void) {
    common = map(8 * MIB);
    pthread_t all[8];
    size_t count = 0;
    for (uintptr_t i = 0; i < 8; i++) pthread_create(&all[i], NULL, worker, (void *)i);
    for (int i = 0; i < 8; i++) {
        void *found;
        pthread_join(all[i], &found);
        count += (size_t)found;
    }
    printf("%zu wrong\n", count);
    return 0;
}

static int runs_itself(const char *itself) {
    unsigned char *a = map(8 * MIB);
    fill(a, 8 * MIB, 5);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execl(itself, itself, "threads", NULL);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("the other program: %d; here: %zu wrong\n", status, wrong(a, 8 * MIB, 5));
    return 0;
}

static int ends(void) {
    unsigned char *a = map(8 * MIB);
    fill(a, 8 * MIB, 5);
    munmap(a, 8 * MIB);
    return a[0];
}

/* Calls that far memory does not have, and one that it has in another way. */
static int refused(const char *itself) {
    unsigned char *a = map(MIB);
    fill(a, MIB, 1);
    int file = open(itself, O_RDONLY | O_DIRECT);
    printf("O_DIRECT: %d\n", file == -1 && errno == EINVAL);
    printf("wiped: %d\n", madvise(a, MIB, MADV_WIPEONFORK) == -1 && errno == EINVAL);
    return 0;
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "";
    if (!strcmp(name, "mappings")) return mappings();
    if (!strcmp(name, "break")) return break_of_the_program();
    if (!strcmp(name, "threads")) return threads();
    if (!strcmp(name, "itself")) return runs_itself(arguments[0]);
    if (!strcmp(name, "ends")) return ends();
    if (!strcmp(name, "refused")) return refused(arguments[0]);
    return 2;
}
