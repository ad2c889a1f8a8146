/* Signals whose handlers run on a stack in far memory and write far memory; touches that must end in SIGSEGV; then a death by signal. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { LEN = 8 << 20, STACK = 256 << 10 };

static unsigned char *far;
static volatile sig_atomic_t ticks;
static sigjmp_buf back;

static void tick(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    volatile unsigned char local[8192];
    memset((void *)local, ticks, sizeof local);
    far[(size_t)ticks * 4096 % LEN] = local[100]; /* often a page that is not here */
    ticks++;
}

static void fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    siglongjmp(back, 1);
}

static int faults(volatile unsigned char *at) {
    if (sigsetjmp(back, 1)) return 1;
    *at = 1;
    return 0;
}

int main(void) {
    far = malloc(LEN);
    stack_t stack = {.ss_sp = malloc(STACK), .ss_size = STACK};
    if (sigaltstack(&stack, NULL)) return 2;
    struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &every, NULL);
    uint64_t wrong = 0;
    for (int round = 0; round < 6 || ticks < 100; round++) {
        for (size_t i = 1; i < LEN; i += 2) far[i] = (unsigned char)(i * 7 + (size_t)round);
        for (size_t i = 1; i < LEN; i += 2) wrong += far[i] != (unsigned char)(i * 7 + (size_t)round);
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%llu wrong\n", (unsigned long long)wrong);

    action.sa_sigaction = fault;
    sigaction(SIGSEGV, &action, NULL);
    unsigned char *gone = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("mapped: %d\n", faults(gone + 5000));
    mprotect(gone, LEN, PROT_READ);
    printf("read-only: %d\n", faults(gone + 5000));
    munmap(gone, LEN);
    printf("unmapped: %d\n", faults(gone + 5000));
    fflush(stdout);
    kill(getpid(), SIGUSR2);
    return 0;
}
