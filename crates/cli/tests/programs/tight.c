/* Programs that leave themselves little and fork: without descriptors, without system calls, in another network, past the handlers of
   fork, with memory that a child is not to have. Each child finds the memory as it was. Nobody waits longer than DEADLINE for a child. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LEN = 4 << 20, PAGE = 4096, ROUNDS = 10 };

#include "children.h"

/* Does to `count` system calls what a filter can. */
static int filter(unsigned verdict, const int *numbers, int count) {
    struct sock_filter code[16] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int at = 1;
    for (int i = 0; i < count; i++)
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], count - i, 0);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict);
    struct sock_fprog program = {at, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* A child that forks again: what it finds, as the status of its end. */
static int child(pid_t (*with)(void), int depth) {
    if (!right(0, LEN)) return 1;
    if (!allocates()) return 2;
    far[0]++;
    if (far[0] != (unsigned char)(value(0) + 1)) return 3;
    far[0]--;
    if (depth == 0) return 0;
    pid_t grandchild = with();
    if (grandchild == 0) _exit(child(with, depth - 1));
    return end_of(grandchild) == 0 ? 0 : 4;
}

static void children(pid_t (*with)(void)) {
    for (int i = 0; i < ROUNDS; i++) {
        pid_t pid = with();
        if (pid == 0) _exit(child(with, 1));
        if (pid < 0) printf("no child: %s\n", strerror(errno));
        int status = pid < 0 ? -1 : end_of(pid);
        if (status != 0) printf("child %d: status %x\n", i, status);
    }
    printf("%d children, and here %s\n", ROUNDS, right(0, LEN) ? "right" : "wrong");
}

/* A filter refuses what a child needs for its far memory, and all ways to kill itself. The process that waits for it can kill nobody either, so
   this one waits for both. */
static void denied(void) {
    const int numbers[] = {SYS_kill, SYS_tkill, SYS_tgkill, SYS_userfaultfd, SYS_openat, SYS_ioctl};
    pid_t between = fork();
    if (between == 0) {
        setpgid(0, 0);
        if (filter(SECCOMP_RET_ERRNO | EPERM, numbers, 6)) _exit(2);
        pid_t pid = fork();
        if (pid == 0) _exit(right(0, LEN) ? 0 : 1);
        int status;
        waitpid(pid, &status, 0);
        printf("exited %d, killed %d, status %d\n", WIFEXITED(status), WIFSIGNALED(status), WEXITSTATUS(status));
        fflush(stdout);
        _exit(0);
    }
    printf("waited: %x\n", end_of(between));
}

/* A filter that ends a program which asks for random numbers, as this one does not. */
static void strict(void) {
    const int numbers[] = {SYS_getrandom};
    if (filter(SECCOMP_RET_KILL_PROCESS, numbers, 1)) return perror("filter");
    children(fork);
}

/* Fewer and fewer descriptors can be opened, in the end none; what is open is open in children. */
static void full(int also) {
    int ends[2];
    if (also && (pipe(ends) || write(ends[1], "12345678901234567890", 20) != 20)) return perror("pipe");
    int next = dup(0);
    close(next);
    for (int left = 4; left >= 0; left--) {
        struct rlimit limit = {next + left, next + left};
        if (setrlimit(RLIMIT_NOFILE, &limit)) return perror("setrlimit");
        children(fork);
    }
    for (int i = 0; also && i < 3; i++) {
        pid_t pid = fork();
        char byte = 0;
        if (pid == 0) {
            int good = right(0, LEN) && read(ends[0], &byte, 1) == 1 && byte == '1' + i;
            _exit(good && dup(0) < 0 && errno == EMFILE && fcntl(2, F_GETFD) >= 0 ? 0 : 1);
        }
        printf("a child reads a pipe: %x\n", end_of(pid));
    }
    printf("another descriptor: %s\n", dup(0) < 0 ? strerror(errno) : "had");
}

/* In a network namespace of its own, where no socket has the name that one outside has. */
static void network(const char *self) {
    if (unshare(CLONE_NEWNET)) return perror("unshare");
    children(fork);
    fflush(stdout);
    execl("/proc/self/exe", self, "after", NULL);
}

/* Touches a byte in a child; answers the signal that this ends in, or 0. */
static int touched(size_t at) {
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(((volatile unsigned char *)far)[at] != value(at));
    }
    int status = end_of(pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static int advise_past(void *at, size_t len, int advice) { return (int)syscall(SYS_madvise, at, len, advice); }

/* Memory that a child is not to have, by `with`; and that it is to have again. */
static void kept(int (*with)(void *, size_t, int)) {
    unsigned char *first = far;
    far = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < LEN; i++) far[i] = value(i);
    size_t from = LEN / 4, to = LEN / 2;
    printf("kept: %d\n", with(far + from, to - from, MADV_DONTFORK));
    printf("touched: %d %d %d %d\n", touched(from - 1), touched(from), touched(to - 1), touched(to));
    /* It is this process's all the same, whatever else becomes of it. */
    printf("here: %d\n", right(0, LEN));
    printf("rights: %d\n", mprotect(far + from, PAGE, PROT_READ) || mprotect(far + from, PAGE, PROT_READ | PROT_WRITE));
    printf("touched: %d %d\n", touched(from), touched(from + PAGE));
    pid_t pid = fork();
    if (pid == 0) {
        /* A grandchild has as little, and new memory is nobody's old one. */
        if (touched(from) != SIGSEGV || touched(0) != 0) _exit(1);
        for (int i = 0; i < 8; i++) {
            unsigned char *block = mmap(NULL, LEN / 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t j = 0; j < LEN / 8; j += PAGE)
                if (block[j]++) _exit(2);
        }
        _exit(right(0, from) && right(to, LEN) ? 0 : 3);
    }
    printf("a child: %x\n", end_of(pid));
    printf("again: %d\n", with(far + from, (to - from) / 2, MADV_DOFORK));
    printf("touched: %d %d\n", touched(from), touched(to - 1));
    printf("unaligned: %d\n", with(far + 1, PAGE, MADV_DONTFORK) != 0);
    munmap(far, LEN);
    printf("unmapped: %d\n", with(far, LEN, MADV_DONTFORK) != 0);
    far = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < LEN; i++) far[i] = value(i);
    printf("anew: %d\n", touched(from));
    far = first;
    children(fork);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    far = malloc(LEN);
    for (size_t i = 0; i < LEN; i++) far[i] = value(i);
    if (strcmp(what, "denied") == 0) denied();
    if (strcmp(what, "strict") == 0) strict();
    if (strcmp(what, "full") == 0) full(0);
    if (strcmp(what, "full-with-a-pipe") == 0) full(1);
    if (strcmp(what, "network") == 0) network(argv[0]);
    if (strcmp(what, "after") == 0) children(fork);
    if (strcmp(what, "plain") == 0) children(_Fork);
    if (strcmp(what, "kept") == 0) kept(madvise);
    if (strcmp(what, "kept-past-libc") == 0) kept(advise_past);
    return 0;
}
