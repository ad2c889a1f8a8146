// Threads whose stacks, and so their numbers at the system, are in mappings of the program's own. Each writes to a block, forks, and
// ends; the child checks the block and its own number. Memory that the program touches meanwhile pushes all of this out.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 12, STACK = 256 << 10, BLOCK = 1 << 20, WORDS = BLOCK / sizeof(long) };

static void *map(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        exit(3);
    return at;
}

static void fill(volatile long *block, long seed)
{
    for (long i = 0; i < WORDS; i++)
        block[i] = seed + i;
}

static long wrong(volatile long *block, long seed)
{
    long count = 0;
    for (long i = 0; i < WORDS; i++)
        count += block[i] != seed + i;
    return count;
}

static void *run(void *seed)
{
    long *block = map(BLOCK), found;
    fill(block, (long)seed);
    pid_t child = fork();
    if (child == 0)
        _exit(wrong(block, (long)seed) != 0 || gettid() != getpid());
    int status = 1;
    waitpid(child, &status, 0);
    found = wrong(block, (long)seed) + (status != 0);
    munmap(block, BLOCK);
    return (void *)found;
}

int main(void)
{
    long *other = map(4 * BLOCK), found = 0;
    for (long round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        void *stacks[THREADS], *result;
        for (long n = 0; n < THREADS; n++) {
            pthread_attr_t attributes;
            pthread_attr_init(&attributes);
            stacks[n] = map(STACK);
            pthread_attr_setstack(&attributes, stacks[n], STACK);
            if (pthread_create(&threads[n], &attributes, run, (void *)(round * 100 + n)))
                return 4;
        }
        for (long part = 0; part < 4; part++)
            fill(other + part * WORDS, part);
        for (long n = 0; n < THREADS; n++) {
            pthread_join(threads[n], &result);
            found += (long)result;
            munmap(stacks[n], STACK);
        }
        for (long part = 0; part < 4; part++)
            found += wrong(other + part * WORDS, part);
    }
    printf("%d threads, %ld wrong\n", THREADS * ROUNDS, found);
    return 0;
}
