/* System calls that pass libc by: what each made of memory is what the program finds there afterwards, or the call was refused and all is as
   it was. Prints what it finds; what Linux has a choice in (to refuse) is not printed as an error. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
#define PAGES 512L
#define LEN (PAGES * PAGE)
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

/* The bytes are the instruction, so neither libc nor a library before it sees the call. */
static long raw(long n, long a, long b, long c, long d, long e, long f) {
    long result;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    return result;
}

static unsigned char *map(long len) {
    unsigned char *at = mmap(NULL, len, READ_WRITE, PRIVATE, -1, 0);
    if (at == MAP_FAILED) exit(9);
    return at;
}

static unsigned char is(long page, long salt) { return (unsigned char)(1 + (page * 7 + salt) % 251); }

static unsigned char *filled(long salt) {
    unsigned char *at = map(LEN);
    for (long page = 0; page < PAGES; page++) memset(at + page * PAGE, is(page, salt), PAGE);
    return at;
}

/* Bytes that are not what was written. */
static long wrong(const unsigned char *at, long first, long end, long salt) {
    long n = 0;
    for (long page = first; page < end; page++)
        for (long i = 0; i < PAGE; i++) n += at[page * PAGE + i] != is(page, salt);
    return n;
}

static long not_zero(const unsigned char *at, long first, long end) {
    long n = 0;
    for (long i = first * PAGE; i < end * PAGE; i++) n += at[i] != 0;
    return n;
}

/* How a child ends that does this: its exit code, or the signal negated. */
static int child(void (*does)(unsigned char *), unsigned char *at) {
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        does(at);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void writes(unsigned char *at) { *(volatile unsigned char *)at = 1; }
static void reads(unsigned char *at) { (void)*(volatile unsigned char *)at; }

static void dropped(void) {
    unsigned char *at = filled(1);
    long result = raw(SYS_madvise, (long)(at + 10 * PAGE), 100 * PAGE, MADV_DONTNEED, 0, 0, 0);
    printf("madvise: %ld, %ld not zero, %ld wrong\n", result, not_zero(at, 10, 110),
           wrong(at, 0, 10, 1) + wrong(at, 110, PAGES, 1));
    /* What a whole system would refuse is refused. */
    printf("not at a page: %ld\n", raw(SYS_madvise, (long)(at + 1), PAGE, MADV_DONTNEED, 0, 0, 0));
    raw(SYS_mmap, (long)(at + 400 * PAGE), PAGE, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0);
    memset(at + 400 * PAGE, is(400, 1), PAGE);
    result = raw(SYS_madvise, (long)(at + 350 * PAGE), 100 * PAGE, MADV_FREE, 0, 0, 0);
    printf("MADV_FREE: %s\n", result == 0 || wrong(at, 350, 450, 1) == 0 ? "as it says" : "not as it says");
    int itself = (int)raw(SYS_pidfd_open, getpid(), 0, 0, 0, 0, 0);
    struct iovec part = {at + 200 * PAGE, 100 * PAGE};
    result = raw(SYS_process_madvise, itself, (long)&part, 1, MADV_DONTNEED, 0, 0);
    long kept = wrong(at, 200, 300, 1), zeros = not_zero(at, 200, 300);
    printf("process_madvise: %s\n", (result < 0 && kept == 0) || (result > 0 && zeros == 0) ? "as it says" : "not as it says");
}

static void replaced(void) {
    unsigned char *at = filled(2);
    long there = raw(SYS_mmap, (long)(at + 64 * PAGE), 64 * PAGE, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0);
    printf("mmap: %d, %ld not zero, %ld wrong\n", there == (long)(at + 64 * PAGE), not_zero(at, 64, 128),
           wrong(at, 0, 64, 2) + wrong(at, 128, PAGES, 2));
    memset(at + 64 * PAGE, 0xee, 64 * PAGE);
    printf("a child reads it: %d\n", child(reads, at + 64 * PAGE));
    munmap(at, LEN);
    long stale = 0;
    for (int i = 0; i < 8; i++) {
        unsigned char *next = map(LEN);
        stale += not_zero(next, 0, PAGES);
        memset(next, 0xdd, LEN);
    }
    printf("new mappings: %ld not zero\n", stale);
}

static void unmapped(void) {
    unsigned char *at = filled(3);
    long result = raw(SYS_munmap, (long)(at + 64 * PAGE), 64 * PAGE, 0, 0, 0, 0);
    printf("munmap: %ld, %ld wrong\n", result, wrong(at, 0, 64, 3) + wrong(at, 128, PAGES, 3));
    printf("a child reads it: %d\n", child(reads, at + 64 * PAGE));
    long stale = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char *next = map(LEN);
        stale += not_zero(next, 0, PAGES);
        memset(next, 0xdd, LEN);
    }
    munmap(at, LEN);
    for (int i = 0; i < 4; i++) {
        unsigned char *next = map(LEN);
        stale += not_zero(next, 0, PAGES);
        memset(next, 0xdd, LEN);
    }
    printf("new mappings: %ld not zero\n", stale);
}

