/* Another process, or another thread of this one, has the system write into this one's memory (process_vm_writev), while pages of it come and
   go. What the system said it wrote is there. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1024, NOISE = 512, MOST = 128, ROUNDS = 27, WRITES = 24, PIECES = 3 };

/* Not far: both processes have it. */
static struct {
    atomic_int round, done, failed;
    uint64_t stamps[PAGES];
} *both;

static char *far, *noise;
static uint64_t source[MOST * PAGE / 8];

static unsigned next(unsigned *seed) { return (*seed = *seed * 1103515245 + 12345) >> 8; }

/* One call, to up to PIECES ranges. */
static void write_some(pid_t to, unsigned *seed, uint64_t stamp) {
    struct iovec local = {source, 0}, remote[PIECES];
    int pieces = 1 + (int)(next(seed) % PIECES);
    size_t pages = 0;
    for (int i = 0; i < pieces; i++) {
        size_t count = 1 + next(seed) % (MOST / (unsigned)pieces), first = next(seed) % (PAGES - count);
        remote[i] = (struct iovec){far + first * PAGE, count * PAGE};
        for (size_t at = 0; at < count * PAGE / 8; at++) source[pages * PAGE / 8 + at] = stamp + first + at / 512;
        pages += count;
    }
    local.iov_len = pages * PAGE;
    ssize_t wrote = process_vm_writev(to, &local, 1, remote, (unsigned long)pieces, 0);
    if (wrote != (ssize_t)local.iov_len) {
        printf("wrote %zd of %zu: %s\n", wrote, local.iov_len, strerror(errno));
        fflush(stdout);
        atomic_store(&both->failed, 1);
        return;
    }
    /* The last of ranges that overlap is what is there. */
    for (int i = 0; i < pieces; i++) {
        size_t first = (size_t)((char *)remote[i].iov_base - far) / PAGE;
        for (size_t page = first; page < first + remote[i].iov_len / PAGE; page++) both->stamps[page] = stamp + page;
    }
}

static void writer(pid_t to) {
    unsigned seed = 5;
    for (int round = 1; round <= ROUNDS && !atomic_load(&both->failed); round++) {
        while (atomic_load(&both->round) < round) sched_yield();
        for (int i = 0; i < WRITES; i++) write_some(to, &seed, ((uint64_t)round << 32) + ((uint64_t)i << 20));
        atomic_store(&both->done, round);
    }
}

static void *thread_writer(void *arg) {
    writer(getpid());
    return arg;
}

/* Another process that has this one's memory: it writes to its parent, or it waits and is written to by its number. */
static char stack[1 << 18] __attribute__((aligned(16)));
static atomic_int over;

static int sharer_writes(void *to) {
    writer((pid_t)(intptr_t)to);
    return 0;
}

static int sharer_waits(void *unused) {
    (void)unused;
    while (!atomic_load(&over)) sched_yield();
    return 0;
}

static pid_t sharer(int (*does)(void *), pid_t to) {
    return clone(does, stack + sizeof stack, CLONE_VM | SIGCHLD, (void *)(intptr_t)to);
}

static void *thread_writer_to(void *to) {
    writer((pid_t)(intptr_t)to);
    return to;
}

static int lost(void) {
    int n = 0;
    for (size_t page = 0; page < PAGES; page++) {
        const uint64_t *words = (const uint64_t *)(far + page * PAGE);
        n += words[0] != both->stamps[page] || words[511] != both->stamps[page];
    }
    return n;
}

static void edges(pid_t to) {
    char bytes[16] = "0123456789";
    struct iovec local = {bytes, 10}, remote[2] = {{far + 100, 4}, {far + (size_t)PAGES * PAGE - 3, 6}};
    char *end = far + (size_t)PAGES * PAGE - PAGE;
    munmap(end, PAGE);
    remote[1].iov_base = end - 3;
    ssize_t wrote = process_vm_writev(to, &local, 1, remote, 2, 0);
    printf("to the edge: %zd %.4s %.3s\n", wrote, far + 100, end - 3);
    remote[0].iov_base = end;
    wrote = process_vm_writev(to, &local, 1, remote, 1, 0);
    printf("past it: %zd %s\n", wrote, wrote < 0 ? strerror(errno) : "");
    wrote = process_vm_writev(to, &local, 1, remote, 1, 1);
    printf("a flag: %zd %s\n", wrote, wrote < 0 ? strerror(errno) : "");
    wrote = process_vm_writev(to, &local, 1, remote, 4096, 0);
    printf("too many: %zd %s\n", wrote, wrote < 0 ? strerror(errno) : "");
    wrote = process_vm_writev(to, &local, 0, remote, 0, 0);
    printf("nothing: %zd\n", wrote);
    wrote = process_vm_writev(999999999, &local, 1, remote, 1, 0);
    printf("nobody: %zd %s\n", wrote, wrote < 0 ? strerror(errno) : "");
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "process";
    both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    far = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    noise = mmap(NULL, (size_t)NOISE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t *words = (uint64_t *)(far + page * PAGE);
        for (int i = 0; i < 512; i++) words[i] = page;
        both->stamps[page] = page;
    }
    pthread_t thread;
    pid_t child = 0;
    if (strcmp(how, "thread") == 0) {
        pthread_create(&thread, NULL, thread_writer, NULL);
    } else if (strcmp(how, "sharer") == 0) {
        child = sharer(sharer_writes, getpid());
    } else if (strcmp(how, "to-sharer") == 0) {
        child = sharer(sharer_waits, 0);
        pthread_create(&thread, NULL, thread_writer_to, (void *)(intptr_t)child);
    } else {
        pid_t parent = getpid();
        child = fork();
        if (child == 0) {
            writer(parent);
            _exit(0);
        }
    }
    unsigned seed = 11;
    int all = 0;
    for (int round = 1; round <= ROUNDS; round++) {
        atomic_store(&both->round, round);
        while (atomic_load(&both->done) < round && !atomic_load(&both->failed)) {
            noise[(size_t)(next(&seed) % NOISE) * PAGE]++;
            (void)*(volatile char *)(far + (size_t)(next(&seed) % PAGES) * PAGE);
        }
        all += lost();
        if (atomic_load(&both->failed)) return 1;
    }
    atomic_store(&over, 1);
    if (child) waitpid(child, NULL, 0);
    if (strcmp(how, "thread") == 0 || strcmp(how, "to-sharer") == 0) pthread_join(thread, NULL);
    printf("%d pages lost\n", all);
    edges(getpid());
    return 0;
}
