/* Processes that fork and go on writing. Every word of each is what it wrote itself, or what its parent had when it forked. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1 << 18, CHILDREN = 3, DEPTH = 3, PAGE_WORDS = 512 };

static uint64_t *words;
static char *small[1000];
static atomic_int stop;
static _Atomic uint64_t *beat;

static uint64_t value(uint64_t who, size_t at) { return who * 0x9e3779b97f4a7c15ull + at; }

static void check(const char *what, const uint64_t *who) {
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != value(who[i / PAGE_WORDS], i)) {
            printf("%s: word %zu is %llx\n", what, i, (unsigned long long)words[i]);
            _exit(1);
        }
}

/* Who wrote each page last is kept in memory that is never far. */
static uint64_t who[WORDS / PAGE_WORDS];

static void write_some(uint64_t me, unsigned seed, unsigned every) {
    for (size_t page = 0; page < WORDS / PAGE_WORDS; page++) {
        seed = seed * 1103515245 + 12345;
        if ((seed >> 16) % every) continue;
        who[page] = me;
        for (size_t i = page * PAGE_WORDS; i < (page + 1) * PAGE_WORDS; i++) words[i] = value(me, i);
    }
}

static void family(uint64_t me, int depth) {
    pid_t children[CHILDREN];
    for (int c = 0; c < CHILDREN; c++) {
        children[c] = fork();
        if (children[c] == 0) {
            uint64_t mine = me * 10 + (uint64_t)c + 1;
            check("a child at once", who);
            for (int i = 0; i < 1000; i++)
                if (atoi(small[i]) != i) _exit(2);
            write_some(mine, (unsigned)mine, 3);
            check("a child after it wrote", who);
            if (depth > 1) family(mine, depth - 1);
            check("a child at its end", who);
            _exit(0);
        }
        write_some(me, (unsigned)(me + (uint64_t)c), 4);
        check("a parent after it wrote", who);
    }
    for (int c = 0; c < CHILDREN; c++) {
        int status;
        waitpid(children[c], &status, 0);
        if (status != 0) {
            printf("child %d of %llu: status %x\n", c, (unsigned long long)me, status);
            _exit(3);
        }
    }
    check("a parent at its end", who);
}

/* While the main thread forks, this one writes pairs: no child may see half of one. */
static void *beater(void *arg) {
    (void)arg;
    for (uint64_t n = 1; !atomic_load(&stop); n++) {
        atomic_store(&beat[0], n);
        atomic_store(&beat[PAGE_WORDS * 9], n);
    }
    return NULL;
}

int main(void) {
    words = malloc(WORDS * sizeof *words);
    for (int i = 0; i < 1000; i++) {
        small[i] = malloc(16 + (size_t)i % 400);
        sprintf(small[i], "%d", i);
    }
    write_some(1, 1, 1);
    family(1, DEPTH);
    puts("families: right");

    beat = calloc(PAGE_WORDS * 64, sizeof *beat);
    FILE *file = fopen("/dev/null", "w"); /* libc goes through its open files after a fork */
    pthread_t thread;
    pthread_create(&thread, NULL, beater, NULL);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            uint64_t first = atomic_load(&beat[0]), second = atomic_load(&beat[PAGE_WORDS * 9]);
            char *again = malloc(100000);
            memset(again, 1, 100000);
            _exit(first == second || first == second + 1 ? 0 : 4);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0) {
            printf("fork %d beside a thread: status %x\n", i, status);
            return 1;
        }
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    fclose(file);
    puts("forks beside a thread: right");
    return 0;
}
