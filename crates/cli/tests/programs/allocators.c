/* Blocks by every function that the program's allocator has: malloc's family, C++'s operators, mallocx, sbrk. Each block is freed by the function
   that belongs to it. Prints how many bytes are not what was written. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 256, ROUNDS = 1500 };

static void *(*new_)(size_t), *(*new_array)(size_t), *(*mallocx)(size_t, int);
static void (*delete_)(void *), (*delete_array)(void *), (*sdallocx)(void *, size_t, int);

struct block {
    unsigned char *at, is;
    size_t len;
    int how;
};

static unsigned next(unsigned *seed) { return (*seed = *seed * 1103515245 + 12345) >> 8; }

static unsigned char *allocate(int how, size_t len) {
    void *at = NULL;
    switch (how) {
    case 0: return malloc(len);
    case 1: return calloc(1, len);
    case 2: return aligned_alloc(64, (len + 63) / 64 * 64);
    case 3: return posix_memalign(&at, 4096, len) == 0 ? at : NULL;
    case 4: return realloc(malloc(len / 2 + 1), len);
    case 5: return new_ ? new_(len) : malloc(len);
    case 6: return new_array ? new_array(len) : malloc(len);
    default: return mallocx && sdallocx ? mallocx(len, 0) : malloc(len);
    }
}

static void give_back(const struct block *block) {
    if (block->how == 5 && delete_) delete_(block->at);
    else if (block->how == 6 && delete_array) delete_array(block->at);
    else if (block->how == 7 && mallocx && sdallocx) sdallocx(block->at, block->len, 0);
    else free(block->at);
}

static long wrong(const struct block *block) {
    long n = 0;
    for (size_t i = 0; i < block->len; i += 61) n += block->at[i] != block->is;
    return n + (malloc_usable_size(block->at) < block->len);
}

static long blocks(unsigned seed, int rounds) {
    struct block all[BLOCKS] = {{0}};
    long n = 0;
    for (int round = 0; round < rounds; round++) {
        struct block *block = &all[next(&seed) % BLOCKS];
        if (block->at) {
            n += wrong(block);
            give_back(block);
        }
        *block = (struct block){.is = (unsigned char)round, .how = (int)(next(&seed) % 8)};
        block->len = 16 + next(&seed) % (next(&seed) % 16 == 0 ? 400000 : 20000);
        block->at = allocate(block->how, block->len);
        if (!block->at) abort();
        memset(block->at, block->is, block->len);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (all[i].at) {
            n += wrong(&all[i]);
            give_back(&all[i]);
        }
    return n;
}

static void *thread(void *result) {
    *(long *)result = blocks(7, ROUNDS);
    return NULL;
}

/* Memory by sbrk: it follows on itself, is there to be written, and zeros where it was given back and taken again. */
static long by_sbrk(void) {
    enum { LEN = 8 << 20 };
    unsigned char *at = sbrk(LEN);
    if (at == (void *)-1) return -1;
    for (size_t i = 0; i < LEN; i++) at[i] = (unsigned char)(1 + i / 4096 % 250);
    long n = 0;
    for (size_t i = 0; i < LEN; i += 97) n += at[i] != (unsigned char)(1 + i / 4096 % 250);
    if (sbrk(0) == at + LEN) {
        sbrk(-(LEN / 2));
        if (brk(at + LEN) != 0) return -2;
        for (size_t i = LEN / 2; i < LEN; i += 97) n += at[i] != 0;
        for (size_t i = 0; i < LEN / 2; i += 97) n += at[i] != (unsigned char)(1 + i / 4096 % 250);
    }
    return n;
}

int main(void) {
    new_ = dlsym(RTLD_DEFAULT, "_Znwm");
    delete_ = dlsym(RTLD_DEFAULT, "_ZdlPv");
    new_array = dlsym(RTLD_DEFAULT, "_Znam");
    delete_array = dlsym(RTLD_DEFAULT, "_ZdaPv");
    mallocx = dlsym(RTLD_DEFAULT, "mallocx");
    sdallocx = dlsym(RTLD_DEFAULT, "sdallocx");
    long of_thread;
    pthread_t other;
    pthread_create(&other, NULL, thread, &of_thread);
    long here = blocks(3, ROUNDS);
    pthread_join(other, NULL);
    printf("%ld wrong, %ld in a thread\n", here, of_thread);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(blocks(5, 200) != 0);
    int status;
    waitpid(pid, &status, 0);
    printf("a child: %d\n", status);
    printf("by sbrk: %ld wrong\n", by_sbrk());
    return 0;
}
