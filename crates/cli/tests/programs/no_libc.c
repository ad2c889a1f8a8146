/* A program without any libc, linked by `-static -nostdlib`: it maps, moves, unmaps and forks by its own system calls. */
enum { PAGE = 4096, MIB = 1 << 20 };
enum { WRITE = 1, MMAP = 9, MPROTECT = 10, MUNMAP = 11, MREMAP = 25, MADVISE = 28, FORK = 57, EXIT = 60, WAIT4 = 61 };

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return number;
}

static volatile unsigned long *map(long len) {
    return (volatile unsigned long *)call(MMAP, 0, len, 3, 0x22, -1, 0);
}

static void fill(volatile unsigned long *at, long len, unsigned long seed) {
    for (long i = 0; i < len / 8; i += 8) at[i] = seed + (unsigned long)i;
}

static long wrong(volatile unsigned long *at, long len, unsigned long seed) {
    long count = 0;
    for (long i = 0; i < len / 8; i += 8) count += at[i] != seed + (unsigned long)i;
    return count;
}

static int failures;

static void check(int is_right, const char *name, long len) {
    if (is_right) return;
    failures++;
    call(WRITE, 1, (long)name, len, 0, 0, 0);
    call(WRITE, 1, (long)" is wrong\n", 10, 0, 0, 0);
}
#define CHECK(is_right, name) check(is_right, name, sizeof name - 1)

void run(void) {
    volatile unsigned long *a = map(16 * MIB);
    fill(a, 16 * MIB, 3);
    CHECK(wrong(a, 16 * MIB, 3) == 0, "fill");
    call(MADVISE, (long)a + 4 * MIB, MIB, 4, 0, 0, 0);
    CHECK(a[4 * MIB / 8] == 0, "advice");
    volatile unsigned long *b = (void *)call(MREMAP, (long)a + 8 * MIB, 8 * MIB, 16 * MIB, 1, 0, 0);
    CHECK(wrong(b, 8 * MIB, 3 + 8 * MIB / 8) == 0, "move");
    CHECK(call(MUNMAP, (long)a + 8 * MIB - PAGE, PAGE, 0, 0, 0, 0) == 0, "unmap");
    CHECK(call(MPROTECT, (long)a, 16 * MIB, 3, 0, 0, 0) == -12, "rights");
    for (int turn = 0; turn < 3; turn++) {
        long child = call(FORK, 0, 0, 0, 0, 0, 0);
        if (child == 0) {
            long count = wrong(b, 8 * MIB, 3 + 8 * MIB / 8) + wrong(a, 4 * MIB, 3);
            fill(b, 8 * MIB, 9);
            call(EXIT, count + wrong(b, 8 * MIB, 9) ? 1 : 0, 0, 0, 0, 0, 0);
        }
        int status = -1;
        CHECK(call(WAIT4, child, (long)&status, 0, 0, 0, 0) == child && status == 0, "fork");
    }
    CHECK(wrong(b, 8 * MIB, 3 + 8 * MIB / 8) == 0, "parent");
    if (!failures) call(WRITE, 1, (long)"0 wrong\n", 8, 0, 0, 0);
    call(EXIT, failures, 0, 0, 0, 0, 0);
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call run\n");
