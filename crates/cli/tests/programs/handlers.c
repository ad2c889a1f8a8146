/* A handler that interrupts malloc and free, and forks. The child allocates, frees what its parent had, and ends; or returns from the handler and
   goes on with what was interrupted. Nobody hangs: a process beside kills this one when it has not ended in time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 400, FORKS = 150, DEADLINE = 50, SPARE = 64 };

static unsigned char *blocks[BLOCKS];
static size_t lens[BLOCKS];
static unsigned char *spare[SPARE]; /* for handlers to free */
static volatile sig_atomic_t forks, is_child, steps_of_child;
static volatile sig_atomic_t wrong;

static unsigned next(unsigned *seed) { return (*seed = *seed * 1103515245 + 12345) >> 8; }

static void step(unsigned *seed) {
    unsigned at = next(seed) % BLOCKS;
    for (size_t i = 0; i < lens[at]; i += 97)
        if (blocks[at][i] != (unsigned char)at) wrong++;
    size_t len = next(seed) % 3000;
    if (next(seed) % 300 == 0) len = 200000;
    if (next(seed) % 2) {
        free(blocks[at]);
        blocks[at] = malloc(len + 1);
    } else {
        blocks[at] = realloc(blocks[at], len + 1);
    }
    if (!blocks[at]) _exit(7);
    lens[at] = len + 1;
    memset(blocks[at], (int)at, lens[at]);
}

/* What a child does in the handler: malloc of a program must not hang, and what it gives is the child's. */
static void allocate(void) {
    unsigned char *own[100];
    for (int i = 0; i < 100; i++) {
        size_t len = (size_t)(i + 1) * 29;
        if (!(own[i] = malloc(len))) _exit(8);
        memset(own[i], i, len);
    }
    for (int i = 0; i < SPARE; i++) free(spare[i]);
    for (int i = 0; i < 100; i++) {
        if (own[i][0] != i || own[i][(i + 1) * 29 - 1] != i) _exit(9);
        free(own[i]);
    }
    unsigned char *large = malloc(300000);
    memset(large, 1, 300000);
    free(large);
}

static void tick(int signal) {
    (void)signal;
    if (is_child || forks == FORKS) return;
    pid_t child = fork();
    if (child == 0) {
        is_child = 1;
        if (forks % 2) {
            allocate();
            _exit(0);
        }
        if (forks % 4) allocate();
        return; /* into what was interrupted */
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) _exit(3);
    if (status != 0) {
        printf("child %d: status %x\n", (int)forks, status);
        fflush(stdout);
        _exit(4);
    }
    forks++;
}

static atomic_int over;

static void *beside(void *arg) {
    unsigned seed = 7;
    while (!atomic_load(&over)) {
        unsigned char *block = malloc(next(&seed) % 2000 + 1);
        block[0] = 1;
        free(block);
    }
    return arg;
}

int main(int argc, char **argv) {
    pid_t main_one = getpid(), watch = fork();
    if (watch == 0) {
        for (int i = 0; i < DEADLINE * 10; i++) {
            usleep(100000);
            if (getppid() != main_one) _exit(0);
        }
        kill(-main_one, SIGKILL);
        _exit(0);
    }
    setpgid(0, 0);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(lens[i] = 1);
        blocks[i][0] = (unsigned char)i;
    }
    for (int i = 0; i < SPARE; i++) spare[i] = malloc((size_t)i * 50 + 1);
    pthread_t thread;
    int threads = argc > 1 && strcmp(argv[1], "thread") == 0;
    sigset_t set;
    sigfillset(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (threads) pthread_create(&thread, NULL, beside, NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 700}, {0, 700}};
    setitimer(ITIMER_REAL, &every, NULL);
    unsigned seed = 1;
    while (forks < FORKS) {
        step(&seed);
        if (is_child && ++steps_of_child == 300) _exit(wrong ? 5 : 0);
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    atomic_store(&over, 1);
    if (threads) pthread_join(thread, NULL);
    kill(watch, SIGKILL);
    waitpid(watch, NULL, 0);
    printf("%d forks, %d wrong\n", (int)forks, (int)wrong);
    return 0;
}
