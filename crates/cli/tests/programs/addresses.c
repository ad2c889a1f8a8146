/* Programs that go by addresses, ask what is mapped, and take memory until they are told that there is none. What each prints is what it
   finds without far memory, but for `promise`. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096 };

static void *map(uintptr_t at, size_t len, int rights, int flags) {
    return mmap((void *)at, len, rights, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/* As ZGC reserves its heap, and LuaJIT looks for memory that its pointers can name: the next address until one is given. */
static int hints(void) {
    int tries = 0;
    char *heap = MAP_FAILED;
    for (uintptr_t at = (uintptr_t)1 << 42; at < (uintptr_t)1 << 46; at += (uintptr_t)1 << 36) {
        tries++;
        heap = map(at, 64 * MIB, PROT_NONE, MAP_NORESERVE);
        if (heap == (char *)at) break;
        munmap(heap, 64 * MIB);
        heap = MAP_FAILED;
    }
    printf("a heap where it was wanted: %s\n", heap != MAP_FAILED && tries < 200 ? "yes" : "no");
    tries = 0;
    char *low = MAP_FAILED;
    for (uintptr_t at = 0x10000000; at < 0x7f000000; at += 16 * MIB) {
        tries++;
        low = map(at, MIB, PROT_READ | PROT_WRITE, 0);
        if ((uintptr_t)low < 0x80000000u) break;
        munmap(low, MIB);
    }
    printf("memory below 2 GiB: %s\n", (uintptr_t)low < 0x80000000u && tries < 4 ? "yes" : "no");
    memset(low, 3, MIB);
    printf("and it holds %d\n", low[MIB - 1]);
    return 0;
}

/* As mimalloc asks for an alignment: it gives back what has none, and would have local memory from then on. */
static int aligned(void) {
    enum { LEN = 32 * MIB };
    unsigned long sum = 0;
    for (int n = 0; n < 3; n++) {
        unsigned char *at = map(((uintptr_t)2 << 40) + (uintptr_t)n * LEN, LEN, PROT_READ | PROT_WRITE, 0);
        if ((uintptr_t)at % LEN != 0) printf("segment %d is not aligned\n", n);
        for (size_t i = 0; i < LEN; i += PAGE) at[i] = (unsigned char)(i / PAGE + n);
        for (size_t i = 0; i < LEN; i += PAGE) sum += at[i];
    }
    printf("%lu\n", sum);
    return 0;
}

static int resident(void) {
    unsigned char found[256];
    char *at = map(0, MIB, PROT_READ | PROT_WRITE, 0);
    memset(at, 1, MIB);
    printf("mapped: %d\n", mincore(at, MIB, found));
    munmap(at + MIB / 2, MIB / 2);
    errno = 0;
    int half = mincore(at, MIB, found);
    printf("half unmapped: %d %s\n", half, strerror(errno));
    printf("the other half: %d\n", mincore(at, MIB / 2, found));
    printf("at an odd address: %d\n", mincore(at + 1, PAGE, found));
    munmap(at, MIB / 2);
    errno = 0;
    int all = mincore(at, MIB, found);
    printf("unmapped: %d %s\n", all, strerror(errno));
    return 0;
}

static void fill(unsigned char *at, size_t len, unsigned n) {
    for (size_t i = 0; i < len; i += PAGE) at[i] = (unsigned char)(i / PAGE * 7 + n);
}

static int holds(const unsigned char *at, size_t len, unsigned n) {
    for (size_t i = 0; i < len; i += PAGE)
        if (at[i] != (unsigned char)(i / PAGE * 7 + n)) return 0;
    return 1;
}

