/* A program that drops root and forks children, which fork in turn: each finds the memory as it was, and allocates its own. Nobody waits
   longer than DEADLINE for a child. Prints how many did well. With "exec" it is a program without root from its beginning that forks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LEN = 4 << 20, ROUNDS = 40, NOBODY = 65534 };

#include "children.h"

static int child(int depth) {
    if (!allocates() || !right(0, LEN)) return 1;
    if (depth == 0) return 0;
    pid_t grandchild = fork();
    if (grandchild == 0) _exit(child(depth - 1));
    return end_of(grandchild) == 0 ? 0 : 2;
}

static void *idle(void *arg) {
    for (;;) pause();
    return arg;
}

int main(int argc, char **argv) {
    far = malloc(LEN);
    for (size_t i = 0; i < LEN; i++) far[i] = value(i);
    pthread_t thread;
    if (argc > 1 && strcmp(argv[1], "thread") == 0) pthread_create(&thread, NULL, idle, NULL);
    if (setgid(NOBODY) || setuid(NOBODY)) return 2;
    if (argc > 1 && strcmp(argv[1], "exec") == 0) execl("/proc/self/exe", argv[0], NULL);
    int good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(child(i % 4 == 0));
        int status = end_of(pid);
        if (status != 0) {
            printf("child %d: status %x\n", i, status);
            return 1;
        }
        good++;
    }
    printf("%d children of %d\n", good, (int)getuid());
    return 0;
}
