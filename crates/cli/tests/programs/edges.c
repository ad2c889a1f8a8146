/* What Linux does at the edges of memory: ranges that are not mapped, advice that anonymous memory refuses, files mapped into the middle
   of it, and children that inherit all that. Prints what it sees, which is the same with far memory as without. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define LEN (4 << 20)
#define FEW 3

static unsigned char *map(void) {
    unsigned char *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(9);
    for (int i = 0; i < LEN; i++) at[i] = (unsigned char)(i * 7 + (i >> 12));
    return at;
}

static unsigned sum(const unsigned char *at, int len) {
    unsigned s = 0;
    for (int i = 0; i < len; i++) s = s * 31 + at[i];
    return s;
}

static void say(const char *what, long result) {
    printf("%s: %ld %s\n", what, result, result == -1 ? strerror(errno) : "");
}

/* What a child sees of the memory, and what its own writes do to the parent's. */
static void in_child(const char *what, unsigned char *at) {
    pid_t child = fork();
    int status;
    if (child == 0) {
        unsigned before = sum(at, LEN);
        for (int i = 0; i < LEN; i += PAGE) at[i] ^= 1;
        printf("%s, child: %u %u\n", what, before, sum(at, LEN));
            /* And its child, in turn. */
        child = fork();
        if (child == 0) _exit((int)(sum(at, LEN) % 100));
        waitpid(child, &status, 0);
        _exit(status ? (WIFEXITED(status) ? WEXITSTATUS(status) : 99) : 0);
    }
    waitpid(child, &status, 0);
    printf("%s: %x %u\n", what, status, sum(at, LEN));
}

static void unmapped(void) {
    unsigned char *at = map();
    say("munmap", munmap(at + LEN / 2, LEN / 2));
    say("mprotect of nothing", mprotect(at + LEN / 2, PAGE, PROT_READ | PROT_WRITE));
    say("mprotect over the end", mprotect(at + LEN / 2 - PAGE, 2 * PAGE, PROT_READ));
    say("mprotect of a strange kind", mprotect(at, PAGE, 0x4000));
    say("mprotect, not at a page", mprotect(at + 1, PAGE, PROT_READ));
    say("madvise of nothing", madvise(at + LEN / 2, PAGE, MADV_DONTNEED));
    say("madvise over the end", madvise(at + LEN / 2 - 2 * PAGE, 4 * PAGE, MADV_DONTNEED));
    say("mremap of nothing", mremap(at + LEN / 2, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED ? -1 : 0);
    say("mmap, not at a page of nothing", mmap(NULL, LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1) == MAP_FAILED ? -1 : 0);
    say("mmap of no file over it", mmap(at, LEN / 4, PROT_READ, MAP_PRIVATE | MAP_FIXED, 999, 0) == MAP_FAILED ? -1 : 0);
    say("mmap, not at a page", mmap(at + 1, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0);
    printf("%u\n", sum(at, LEN / 2));
    int file = open("/dev/zero", O_RDWR), null[2];
    if (file < 0 || pipe(null)) exit(9);
    say("read to nothing", read(file, at + LEN / 2, 10));
    say("write from nothing", write(null[1], at + LEN / 2, 10));
    pid_t child = fork();
    int status;
    if (child == 0) _exit(at[LEN / 2 - PAGE]);
    waitpid(child, &status, 0);
    printf("half of it, child: %x\n", status);
    child = fork();
    if (child == 0) {
        at[LEN / 2 - 1] = 1; /* which may only be read */
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("read-only, child: %x\n", status & 0x7f);
    munmap(at, LEN / 2);
    close(file);
}

static void advice(void) {
    unsigned char *at = map();
    say("MADV_REMOVE", madvise(at, LEN / 2, MADV_REMOVE));
    printf("%u\n", sum(at, LEN));
    say("no advice at all", madvise(at, LEN / 2, 77));
    say("MADV_RANDOM", madvise(at, LEN / 2, MADV_RANDOM));
    say("MADV_DONTNEED", madvise(at + PAGE, LEN / 2, MADV_DONTNEED));
    printf("%u\n", sum(at, LEN));
    /* What was written to a private mapping of a file is the program's alone: MADV_FREE is not for it. */
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), LEN / 8)) exit(9);
    unsigned char *mapped = at + LEN / 2;
    if (mmap(mapped, LEN / 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fileno(file), 0) != mapped) exit(9);
    memset(mapped, 7, LEN / 8);
    say("MADV_FREE of a file", madvise(mapped, LEN / 8, MADV_FREE));
    say("MADV_FREE of more than a file", madvise(mapped, LEN / 4, MADV_FREE));
    printf("%u\n", sum(mapped, LEN / 8));
    say("MADV_FREE", madvise(at, LEN / 2, MADV_FREE));
    fclose(file);
    munmap(at, LEN);
}

