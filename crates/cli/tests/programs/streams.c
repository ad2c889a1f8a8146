/* Goes through 8 MiB four times, the way that its argument says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 2048
#define WORDS 512 /* of a page */

int main(int argc, char **argv) {
    unsigned long *words = malloc(PAGES * WORDS * sizeof *words), sum = 0;
    for (long i = 0; i < PAGES * WORDS; i++) words[i] = i;
    for (int n = 0; n < 4; n++) {
        if (!strcmp(argv[1], "up"))
            for (long i = 0; i < PAGES * WORDS; i++) sum += words[i] * (n + 1);
        if (!strcmp(argv[1], "down"))
            for (long i = PAGES * WORDS; i-- > 0;) sum += words[i] * (n + 1);
    }
    printf("%lu\n", sum);
    return argc != 2;
}