/* A mapping that the system refuses leaves what was there. */
static void not_replaced(void) {
    unsigned char *at = filled(4);
    long result = raw(SYS_mmap, (long)at, LEN, READ_WRITE, MAP_PRIVATE | MAP_FIXED, 999, 0);
    printf("mmap of no file: %ld, %ld wrong\n", result, wrong(at, 0, PAGES, 4));
    unsigned char *other = filled(5);
    (void)other;
    printf("and later: %ld wrong\n", wrong(at, 0, PAGES, 4));
    munmap(at, LEN);
    unsigned char *next = map(LEN);
    printf("new mapping: %ld not zero\n", not_zero(next, 0, PAGES));
}

static void protected(void) {
    unsigned char *at = filled(6);
    printf("mprotect: %ld\n", raw(SYS_mprotect, (long)at, LEN / 2, PROT_READ, 0, 0, 0));
    printf("a child writes: %d\n", child(writes, at + 10 * PAGE));
    printf("a child reads: %d\n", child(reads, at + 10 * PAGE));
    printf("behind it: %d\n", child(writes, at + LEN / 2));
    printf("pkey_mprotect: %ld\n", raw(SYS_pkey_mprotect, (long)at, LEN, PROT_NONE, -1, 0, 0));
    printf("a child reads: %d\n", child(reads, at + 10 * PAGE));
    mprotect(at, LEN, PROT_READ);
    printf("again: %ld\n", raw(SYS_mprotect, (long)at, LEN, READ_WRITE, 0, 0, 0));
    printf("a child writes: %d\n", child(writes, at + 10 * PAGE));
    writes(at);
    at[0] = is(0, 6);
    printf("%ld wrong\n", wrong(at, 0, PAGES, 6));
    munmap(at + LEN / 2, LEN / 2);
    printf("over the end: %ld\n", raw(SYS_mprotect, (long)at, LEN, READ_WRITE, 0, 0, 0));
}

