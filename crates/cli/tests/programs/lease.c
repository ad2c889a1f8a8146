/* Named shared memory while a pager stands still. What each does is its first argument; FILE is this machine's own, a way past far memory by which
 * one says to another how far it is.
 *
 *   make NAME         makes the object, with 1 in its first word and 0 elsewhere
 *   write NAME FILE N for 2 to N: stores the number in the first word, and then, when the store is over, in FILE
 *   see NAME FILE N   prints what it sees; then, until it sees N: reads how far the writer is, and then the word, which must not be older. Prints how
 *                     often it was
 *   hold NAME         stores 42 in the second page's first word, prints, waits for a line, prints the word
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define LEN (16 * PAGE)

static void die(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static _Atomic uint64_t *map(int fd, size_t len) {
    if (fd < 0) die("open");
    void *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED) die("mmap");
    return start;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int make = !strcmp(argv[1], "make");
    int fd = shm_open(argv[2], O_RDWR | (make ? O_CREAT | O_EXCL : 0), 0600);
    if (make && ftruncate(fd, LEN)) die("ftruncate");
    _Atomic uint64_t *word = map(fd, LEN);
    if (make) {
        atomic_store(word, 1);
        return 0;
    }
    if (!strcmp(argv[1], "hold")) {
        _Atomic uint64_t *mine = word + PAGE / sizeof *word;
        char line[16];
        atomic_store(mine, 42);
        puts("holds");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return 2;
        printf("%llu\n", (unsigned long long)atomic_load(mine));
        return 0;
    }
    if (argc < 5) return 2;
    _Atomic uint64_t *said = map(open(argv[3], O_RDWR), PAGE);
    uint64_t last = strtoull(argv[4], NULL, 10);
    if (!strcmp(argv[1], "write")) {
        for (uint64_t n = 2; n <= last; n++) {
            atomic_store(word, n);
            atomic_store(said, n);
        }
        return 0;
    }
    printf("sees %llu\n", (unsigned long long)atomic_load(word));
    fflush(stdout);
    uint64_t old = 0, seen = 0;
    while (seen < last) {
        uint64_t least = atomic_load(said);
        seen = atomic_load(word);
        old += seen < least;
    }
    printf("%llu old loads\n", (unsigned long long)old);
    return 0;
}
