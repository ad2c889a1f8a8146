/* Calls that answer otherwise for far memory: the table "What differs from Linux" in docs/run.md. Prints each answer, and how many bytes of its
   memory changed. The argument is a file on a disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MIB = 1 << 20, COLLAPSE = 25, GUARD_INSTALL = 102, MSEAL = 462 };

static void told(const char *call, long result) {
    printf("%s: %s\n", call, result >= 0 ? "success" : strerrorname_np(errno));
}

int main(int count, char **words) {
    if (count < 2) return 2;
    char *far = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(far, 1, 4 * MIB);
    told("mlock", mlock(far, MIB));
    told("mlock2", mlock2(far, MIB, MLOCK_ONFAULT));
    told("mlockall, current", mlockall(MCL_CURRENT));
    told("mlockall, future", mlockall(MCL_FUTURE));
    munlockall();
    told("MADV_COLLAPSE", madvise(far, 2 * MIB, COLLAPSE));
    told("MADV_WIPEONFORK", madvise(far, MIB, MADV_WIPEONFORK));
    told("MADV_REMOVE", madvise(far, MIB, MADV_REMOVE));
    told("MADV_GUARD_INSTALL", madvise(far, MIB, GUARD_INSTALL));
    void *moved = mremap(far, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    told("MREMAP_DONTUNMAP", moved == MAP_FAILED ? -1 : 0);
    told("mseal", syscall(MSEAL, far, MIB, 0));
    told("remap_file_pages", syscall(SYS_remap_file_pages, far, MIB, 0, 0, 0));
    told("pkey_mprotect", syscall(SYS_pkey_mprotect, far, MIB, PROT_READ | PROT_WRITE, 1));

    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(unsigned long)far, MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    told("its own userfaultfd", uffd < 0 || ioctl(uffd, UFFDIO_API, &api) != 0 ? -1 : ioctl(uffd, UFFDIO_REGISTER, &range));
    close(uffd);
    struct io_uring_params params = {0};
    told("io_uring_setup", syscall(SYS_io_uring_setup, 4, &params));

    int fd = open(words[1], O_RDONLY | O_DIRECT);
    told("O_DIRECT by libc", fd);
    printf("the file has it: %d\n", (fcntl(fd, F_GETFL) & O_DIRECT) != 0);
    told("O_DIRECT past libc", syscall(SYS_openat, AT_FDCWD, words[1], O_RDONLY | O_DIRECT));
    size_t wrong = 0;
    for (size_t at = 0; at < 4 * MIB; at++) wrong += far[at] != 1;
    printf("%zu bytes wrong\n", wrong);
    return 0;
}
