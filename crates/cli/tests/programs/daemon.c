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

enum { LEN = 4 << 20, ROUNDS = 40, NOBODY = 65534, DEADLINE = 30 };

static unsigned char *far;

static unsigned char value(size_t at) { return (unsigned char)(at * 7 + (at >> 12)); }

static int right(void) {
    for (size_t i = 0; i < LEN; i += 61)
        if (far[i] != value(i)) return 0;
    return 1;
}

/* The status of a child; one that hangs is killed, and has the status of that. */
static int end_of(pid_t child) {
    struct timespec pause = {0, 2000000};
    for (int i = 0; i < DEADLINE * 500; i++) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) return status;
        nanosleep(&pause, NULL);
    }
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    return status;
}

static int allocates(void) {
    for (size_t len = 16; len <= 1 << 20; len *= 4) {
        unsigned char *block = malloc(len);
        if (!block) return 0;
        memset(block, 3, len);
        if (block[len - 1] != 3) return 0;
        free(block);
    }
    return 1;
}

static int child(int depth) {
    if (!allocates() || !right()) return 1;
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
