/* Writes more than may be here, waits for SIGUSR1, and reads all of it. Says so only if every word is right. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = 1 << 20 };

static void told(int signal) { (void)signal; }

int main(void) {
    uint64_t *words = malloc(WORDS * sizeof *words);
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, &before);
    signal(SIGUSR1, told);
    for (size_t i = 0; i < WORDS; i++) words[i] = i * 31 + 7;
    if (write(1, "written\n", 8) != 8) return 1;
    sigsuspend(&before);
    uint64_t wrong = 0;
    for (size_t i = 0; i < WORDS; i++) wrong += words[i] != i * 31 + 7;
    printf("read: %llu wrong\n", (unsigned long long)wrong);
    return wrong != 0;
}
