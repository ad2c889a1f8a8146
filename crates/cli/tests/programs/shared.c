/* Named shared memory, one command of several that share it. What each does is its first argument.
 *
 *   make NAME N       makes the object with N counters, prints its address, waits for a line, prints the sum
 *   count NAME N      adds one N times to every counter of the object that is there: with atomics, and under a spin lock
 *   forks NAME N      as count, by four children
 *   probe NAME        what cannot be: prints each error
 *   fill NAME BYTE    writes the object full of the byte, prints, waits for a line
 *   sum NAME          prints length and sum of its bytes
 *   unlink NAME       unlinks it
 *   large NAME LEN B  makes the object of LEN bytes, writes it full of B, and unmaps it
 *   pass NAME         makes, writes and unlinks the object, and runs itself with nothing but the descriptor; that prints what was written
 *   touch NAME        prints, waits for a line, reads the first byte of each page and prints their sum
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 4096 /* eight pages */
#define PAGE 4096

struct table {
    _Atomic uint64_t lock;
    uint64_t under_lock;
    void *self;
    _Atomic uint64_t words[WORDS];
};

static void die(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void *map(int fd, size_t len, int prot) {
    void *start = mmap(NULL, len, prot, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED) die("mmap");
    return start;
}

static size_t length(int fd) {
    struct stat stat;
    if (fstat(fd, &stat)) die("fstat");
    return stat.st_size;
}

static int find(const char *name) {
    int fd = shm_open(name, O_RDWR, 0);
    if (fd < 0) die("shm_open");
    return fd;
}

static void say_and_wait(const char *what) {
    char line[16];
    printf("%s\n", what);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(3);
}

static uint64_t total(struct table *table) {
    uint64_t sum = 0;
    for (int i = 0; i < WORDS; i += 64) sum += table->words[i];
    return sum;
}

static int make(const char *name) {
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) die("shm_open");
    if (length(fd) != 0) die("length");
    if (ftruncate(fd, sizeof(struct table))) die("ftruncate");
    if (length(fd) != sizeof(struct table)) die("length");
    struct table *table = map(fd, sizeof *table, PROT_READ | PROT_WRITE);
    for (int i = 0; i < WORDS; i++)
        if (table->words[i]) die("zeros");
    table->self = table;
    say_and_wait("made");
    printf("%llu %llu\n", (unsigned long long)total(table), (unsigned long long)table->under_lock);
    return 0;
}

static void count(struct table *table, long times) {
    if (table->self != table) die("a pointer means the same everywhere");
    for (long n = 0; n < times; n++) {
        for (int i = 0; i < WORDS; i += 64) atomic_fetch_add(&table->words[i], 1);
        uint64_t free = 0;
        while (!atomic_compare_exchange_weak(&table->lock, &free, 1)) free = 0;
        table->under_lock++;
        atomic_store(&table->lock, 0);
    }
}

static struct table *there(const char *name) {
    int fd = find(name);
    if (length(fd) != sizeof(struct table)) die("length");
    struct table *table = map(fd, sizeof *table, PROT_READ | PROT_WRITE);
    close(fd);
    return table;
}

static int forks(const char *name, long times) {
    struct table *table = there(name);
    for (int child = 0; child < 4; child++) {
        pid_t pid = fork();
        if (pid < 0) die("fork");
        if (pid == 0) {
            count(table, times);
            _exit(0);
        }
    }
    for (int child = 0; child < 4; child++) {
        int status;
        if (wait(&status) < 0 || status != 0) die("a child");
    }
    return 0;
}

static void expect(const char *what, int worked) { printf("%s: %s\n", what, worked ? "no error" : strerrorname_np(errno)); }

