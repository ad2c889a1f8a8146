// Calls whose effects reach past the page cache, before the first large mapping: a ring, and a file with O_DIRECT. Then a mapping, which a run keeps
// far. Takes the path of a file.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RING_SETUP 425
#define PAGES 1024
#define PAGE 4096

int main(int count, char **arguments) {
    char parameters[120] = {0};
    int ring = syscall(RING_SETUP, 8, parameters) < 0 ? errno : 0;
    int direct = count < 2 || open(arguments[1], O_RDONLY | O_DIRECT) < 0 ? errno : 0;
    int file = open(arguments[1], O_RDONLY);
    int set = fcntl(file, F_SETFL, O_DIRECT) < 0 ? errno : 0;
    char *block = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int wrong = block == MAP_FAILED;
    for (long page = 0; page < PAGES && !wrong; page++)
        block[page * PAGE] = (char)page;
    for (long page = 0; page < PAGES && block != MAP_FAILED; page++)
        wrong += block[page * PAGE] != (char)page;
    printf("ring %d, direct %d, set %d, %d wrong\n", ring, direct, set, wrong);
    return 0;
}
