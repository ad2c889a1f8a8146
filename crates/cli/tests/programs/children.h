/* What programs that fork have in common: memory whose bytes are known, and children for whom nobody waits longer than DEADLINE seconds. The
   program that includes it says LEN, the bytes of that memory. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DEADLINE = 30 };

static unsigned char *far;

static unsigned char value(size_t at) { return (unsigned char)(at * 7 + (at >> 12)); }

static int right(size_t from, size_t to) {
    for (size_t i = from; i < to; i += 61)
        if (far[i] != value(i)) return 0;
    return 1;
}

/* The status of a child; one that hangs is killed with the group that it leads, if any, and said to. */
static int end_of(pid_t child) {
    struct timespec pause = {0, 2000000};
    for (int i = 0; i < DEADLINE * 500; i++) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) return status;
        nanosleep(&pause, NULL);
    }
    puts("a child hangs");
    kill(-child, SIGKILL);
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
