/* Mappings that are made, cut, moved, given back, protected and mapped over, at random, against what each page is to hold. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MAPS = 12, PAGES = 200, STEPS = 1500, THREADS = 3 };

struct map {
    char *start;
    size_t pages;
    uint32_t holds[3 * PAGES]; /* per page: 0 for zeros, else what is written all over it */
};

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static void fail(const char *what, size_t at) {
    printf("%s at page %zu\n", what, at);
    fflush(stdout);
    _exit(1);
}

static void check(const struct map *m) {
    for (size_t page = 0; page < m->pages; page++) {
        const uint32_t *words = (const uint32_t *)(m->start + page * PAGE);
        for (size_t i = 0; i < PAGE / 4; i += 97)
            if (words[i] != m->holds[page]) fail("wrong bytes", page);
    }
}

static void fill(struct map *m, size_t page, uint32_t with) {
    uint32_t *words = (uint32_t *)(m->start + page * PAGE);
    for (size_t i = 0; i < PAGE / 4; i++) words[i] = with;
    m->holds[page] = with;
}

static void make(struct map *m, uint64_t *state) {
    m->pages = 40 + next(state) % (PAGES - 40);
    m->start = mmap(NULL, m->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->start == MAP_FAILED) fail("mmap", m->pages);
    memset(m->holds, 0, sizeof m->holds);
}

static void step(struct map *m, uint64_t *state) {
    size_t at = next(state) % m->pages, count = 1 + next(state) % (m->pages - at);
    char *from = m->start + at * PAGE;
    size_t len = count * PAGE;
    switch (next(state) % 11) {
    case 0: /* given back whole */
        check(m);
        if (munmap(m->start, m->pages * PAGE)) fail("munmap", 0);
        make(m, state);
        break;
    case 1: /* its tail is cut off */
        if (at == 0) break;
        if (munmap(from, (m->pages - at) * PAGE)) fail("munmap of a tail", at);
        m->pages = at;
        if (m->pages < 4) {
            munmap(m->start, m->pages * PAGE);
            make(m, state);
        }
        break;
    case 2: { /* grows, maybe elsewhere */
        size_t pages = m->pages + next(state) % PAGES;
        if (pages > 3 * PAGES) break;
        char *moved = mremap(m->start, m->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED && errno == EFAULT) break; /* several mappings to the system */
        if (moved == MAP_FAILED) fail("mremap", pages);
        memset(m->holds + m->pages, 0, (pages - m->pages) * sizeof *m->holds);
        m->start = moved;
        m->pages = pages;
        break;
    }
    case 3: { /* shrinks in place */
        size_t pages = 1 + m->pages / 2;
        char *kept = mremap(m->start, m->pages * PAGE, pages * PAGE, 0);
        if (kept == MAP_FAILED && errno == EFAULT) break;
        if (kept != m->start) fail("mremap to shrink", pages);
        m->pages = pages;
        break;
    }
    case 4: /* zeros again */
        if (madvise(from, len, MADV_DONTNEED)) fail("madvise", at);
        memset(m->holds + at, 0, count * sizeof *m->holds);
        check(m);
        break;
    case 5: /* mapped over with zeros */
        if (mmap(from, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != from)
            fail("mmap over", at);
        memset(m->holds + at, 0, count * sizeof *m->holds);
        break;
    case 6: /* read-only for a while: what is there stays */
        if (mprotect(from, len, PROT_READ)) fail("mprotect", at);
        check(m);
        if (mprotect(from, len, PROT_READ | PROT_WRITE)) fail("mprotect back", at);
        break;
    case 7: { /* moved to where another mapping was */
        char *target = mmap(NULL, m->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(target, 1, m->pages * PAGE);
        char *moved = mremap(m->start, m->pages * PAGE, m->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
        if (moved == MAP_FAILED && errno == EFAULT) {
            munmap(target, m->pages * PAGE);
            break;
        }
        if (moved != target) fail("mremap to a place", 0);
        m->start = moved;
        break;
    }
    case 8: /* the system writes and reads it */
        if (len <= 16 * PAGE) {
            int pipes[2];
            char *copy = malloc(len);
            if (pipe(pipes) || fcntl(pipes[1], F_SETPIPE_SZ, 1 << 20) < 0) fail("pipe", at);
            if (write(pipes[1], from, len) != (ssize_t)len) fail("write", at);
            if (read(pipes[0], copy, len) != (ssize_t)len) fail("read", at);
            if (memcmp(copy, from, len)) fail("the system read other bytes", at);
            if (write(pipes[1], copy, len) != (ssize_t)len) fail("write", at);
            memset(from, 0, len);
            if (read(pipes[0], from, len) != (ssize_t)len) fail("read back", at);
            if (memcmp(copy, from, len)) fail("the system wrote other bytes", at);
            free(copy);
            close(pipes[0]);
            close(pipes[1]);
        }
        break;
    default:
        for (size_t page = at; page < at + count; page++) fill(m, page, (uint32_t)next(state) | 1);
    }
}

/* A file mapped over the middle is the program's own business, and so is what comes after it. */
static void file_over(void) {
    size_t len = 300 * PAGE;
    char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(start, 7, len);
    int file = open("/proc/self/exe", O_RDONLY);
    char *over = mmap(start + 50 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0);
    if (over != start + 50 * PAGE || memcmp(over, "\177ELF", 4)) fail("a file over far memory", 50);
    if (start[50 * PAGE - 1] != 7 || start[51 * PAGE] != 7) fail("beside the file", 51);
    if (munmap(over, PAGE)) fail("munmap of the file", 50);
    if (start[50 * PAGE - 1] != 7 || start[51 * PAGE] != 7) fail("beside where the file was", 51);
    if (munmap(start, len)) fail("munmap of all", 0);
    close(file);
}

static void *run(void *arg) {
    uint64_t state = (uintptr_t)arg * 77 + 5;
    struct map *maps = calloc(MAPS, sizeof *maps);
    for (int i = 0; i < MAPS; i++) make(&maps[i], &state);
    for (int i = 0; i < STEPS; i++) {
        struct map *m = &maps[next(&state) % MAPS];
        step(m, &state);
        if (i % 16 == 0) check(m);
    }
    for (int i = 0; i < MAPS; i++) {
        check(&maps[i]);
        munmap(maps[i].start, maps[i].pages * PAGE);
    }
    free(maps);
    return NULL;
}

int main(void) {
    file_over();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, run, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    puts("mappings: right");
    return 0;
}
