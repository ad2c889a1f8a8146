/* Writes so many MiB, a page after the other or, with a third word, here and there; then reads all of it so many times, one word of each page. Says so
 * only if every word is right. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    if (count < 3) return 2;
    size_t len = strtoul(words[1], NULL, 10) << 20, rounds = strtoul(words[2], NULL, 10), wrong = 0;
    char *all = malloc(len);
    size_t step = count > 3 ? 5003 : 1, pages = len / 4096; /* a prime: each page once */
    for (size_t n = 0; n < pages; n++) {
        size_t at = n * step % pages * 4096;
        *(uint64_t *)(all + at) = at * 31 + 7;
    }
    for (size_t round = 0; round < rounds; round++)
        for (size_t at = 0; at < len; at += 4096) wrong += *(volatile uint64_t *)(all + at) != at * 31 + 7;
    printf("%zu wrong\n", wrong);
    return wrong != 0;
}
