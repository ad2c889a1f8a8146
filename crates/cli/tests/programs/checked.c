/* A program under AddressSanitizer: large memory of its own, and a block that it reads beyond when it is asked to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char **arguments) {
    enum { LEN = 8 << 20 };
    unsigned char *at = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long sum = 0;
    for (int i = 0; i < LEN; i += 4096) at[i] = (unsigned char)(i >> 12);
    for (int i = 0; i < LEN; i += 4096) sum += at[i];
    char *block = malloc(200000);
    memset(block, 3, 200000);
    printf("%lu %d\n", sum, block[199999]);
    fflush(stdout);
    int beyond = count > 1 && strcmp(arguments[1], "beyond") == 0 ? block[200003] : 0;
    free(block);
    return beyond & 1;
}