static void moved(void) {
    unsigned char *at = filled(7);
    long there = raw(SYS_mremap, (long)at, LEN, 2 * LEN, MREMAP_MAYMOVE, 0, 0);
    unsigned char *now = there > 0 || there < -4095 ? (unsigned char *)there : at;
    printf("mremap: %ld wrong\n", wrong(now, 0, PAGES, 7));
    at = filled(8);
    there = raw(SYS_mremap, (long)at, LEN, LEN / 2, 0, 0, 0);
    printf("shrunk: %d, %ld wrong\n", there == (long)at, wrong(at, 0, PAGES / 2, 8));
    printf("a child reads behind it: %d\n", child(reads, at + LEN / 2));
    /* Local memory to the place of far memory. */
    unsigned char *local = (unsigned char *)raw(SYS_mmap, 0, 4 * PAGE, READ_WRITE, PRIVATE, -1, 0);
    memset(local, 0x55, 4 * PAGE);
    there = raw(SYS_mremap, (long)local, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (long)(at + 8 * PAGE), 0);
    long differ = 0;
    for (long i = 0; i < 4 * PAGE; i++) differ += at[8 * PAGE + i] != 0x55;
    printf("onto it: %d, %ld differ\n", there == (long)(at + 8 * PAGE), differ);
    munmap(at, LEN / 2);
    unsigned char *next = map(LEN);
    printf("new mapping: %ld not zero\n", not_zero(next, 0, PAGES));
    at = filled(9);
    there = raw(SYS_mremap, (long)at, 0, LEN, MREMAP_MAYMOVE, 0, 0);
    printf("a second mapping: %s\n", there == -EINVAL ? "refused" : "there");
    long sealed = raw(SYS_remap_file_pages, (long)at, LEN, 0, 0, 0, 0);
    printf("remap_file_pages: %s, %ld wrong\n", sealed == -EINVAL ? "refused" : "done", wrong(at, 0, PAGES, 9));
}

/* A file of more pages than may be here, read past the cache: refused, or every byte is there. */
#define FILE_PAGES 8192L
/* More than may be here: while a device writes the last, the first have gone. */
#define AT_ONCE 1024L
static void read_all(const char *what, int fd) {
    if (fd < 0) {
        printf("%s: not wrong\n", what);
        return;
    }
    long n = 0;
    unsigned char *at = map(FILE_PAGES * PAGE);
    for (int round = 0; round < 2; round++) {
        for (long done = 0; done < FILE_PAGES * PAGE;) {
            long count = raw(SYS_pread64, fd, (long)(at + done), AT_ONCE * PAGE, done, 0, 0);
            if (count <= 0) exit(8);
            done += count;
        }
        for (long page = 0; page < FILE_PAGES; page++) n += memcmp(at + page * PAGE, &(unsigned char){is(page, 10)}, 1) != 0;
    }
    munmap(at, FILE_PAGES * PAGE);
    close(fd);
    printf("%s: %s\n", what, n == 0 ? "not wrong" : "wrong");
    if (n) printf("%s: %ld pages wrong\n", what, n);
}

static void direct(const char *path) {
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    unsigned char page_of[PAGE];
    for (long page = 0; page < FILE_PAGES; page++) {
        memset(page_of, is(page, 10), PAGE);
        if (write(fd, page_of, PAGE) != PAGE) exit(7);
    }
    fsync(fd);
    close(fd);
    read_all("openat", (int)raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_DIRECT, 0, 0, 0));
    struct open_how how = {.flags = O_RDONLY | O_DIRECT};
    read_all("openat2", (int)raw(SYS_openat2, AT_FDCWD, (long)path, (long)&how, sizeof how, 0, 0));
    struct open_how *far = (struct open_how *)map(LEN);
    *far = how;
    read_all("openat2, far", (int)raw(SYS_openat2, AT_FDCWD, (long)path, (long)far, sizeof how, 0, 0));
    fd = open(path, O_RDONLY);
    (void)raw(SYS_fcntl, fd, F_SETFL, O_DIRECT, 0, 0, 0);
    read_all("fcntl", fd);
    how.flags = O_RDONLY;
    fd = (int)raw(SYS_openat2, AT_FDCWD, (long)path, (long)&how, sizeof how, 0, 0);
    printf("openat2 without it: %s\n", fd >= 0 ? "opens" : "refused");
    int packets[2];
    if (pipe2(packets, O_DIRECT) != 0) exit(6);
    printf("a pipe of packets: %ld\n", raw(SYS_fcntl, packets[0], F_SETFL, O_DIRECT | O_NONBLOCK, 0, 0, 0));
    unlink(path);
}

