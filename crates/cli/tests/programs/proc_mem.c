/* A thread writes to memory through /proc/self/mem while pages of it come and go. Where the system says EIO the page is touched, and the write
   tried again. What was written is there. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 512, WRITES = 40000 };

static uint64_t *far, stamps[PAGES];
static atomic_int done;

static unsigned next(unsigned *seed) { return (*seed = *seed * 1103515245 + 12345) >> 8; }

static void *writer(void *failed) {
    int fd = open("/proc/self/mem", O_RDWR);
    unsigned seed = 7;
    for (uint64_t n = 1; n <= WRITES; n++) {
        size_t page = next(&seed) % PAGES;
        uint64_t *at = far + page * PAGE / 8;
        while (pwrite(fd, &n, sizeof n, (off_t)(uintptr_t)at) != sizeof n) __atomic_fetch_add(at + 1, 1, __ATOMIC_RELAXED);
        stamps[page] = n;
    }
    atomic_store(&done, 1);
    return failed;
}

int main(void) {
    far = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(far, 0, (size_t)PAGES * PAGE);
    pthread_t thread;
    pthread_create(&thread, NULL, writer, NULL);
    unsigned seed = 3;
    while (!atomic_load(&done)) (void)*(volatile uint64_t *)(far + (size_t)(next(&seed) % PAGES) * PAGE / 8);
    pthread_join(thread, NULL);
    int lost = 0;
    for (size_t page = 0; page < PAGES; page++) lost += far[page * PAGE / 8] != stamps[page];
    printf("%d lost\n", lost);
    return 0;
}
