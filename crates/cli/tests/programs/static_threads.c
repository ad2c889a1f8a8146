/* Threads of a static program that disturb each other's changes of mappings. An argument names the case. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "known_bytes.h"

static unsigned char *block;
static int ready[2], go_on[2];
static volatile int is_done;

/* A call on far memory that the system refuses, after which the thread makes no more. */
static void *refused_once(void *spins) {
    void *there = mmap(block, MIB, PROT_READ, MAP_SHARED | MAP_FIXED, -1, 0);
    char is_refused = there == MAP_FAILED && errno == EBADF;
    if (spins) {
        /* No system call from here on: the main thread reads the answer from memory. */
        is_done = is_refused ? 1 : 2;
        for (;;) __asm__ volatile("pause");
    }
    if (write(ready[1], &is_refused, 1) != 1) abort();
    char byte;
    if (read(go_on[0], &byte, 1) != 1) abort();
    return NULL;
}

static int fork_and_look(void) {
    pid_t child = fork();
    if (child < 0) return errno == EAGAIN ? -1 : -2;
    if (child == 0) _exit(wrong(block, 8 * MIB, 5) ? 1 : 0);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

/* A fork beside a thread that waits elsewhere after its call, and beside one that runs without end. */
static int fork_beside(int spins) {
    pthread_t thread;
    fill(block = map(8 * MIB), 8 * MIB, 5);
    if (pipe(ready) || pipe(go_on)) abort();
    pthread_create(&thread, NULL, refused_once, spins ? &thread : NULL);
    char is_refused = 0;
    if (spins) {
        while (!is_done) sched_yield();
        is_refused = is_done == 1;
    } else if (read(ready[0], &is_refused, 1) != 1) {
        abort();
    }
    alarm(30);
    printf("refused: %d, fork: %d\n", is_refused, fork_and_look());
    fflush(stdout);
    if (spins) _exit(0);
    if (write(go_on[1], "x", 1) != 1) abort();
    pthread_join(thread, NULL);
    printf("%zu wrong\n", wrong(block, 8 * MIB, 5));
    return 0;
}

/* An mprotect that the system refuses, because the process has as many mappings as it may have. The child has the rights as they are. */
static int refused_rights(void) {
    fill(block = map(8 * MIB), 8 * MIB, 5);
    size_t len = (size_t)70000 * 2 * PAGE;
    unsigned char *many = mmap(NULL, len, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < 70000 && mprotect(many + i * 2 * PAGE, PAGE, PROT_READ) == 0; i++) {}
    int result = mprotect(block + 2 * MIB, PAGE, PROT_NONE) == -1 ? errno : 0;
    munmap(many, len);
    pid_t child = fork();
    if (child == 0) {
        block[2 * MIB + 9] = 1;
        _exit(wrong(block, 8 * MIB, 5) ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("refused: %d, child: %d, %zu wrong\n", result == ENOMEM, status, wrong(block, 8 * MIB, 5));
    return 0;
}

/* The first far mapping is made by a thread that has descriptors of its own, other ones than the first thread. */
static void *own_descriptors(void *unused) {
    (void)unused;
    if (unshare(CLONE_FILES)) abort();
    for (int i = 0; i < 5; i++)
        if (dup(0) < 0) abort();
    fill(block = map(8 * MIB), 8 * MIB, 5);
    return (void *)wrong(block, 8 * MIB, 5);
}

static int descriptors(void) {
    pthread_t thread;
    void *count;
    pthread_create(&thread, NULL, own_descriptors, NULL);
    pthread_join(thread, &count);
    printf("%zu wrong, %zu wrong\n", (size_t)count, wrong(block, 8 * MIB, 5));
    return 0;
}

/* Processes that fork are killed at any moment. The end of the pipe comes when no child of theirs is left, stopped or not. */
static int killed_forks(void) {
    unsigned seed = 1;
    size_t count = 0;
    for (int turn = 0; turn < 60; turn++) {
        int end[2];
        if (pipe(end)) abort();
        pid_t parent = fork();
        if (parent == 0) {
            close(end[0]);
            fill(block = map(MIB), MIB, 5);
            if (write(end[1], "f", 1) != 1) abort();
            for (;;) {
                pid_t child = fork();
                if (child == 0) _exit(wrong(block, MIB, 5) ? 1 : 0);
                int status;
                waitpid(child, &status, 0);
                if (status != 0 && write(end[1], "w", 1) != 1) abort();
            }
        }
        close(end[1]);
        char byte;
        if (read(end[0], &byte, 1) != 1) abort();
        seed = seed * 1103515245 + 12345;
        usleep((seed >> 16) % 4000);
        kill(parent, SIGKILL);
        alarm(30);
        while (read(end[0], &byte, 1) == 1) count++;
        waitpid(parent, NULL, 0);
        close(end[0]);
    }
    printf("%zu wrong\n", count);
    return 0;
}

/* Does what each line of the input says: maps, forks, unmaps, or ends. */
static int commands(void) {
    fill(block = map(8 * MIB), 8 * MIB, 5);
    printf("%d %p\n", getpid(), (void *)block);
    fflush(stdout);
    char line[16];
    unsigned char *last = NULL;
    while (fgets(line, sizeof line, stdin)) {
        switch (line[0]) {
        case 'm': {
            fill(last = map(4 * MIB), 4 * MIB, 6);
            printf("%p %zu wrong\n", (void *)last, wrong(last, 4 * MIB, 6));
            break;
        }
        case 'u': printf("%d %zu wrong\n", munmap(last, MIB), wrong(last + MIB, 3 * MIB, 6 + MIB)); break;
        case 'f': printf("%d %zu wrong\n", fork_and_look(), wrong(block, 8 * MIB, 5)); break;
        default: return 0;
        }
        fflush(stdout);
    }
    return 1;
}

static void *count_cpus(void *into) {
    cpu_set_t set;
    *(int *)into = sched_getaffinity(0, sizeof set, &set) ? -1 : CPU_COUNT(&set);
    return NULL;
}

/* The CPUs of the first thread, and of threads and children that begin while pages come and go. */
static int affinity(void) {
    int first, other, count = 0;
    count_cpus(&first);
    block = map(16 * MIB);
    for (unsigned turn = 0; turn < 4; turn++) {
        fill(block, 16 * MIB, turn);
        pthread_t thread;
        pthread_create(&thread, NULL, count_cpus, &other);
        pthread_join(thread, NULL);
        count += other != first;
        pid_t child = fork();
        if (child == 0) {
            count_cpus(&other);
            _exit(other != first);
        }
        int status = 1;
        waitpid(child, &status, 0);
        count += status != 0;
        count_cpus(&other);
        count += other != first;
    }
    printf("%d wrong, %zu wrong\n", count, wrong(block, 16 * MIB, 3));
    return 0;
}

static void *map_always(void *unused) {
    (void)unused;
    for (;;) {
        unsigned char *at = map(256 * 1024);
        if (at == MAP_FAILED) _exit(3);
        fill(at, 256 * 1024, 7);
        if (wrong(at, 256 * 1024, 7)) _exit(4);
        munmap(at, 256 * 1024);
    }
}

static void *run_next(void *number) {
    char next[16];
    snprintf(next, sizeof next, "%d", (int)(uintptr_t)number + 1);
    usleep(1000 + (unsigned)(uintptr_t)number * 37 % 4000);
    execl("/proc/self/exe", "static_threads", "execs", next, NULL);
    _exit(5);
}

/* A thread runs the program anew, 150 times, while the others map, the first one among them. */
static int execs(int number) {
    pthread_t thread;
    if (number == 150) return printf("%d programs\n", number) < 0;
    for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, map_always, NULL);
    pthread_create(&thread, NULL, run_next, (void *)(uintptr_t)number);
    map_always(NULL);
    return 0;
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    if (!strcmp(which, "waits")) return fork_beside(0);
    if (!strcmp(which, "spins")) return fork_beside(1);
    if (!strcmp(which, "rights")) return refused_rights();
    if (!strcmp(which, "descriptors")) return descriptors();
    if (!strcmp(which, "killed")) return killed_forks();
    if (!strcmp(which, "execs")) return execs(argc > 2 ? atoi(argv[2]) : 0);
    if (!strcmp(which, "commands")) return commands();
    if (!strcmp(which, "affinity")) return affinity();
    return 2;
}