/* Advice that goes through a ring of io_uring: done, or there is no ring. */
static void ring(void) {
    unsigned char *at = filled(11);
    struct io_uring_params params = {0};
    int fd = (int)raw(SYS_io_uring_setup, 4, (long)&params, 0, 0, 0, 0);
    if (fd < 0) {
        printf("a ring: not wrong\n");
        return;
    }
    size_t sq_len = params.sq_off.array + params.sq_entries * 4, cq_len = params.cq_off.cqes + params.cq_entries * 16;
    char *sq = mmap(NULL, sq_len, READ_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_len, READ_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqe = mmap(NULL, PAGE, READ_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQES);
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = IORING_OP_MADVISE;
    sqe->addr = (uint64_t)(uintptr_t)at;
    sqe->len = LEN;
    sqe->fadvise_advice = MADV_DONTNEED;
    *(unsigned *)(sq + params.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (raw(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1) exit(5);
    struct io_uring_cqe *cqe = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
    printf("a ring: %s\n", cqe->res == 0 && not_zero(at, 0, PAGES) == 0 ? "not wrong" : "wrong");
}

/* A thread that takes no signal at all. */
static void *deaf(void *memory) {
    unsigned char *at = memory;
    sigset_t all;
    sigfillset(&all);
    uint64_t every = UINT64_MAX;
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&every, 0, 8, 0, 0);
    long result = raw(SYS_madvise, (long)at, LEN, MADV_DONTNEED, 0, 0, 0);
    printf("without signals: %ld, %ld not zero\n", result, not_zero(at, 0, PAGES));
    return NULL;
}

static unsigned char *of_handler;
static volatile sig_atomic_t handled;
static void handler(int signal) {
    (void)signal;
    handled++;
    raw(SYS_madvise, (long)of_handler, PAGE, MADV_DONTNEED, 0, 0, 0);
}

/* A handler that interrupts malloc, wherever that is. */
static void interrupted(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, deaf, filled(12));
    pthread_join(thread, NULL);
    struct sigaction action = {.sa_handler = handler};
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    of_handler = filled(13);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pid_t self = getpid();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        while (getppid() == self)
            if (kill(self, SIGUSR1)) break;
        _exit(0);
    }
    long n = 0;
    void *block[64] = {0};
    int i = 0;
    for (; i < 4000 || handled < 100; i++) {
        free(block[i % 64]);
        block[i % 64] = malloc(1000 + (i % 7) * 60000);
        memset(block[i % 64], i & 255, 1000);
    }
    for (int last = i - 64; last < i; last++) n += ((unsigned char *)block[last % 64])[999] != (last & 255);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    printf("handlers: %ld wrong, %ld not zero, %ld wrong\n", n, not_zero(of_handler, 0, 1), wrong(of_handler, 1, PAGES, 13));
    /* A child that shares its parent's memory. */
    unsigned char *at = filled(14);
    fflush(stdout);
    pid = vfork();
    if (pid == 0) {
        raw(SYS_madvise, (long)at, LEN, MADV_DONTNEED, 0, 0, 0);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    printf("vfork: %ld not zero\n", not_zero(at, 0, PAGES));
}

static void answers(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
#if defined(__x86_64__)
    if (info->si_syscall == SYS_getppid) ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
#else
    if (info->si_syscall == SYS_getppid) ((ucontext_t *)context)->uc_mcontext.regs[0] = 4242;
#endif
}

/* A program with a filter of its own, and a handler for what that traps. */
static void filtered(void) {
    unsigned char *at = filled(15);
    struct sigaction action = {.sa_sigaction = answers, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program, 0, 0, 0) != 0) exit(4);
    printf("its own filter: %d %d\n", (int)getppid(), (int)getpgid(0));
    long result = raw(SYS_madvise, (long)at, LEN / 2, MADV_DONTNEED, 0, 0, 0);
    printf("madvise: %ld, %ld not zero, %ld wrong\n", result, not_zero(at, 0, PAGES / 2), wrong(at, PAGES / 2, PAGES, 15));
    raw(SYS_mprotect, (long)at, LEN, PROT_READ, 0, 0, 0);
    printf("a child writes: %d\n", child(writes, at));
}