static int probe(const char *name) {
    char none[300] = "/none";
    expect("open what is not there", shm_open(none, O_RDWR, 0) >= 0);
    expect("unlink what is not there", shm_unlink(none) == 0);
    expect("make what is there", shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) >= 0);
    expect("a name with a slash", shm_open("/a/b", O_RDWR | O_CREAT, 0600) >= 0);
    memset(none + 1, 'x', 280);
    expect("a long name", shm_open(none, O_RDWR | O_CREAT, 0600) >= 0);
    int fd = find(name);
    size_t len = length(fd);
    expect("shrink", ftruncate(fd, len - PAGE) == 0);
    expect("grow beyond its memory", ftruncate(fd, 4 * len) == 0);
    expect("more than there is", ftruncate(shm_open("/much", O_RDWR | O_CREAT, 0600), 1L << 40) == 0);
    expect("private", mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
    expect("elsewhere", mmap((void *)0x7000000, len, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
    expect("more than its memory", mmap(NULL, 8 * len, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    expect("write", write(fd, "x", 1) == 1);
    int read_only = shm_open(name, O_RDONLY, 0);
    expect("write where it is read", mmap(NULL, len, PROT_WRITE, MAP_SHARED, read_only, 0) != MAP_FAILED);
    char *twice = map(read_only, len, PROT_READ), *again = map(fd, len, PROT_READ | PROT_WRITE);
    printf("mapped twice at one address: %d\n", twice == again);
    again[7] = 1;
    char two[2] = "ab";
    struct iovec from = {two, 2}, to[2] = {{two, 1}, {again, 1}};
    expect("write past the mappings", process_vm_writev(getpid(), &from, 1, to + 1, 1, 0) >= 0);
    printf("up to there: %zd\n", process_vm_writev(getpid(), &from, 1, to, 2, 0));
    if (munmap(again, len)) die("munmap");
    printf("read after one was unmapped: %d\n", twice[7]);
    expect("unmap", munmap(twice, len) == 0);
    expect("protect what is unmapped", mprotect(twice, len, PROT_READ) == 0);
    return shm_unlink("/much");
}

static int fill(const char *name, int byte) {
    int fd = find(name);
    size_t len = length(fd);
    memset(map(fd, len, PROT_READ | PROT_WRITE), byte, len);
    say_and_wait("filled");
    return 0;
}

static int sum(const char *name) {
    int fd = find(name);
    size_t len = length(fd);
    unsigned char *bytes = map(fd, len, PROT_READ);
    unsigned long long all = 0;
    for (size_t i = 0; i < len; i++) all += bytes[i];
    printf("%zu %llu\n", len, all);
    return 0;
}

static int touch(const char *name) {
    int fd = find(name);
    size_t len = length(fd);
    unsigned char *bytes = map(fd, len, PROT_READ);
    unsigned long long all = 0;
    say_and_wait("mapped");
    for (size_t i = 0; i < len; i += PAGE) all += bytes[i];
    printf("%llu\n", all);
    return 0;
}

static int large(const char *name, size_t len, int byte) {
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, len)) die("large");
    char *start = map(fd, len, PROT_READ | PROT_WRITE);
    memset(start, byte, len);
    return munmap(start, len);
}

static int pass(const char *self, const char *name) {
    char number[16];
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, PAGE) || shm_unlink(name)) die("pass");
    *(char *)map(fd, PAGE, PROT_READ | PROT_WRITE) = 77;
    if (fcntl(fd, F_SETFD, 0)) die("fcntl");
    snprintf(number, sizeof number, "%d", fd);
    execl(self, self, "given", name, number, NULL);
    die("exec");
    return 1;
}

int main(int argc, char **argv) {
    const char *what = argv[1], *name = argv[2];
    long number = argc > 3 ? atol(argv[3]) : 0;
    if (!strcmp(what, "make")) return make(name);
    if (!strcmp(what, "count")) return count(there(name), number), 0;
    if (!strcmp(what, "forks")) return forks(name, number);
    if (!strcmp(what, "probe")) return probe(name);
    if (!strcmp(what, "fill")) return fill(name, number);
    if (!strcmp(what, "sum")) return sum(name);
    if (!strcmp(what, "touch")) return touch(name);
    if (!strcmp(what, "large")) return large(name, number, atoi(argv[4]));
    if (!strcmp(what, "pass")) return pass(argv[0], name);
    if (!strcmp(what, "given")) return printf("passed: %d\n", *(char *)map(number, PAGE, PROT_READ)) < 0;
    if (!strcmp(what, "unlink") && shm_unlink(name)) die("shm_unlink");
    return 0;
}
