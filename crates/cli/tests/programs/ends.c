/* Writes more than may be here, waits for SIGUSR1, writes some pages more, and ends at once. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 512, MORE = 24 };

static void told(int signal) { (void)signal; }

int main(void) {
    char *pages = malloc((PAGES + MORE) * (size_t)PAGE);
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, &before);
    signal(SIGUSR1, told);
    memset(pages, 1, PAGES * (size_t)PAGE);
    if (write(1, "written\n", 8) != 8) return 1;
    sigsuspend(&before);
    memset(pages + PAGES * (size_t)PAGE, 1, MORE * (size_t)PAGE);
    _exit(0);
}