static void guards(void) {
    unsigned char *at = map();
    /* Newer than some kernels: either it is a guard, or it was refused and changed nothing. */
    if (madvise(at + LEN / 2, PAGE, 102) != 0) {
        printf("guard: as it should be %d\n", errno == EINVAL && at[LEN / 2 + 1] == (unsigned char)((LEN / 2 + 1) * 7 + (LEN / 2 >> 12)));
    } else {
        pid_t child = fork();
        int status;
        if (child == 0) {
            at[LEN / 2] = 1;
            _exit(0);
        }
        waitpid(child, &status, 0);
        printf("guard: as it should be %d\n", WIFSIGNALED(status));
    }
    munmap(at, LEN);
}

static void between(const char *name) {
    int flags = MAP_PRIVATE | MAP_FIXED;
    unsigned char *at = map();
    int file = open(name, O_RDONLY);
    if (mmap(at + LEN / 4, FEW * PAGE, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED) exit(8);
    in_child("a file in the middle", at);
    if (mmap(at, PAGE, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED) exit(8);
    if (mmap(at + LEN - PAGE, PAGE, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED) exit(8);
    in_child("and at both ends", at);
    unsigned char *code = mmap(at + LEN / 2, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, flags | MAP_ANONYMOUS, -1, 0);
    code[0] = 1;
    in_child("and code", at);
    munmap(at + LEN / 4, FEW * PAGE);
    if (mmap(at + LEN / 4, FEW * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) exit(8);
    in_child("and zeros again", at);
    munmap(at, LEN);
    at = map();
    in_child("and what came later", at);
    munmap(at, LEN);
    close(file);
}

/* More bytes than may be here, to and from a file without the system's cache. */
static void direct(const char *beside) {
    char name[4096];
    snprintf(name, sizeof name, "%s.direct", beside);
    unsigned char *from = map(), *to = map();
    memset(to, 0, LEN);
    int flags[] = {O_DIRECT, 0};
    for (int i = 0; i < 2; i++) {
        int file = open(name, O_RDWR | O_CREAT | O_TRUNC | flags[i], 0600);
        if (file < 0) file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600); /* not every file system has it */
        int other = openat(AT_FDCWD, name, O_RDONLY);
        if (fcntl(other, F_SETFL, flags[1 - i]) != 0) fcntl(other, F_SETFL, 0);
        say("direct write", pwrite(file, from, LEN, 0));
        say("direct read", pread(other, to, LEN, 0));
        printf("%d\n", memcmp(from, to, LEN) == 0);
        memset(to, 0, LEN);
        say("direct read", pread(file, to, LEN, 0));
        printf("%d\n", memcmp(from, to, LEN) == 0);
        close(file);
        close(other);
        from[LEN / 2]++;
    }
    unlink(name);
    munmap(from, LEN);
    munmap(to, LEN);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IONBF, 0);
    unmapped();
    advice();
    guards();
    between(argv[argc - 1]); /* a file: itself */
    direct(argv[argc - 1]);
    return 0;
}
