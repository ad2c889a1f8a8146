/* A child that has its parent's memory (clone with CLONE_VM) goes on with it when the parent has ended, runs another program, or is killed
   with its pager. Prints how many pages are wrong then. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1024 };

static uint64_t *far;
static char stack[1 << 16] __attribute__((aligned(16)));
static int answer[2], alive[2];

/* Uses nothing of libc's that a parent with the same thread record could have in use. */
static int goes_on(void *waits) {
    char byte;
    close(alive[1]);
    /* Until the parent has closed its end: it has ended, or runs another program. */
    while (read(alive[0], &byte, 1) > 0) {}
    if (waits) for (;;) (void)*(volatile uint64_t *)(far + 7 * PAGE / 8);
    uint64_t wrong = 0;
    for (int round = 0; round < 2; round++)
        for (uint64_t page = 0; page < PAGES; page++) {
            uint64_t *at = far + page * PAGE / 8;
            wrong += at[0] != page + 1 + (uint64_t)round || at[511] != page + 1;
            at[0]++;
        }
    write(answer[1], &wrong, sizeof wrong);
    return 0;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "ends";
    if (strcmp(how, "nothing") == 0) return 0;
    /* A process that prints what the child finds: the child itself has the memory of one that has ended. */
    if (pipe(answer) != 0 || pipe2(alive, O_CLOEXEC) != 0) return 2;
    pid_t pid = fork();
    if (pid == 0) {
        uint64_t wrong = UINT64_MAX;
        close(answer[1]);
        close(alive[0]);
        close(alive[1]);
        if (read(answer[0], &wrong, sizeof wrong) != sizeof wrong) return 3;
        printf("%lu wrong\n", (unsigned long)wrong);
        return 0;
    }
    far = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t page = 0; page < PAGES; page++) far[page * PAGE / 8] = far[page * PAGE / 8 + 511] = page + 1;
    pid_t child = clone(goes_on, stack + sizeof stack, CLONE_VM | SIGCHLD, strcmp(how, "waits") == 0 ? (void *)how : NULL);
    if (child < 0) return 4;
    if (strcmp(how, "waits") == 0) {
        dprintf(1, "%d\n", (int)child);
        close(alive[1]);
        for (;;) pause();
    }
    close(answer[1]);
    if (strcmp(how, "execs") == 0) {
        char *arguments[] = {"sharer", "nothing", NULL};
        execv("/proc/self/exe", arguments);
    }
    _exit(0);
}