#if defined(__x86_64__)
/* A call of the 32-bit kind, which a program of 64 bits may make. */
static int by_32_bits(void) {
    char *low = mmap(NULL, PAGE, READ_WRITE, PRIVATE | MAP_32BIT, -1, 0);
    strcpy(low, "/proc/self/exe");
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(5), "b"(low), "c"(O_RDONLY | O_DIRECT), "d"(0) : "memory", "r8", "r9", "r10", "r11");
    return result;
}
#else
static int by_32_bits(void) { return -EINVAL; }
#endif

/* What a process may do that has no far memory. */
static void opens(void) {
    int fd = (int)raw(SYS_openat, AT_FDCWD, (long)"/proc/self/exe", O_RDONLY | O_DIRECT, 0, 0, 0);
    int plain = open("/proc/self/exe", O_RDONLY);
    printf("openat: %d\n", fd >= 0 && (fcntl(fd, F_GETFL) & O_DIRECT) != 0);
    printf("fcntl: %ld\n", raw(SYS_fcntl, plain, F_SETFL, O_DIRECT, 0, 0, 0));
    struct io_uring_params params = {0};
    printf("a ring: %d\n", raw(SYS_io_uring_setup, 4, (long)&params, 0, 0, 0, 0) >= 0);
    struct open_how how = {.flags = O_RDONLY | O_DIRECT};
    printf("openat2: %d\n", raw(SYS_openat2, AT_FDCWD, (long)"/proc/self/exe", (long)&how, sizeof how, 0, 0) >= 0);
    printf("by 32 bits: %d\n", by_32_bits() >= 0);
    printf("user: %d\n", (int)geteuid());
}

/* What pins pages for a device, or for a read that ends later. */
static void devices(void) {
    static const struct {
        const char *name;
        unsigned long request;
    } requests[] = {{"SG_IO", 0x2285}, {"NVMe", 0xc0484e43}, {"verbs", 0xc0181b01}, {"VFIO", 0x3b71}};
    printf("AF_ALG: %ld\n", raw(SYS_socket, AF_ALG, SOCK_SEQPACKET, 0, 0, 0, 0));
    printf("AF_XDP: %ld\n", raw(SYS_socket, AF_XDP, SOCK_RAW, 0, 0, 0, 0));
    int fd = socket(AF_ALG, SOCK_SEQPACKET, 0);
    printf("by libc: %d %d\n", fd, errno);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        printf("%s: %ld\n", requests[i].name, raw(SYS_ioctl, -1, (long)requests[i].request, 0, 0, 0, 0));
    printf("another request: %ld\n", raw(SYS_ioctl, -1, FIONREAD, 0, 0, 0, 0));
}

/* Named memory: what is refused leaves it as it was. */
static void shared(void) {
    int fd = shm_open("/past-libc", O_CREAT | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, LEN) != 0) exit(3);
    unsigned char *at = mmap(NULL, LEN, READ_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) exit(2);
    for (long page = 0; page < PAGES; page++) memset(at + page * PAGE, is(page, 17), PAGE);
    printf("munmap: %ld\n", raw(SYS_munmap, (long)at, LEN / 2, 0, 0, 0, 0));
    printf("mmap: %ld\n", raw(SYS_mmap, (long)at, LEN / 2, READ_WRITE, PRIVATE | MAP_FIXED, -1, 0));
    printf("mprotect: %ld\n", raw(SYS_mprotect, (long)at, LEN, PROT_READ, 0, 0, 0));
    printf("mremap: %ld\n", raw(SYS_mremap, (long)at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, (long)map(LEN), 0));
    printf("madvise: %ld\n", raw(SYS_madvise, (long)at, LEN, MADV_DONTNEED, 0, 0, 0));
    printf("to remove: %ld\n", raw(SYS_madvise, (long)at, LEN, MADV_REMOVE, 0, 0, 0));
    printf("%ld wrong\n", wrong(at, 0, PAGES, 17));
    printf("a child writes: %d\n", child(writes, at));
    shm_unlink("/past-libc");
}