/* 32 MiB of far memory. All that was given can be used, and what there is not is refused when it is asked for. */
static int promise(void) {
    enum { COUNT = 64 };
    unsigned char *blocks[COUNT];
    int count = 0;
    while (count < COUNT && (blocks[count] = malloc(MIB)) != NULL) {
        fill(blocks[count], MIB, (unsigned)count);
        count++;
    }
    int right = 0;
    for (int n = 0; n < count; n++) right += holds(blocks[n], MIB, (unsigned)n);
    printf("malloc: %s, %s, all right: %s\n", count >= 24 ? "most of it" : "too little", strerror(errno), right == count ? "yes" : "no");
    void *more = realloc(blocks[0], 16 * MIB);
    printf("realloc: %s, and the block %s\n", more == NULL ? strerror(errno) : "given", holds(blocks[0], MIB, 0) ? "stays" : "is lost");
    printf("calloc: %s\n", calloc(8, MIB) == NULL ? strerror(errno) : "given");
    void *mapped = map(0, 8 * MIB, PROT_READ | PROT_WRITE, 0);
    printf("mmap: %s\n", mapped == MAP_FAILED ? strerror(errno) : "given");
    void *unreserved = map(0, 256 * (size_t)MIB, PROT_READ | PROT_WRITE, MAP_NORESERVE);
    printf("mmap without a promise: %s\n", unreserved == MAP_FAILED ? strerror(errno) : "given");
    void *closed = map(0, 64 * MIB, PROT_NONE, 0);
    printf("mmap of what may not be touched: %s\n", closed == MAP_FAILED ? strerror(errno) : "given");
    printf("mprotect of it: %s\n", mprotect(closed, 64 * MIB, PROT_READ | PROT_WRITE) != 0 ? strerror(errno) : "given");
    for (int n = 0; n < count; n++) free(blocks[n]);
    munmap(unreserved, 256 * (size_t)MIB);
    unsigned char *again = map(0, 20 * MIB, PROT_READ | PROT_WRITE, 0);
    if (again != MAP_FAILED) fill(again, 20 * MIB, 5);
    printf("after it was given back: %s\n", again != MAP_FAILED && holds(again, 20 * MIB, 5) ? "given" : strerror(errno));
    return 0;
}

/* Many addresses without a promise: as many as are reserved for far memory do not fit into it, a TiB does. */
static int unpromised(size_t len) {
    unsigned char *at = map(0, len, PROT_READ | PROT_WRITE, MAP_NORESERVE);
    if (at == MAP_FAILED) return 1;
    at[len - 1] = 9;
    printf("%d %d\n", at[0], at[len - 1]);
    return 0;
}

/* Data that is executable, as a heap with compiled code. Each page has a function that returns its number. */
static int code(void) {
#if defined(__x86_64__)
    static const unsigned char function[] = {0xb8, 0, 0, 0, 0, 0xc3}; /* mov eax, NUMBER; ret */
    const size_t number_at = 1;
#else
    static const unsigned char function[] = {0x40, 0, 0, 0x18, 0xc0, 0x03, 0x5f, 0xd6, 0, 0, 0, 0}; /* ldr w0, NUMBER; ret */
    const size_t number_at = 8;
#endif
    enum { LEN = 8 * MIB };
    unsigned char *all = map((uintptr_t)1 << 36, LEN, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_NORESERVE);
    printf("at its address: %d\n", all == (unsigned char *)((uintptr_t)1 << 36));
    for (uint32_t n = 0; n < LEN / PAGE; n++) {
        memcpy(all + n * PAGE, function, sizeof function);
        memcpy(all + n * PAGE + number_at, &n, sizeof n);
        __builtin___clear_cache((char *)all + n * PAGE, (char *)all + n * PAGE + sizeof function);
    }
    size_t wrong = 0;
    for (uint32_t n = 0; n < LEN / PAGE; n++) wrong += ((uint32_t(*)(void))(void *)(all + n * PAGE))() != n;
    printf("%zu wrong\n", wrong);
    return 0;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "hints") == 0) return hints();
    if (strcmp(what, "aligned") == 0) return aligned();
    if (strcmp(what, "resident") == 0) return resident();
    if (strcmp(what, "promise") == 0) return promise();
    if (strcmp(what, "beyond") == 0) return unpromised((size_t)2 << 40);
    if (strcmp(what, "code") == 0) return code();
    if (strcmp(what, "wide") == 0) return unpromised((size_t)1 << 40);
    return 2;
}