/* Memory is written past its mappings, by itself and by a program that knows nothing of far memory. */
static long written(long process, long at) {
    char bytes[3 * PAGE] = {0};
    struct iovec from = {bytes, sizeof bytes}, to = {(void *)at, sizeof bytes};
    return raw(SYS_process_vm_writev, process, (long)&from, 1, (long)&to, 1, 0);
}

static void writes_to(void) {
    unsigned char *at = filled(18);
    char process[32], address[32];
    snprintf(process, sizeof process, "%d", (int)getpid());
    snprintf(address, sizeof address, "%ld", (long)at);
    printf("itself: %ld\n", written(getpid(), (long)at));
    pid_t pid = fork();
    if (pid == 0) {
        char *arguments[] = {"past_libc", process, address, "", NULL}, *nothing[] = {NULL};
        execve("/proc/self/exe", arguments, nothing);
        _exit(9);
    }
    waitpid(pid, NULL, 0);
    printf("%ld wrong\n", wrong(at, 0, PAGES, 18));
}

/* A thread calls past libc without end while the process forks. */
static volatile int stop;
static void *restless(void *wrongs) {
    long n = 0;
    for (long round = 0; !stop; round++) {
        unsigned char *at = filled(round);
        raw(SYS_mprotect, (long)at, LEN, PROT_READ, 0, 0, 0);
        raw(SYS_mprotect, (long)at, LEN, READ_WRITE, 0, 0, 0);
        raw(SYS_madvise, (long)at, 8 * PAGE, MADV_DONTNEED, 0, 0, 0);
        n += not_zero(at, 0, 8) + wrong(at, 8, PAGES, round);
        raw(SYS_munmap, (long)(at + LEN / 2), LEN / 4, 0, 0, 0, 0);
        n += wrong(at, 8, PAGES / 2, round) + wrong(at, PAGES * 3 / 4, PAGES, round);
        munmap(at, LEN);
    }
    *(long *)wrongs = n;
    return NULL;
}

static unsigned char *of_child;
static void checks(unsigned char *at) {
    long n = wrong(at, 0, PAGES, 16);
    raw(SYS_madvise, (long)at, LEN, MADV_DONTNEED, 0, 0, 0);
    _exit(n != 0 || not_zero(at, 0, PAGES) != 0);
}

/* The first thread has ended: what its process is, the others know. */
static pthread_t first;
static void *last(void *unused) {
    (void)unused;
    pthread_join(first, NULL);
    dropped();
    replaced();
    protected();
    exit(0);
}

static void without_the_first(void) {
    pthread_t thread;
    first = pthread_self();
    pthread_create(&thread, NULL, last, NULL);
    pthread_exit(NULL);
}

static void racing(void) {
    pthread_t threads[2];
    long n[2];
    of_child = filled(16);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, restless, &n[i]);
    int ended = 0;
    for (int i = 0; i < 20; i++) ended += child(checks, of_child);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("children: %d, %ld %ld wrong, %ld wrong\n", ended, n[0], n[1], wrong(of_child, 0, PAGES, 16));
}

static const struct {
    const char *name;
    void (*does)(void);
} cases[] = {
    {"dropped", dropped}, {"replaced", replaced}, {"unmapped", unmapped}, {"refused", not_replaced},
    {"protected", protected}, {"moved", moved}, {"ring", ring}, {"interrupted", interrupted}, {"filtered", filtered},
    {"opens", opens}, {"racing", racing}, {"shared", shared}, {"writes", writes_to},
    {"headless", without_the_first}, {"devices", devices},
};

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3) direct(argv[2]);
    if (argc == 4) printf("another: %ld\n", written(atol(argv[1]), atol(argv[2])));
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) cases[i].does();
    return 0;
}
