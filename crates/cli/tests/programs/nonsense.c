// A program that tells its pager nonsense, as no preload library would: it greets by itself and rings its own doorbells.
//
//   nonsense calls SEED    thousands of calls of numbers that are drawn at the edges, and accesses between them
//   nonsense number        calls whose numbers wrap around
//   nonsense greet         greetings of lengths and places that cannot be
//   nonsense seal          seals its memory file, so that the pager can take no page from it
//   nonsense wait          takes the flag of its userfaultfd away by which the pager's reads do not wait
//
// The damage must stay inside this program: the pager must continue, and the test checks that it still serves other programs.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096ul
#define MAILBOXES 4
#define MAILBOX_WORDS 16
#define CONTROL (1 + 2 * MAILBOXES)
#define PAGES 4096ul

static char invitation[512];
static uint64_t token[2];
static char *base;
static uint64_t numbers[MAILBOXES];
static int served_by;

static void die(const char *what) {
    perror(what);
    _exit(9);
}

static int meet(void) {
    const char *variable = getenv("FARMEM_RUN");
    if (!variable || strlen(variable) >= sizeof invitation)
        die("not under farmem run");
    strcpy(invitation, variable);
    char *name = strtok(invitation, ":"), *said = strtok(NULL, ":");
    char half[17] = {0};
    memcpy(half, said, 16);
    token[0] = strtoull(half, NULL, 16);
    token[1] = strtoull(said + 16, NULL, 16);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    memcpy(address.sun_path + 1, name, len);
    int to = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (to < 0 || connect(to, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + len) < 0)
        die("the pager's socket");
    return to;
}

// Sends a greeting with two descriptors; answers the status, or -1 where there is no answer.
static int64_t greet(int to, uint64_t at, uint64_t len, uint64_t snapshot, int first, int second) {
    uint64_t words[7] = {0, token[0], token[1], at, len, snapshot, 1};
    memcpy(words, "farmem02", 8);
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {words, sizeof words};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
    int both[2] = {first, second};
    memcpy(CMSG_DATA(rights), both, sizeof both);
    if (sendmsg(to, &message, 0) < 0)
        return -1;
    uint64_t welcome[4];
    return recv(to, welcome, sizeof welcome, 0) == sizeof welcome ? (int64_t)welcome[0] : -1;
}

static int open_userfaultfd(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        die("userfaultfd");
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM |
                                         UFFD_FEATURE_WP_HUGETLBFS_SHMEM | (1 << 13) | (1 << 14) | UFFD_FEATURE_EXACT_ADDRESS |
                                         UFFD_FEATURE_THREAD_ID};
    if (ioctl(fd, UFFDIO_API, &api) < 0)
        die("UFFDIO_API");
    return fd;
}

// As the library does; answers the memory file.
static int attach(void) {
    int to = meet(), uffd = open_userfaultfd(), file = memfd_create("nonsense", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0 || ftruncate(file, PAGES * PAGE) < 0)
        die("memfd");
    base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (base == MAP_FAILED)
        die("mmap");
    struct uffdio_register served = {.range = {(uint64_t)base + PAGE, (PAGES - 1) * PAGE},
                                     .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP};
    if (ioctl(uffd, UFFDIO_REGISTER, &served) < 0)
        die("UFFDIO_REGISTER");
    served_by = uffd;
    int64_t status = greet(to, (uint64_t)base, PAGES * PAGE, 0, uffd, file);
    if (status != 0) {
        fprintf(stderr, "the pager answers %ld\n", (long)status);
        _exit(9);
    }
    return file;
}

static uint64_t call_as(int mailbox, uint64_t number, const uint64_t words[5], uint64_t *value) {
    volatile uint64_t *box = (volatile uint64_t *)base + mailbox * MAILBOX_WORDS;
    for (int n = 0; n < 5; n++)
        box[1 + n] = words[n];
    __atomic_store_n(&box[0], number, __ATOMIC_SEQ_CST);
    size_t bell = 1 + 2 * mailbox + (number % 2 == 0 ? 0 : 1);
    __atomic_store_n((uint64_t *)(base + bell * PAGE), number, __ATOMIC_SEQ_CST);
    if (value)
        *value = box[7];
    return box[6];
}

static uint64_t call(int mailbox, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t *value) {
    const uint64_t words[5] = {a, b, c, d, e};
    return call_as(mailbox, ++numbers[mailbox], words, value);
}

static uint64_t state;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

// A number as an attacker draws it: at an edge, or near one.
static uint64_t edge(void) {
    uint64_t near = next() % 3 * (next() % 2 ? PAGE : 1), place = (uint64_t)base;
    switch (next() % 12) {
    case 0: return near;
    case 1: return ~0ul - near;
    case 2: return (1ul << (next() % 64)) - near;
    case 3: return place + near;
    case 4: return place + CONTROL * PAGE + near;
    case 5: return place + PAGES * PAGE - near;
    case 6: return next();
    case 7: return (uint64_t)getpid();
    case 8: return next() % 64 * PAGE;
    default: return place + (CONTROL + next() % 200) * PAGE + (next() % 8 ? 0 : near);
    }
}

static void calls(uint64_t seed) {
    attach();
    state = seed * 0x9e3779b97f4a7c15ul | 1;
    for (int round = 0; round < 4000; round++) {
        uint64_t what = next() % 8 ? 1 + next() % 17 : edge(), value = 0;
        int mailbox = (int)(next() % MAILBOXES);
        // A fork that is announced and not made holds up no thread but others of its own.
        uint64_t status = call(mailbox, what, edge(), edge(), edge(), edge(), &value);
        int is_ours = value >= (uint64_t)base + CONTROL * PAGE && value < (uint64_t)base + PAGES * PAGE;
        if (what == 1 && status == 0 && is_ours)
            __atomic_fetch_add((char *)(value / PAGE * PAGE), 1, __ATOMIC_SEQ_CST);
    }
    // And now something that makes sense, in a part that is given up first.
    call(0, 9, 0, 0, 0, 0, NULL);
    if (call(0, 3, (uint64_t)base + CONTROL * PAGE, (PAGES - CONTROL) * PAGE, 0, 0, NULL) != 0 && getenv("STRICT"))
        die("unmap");
    _exit(0);
}

static void wrapping_numbers(void) {
    attach();
    const uint64_t words[5] = {17, (uint64_t)base + CONTROL * PAGE, PAGE, 0, 0};
    const uint64_t all[] = {~0ul - 1, ~0ul, 0, 1, ~0ul};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        call_as(0, all[n], words, NULL);
    _exit(0);
}

static void greetings(void) {
    int file = memfd_create("nonsense", MFD_CLOEXEC), pipes[2];
    if (pipe(pipes) < 0)
        die("pipe");
    const uint64_t lengths[] = {0, 1, PAGE, CONTROL * PAGE, 1ul << 46, 1ul << 62, ~0ul, ~0ul - PAGE + 1};
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (int of = 0; of < 4; of++) {
            int to = meet(), uffd = open_userfaultfd();
            // A file that is empty is given its length; one that has it says the truth.
            int longer = memfd_create("nonsense", MFD_CLOEXEC);
            if (of == 1 && ftruncate(longer, (off_t)lengths[n]) < 0)
                of = 2;
            greet(to, of == 3 ? ~0ul - PAGE + 1 : 0, lengths[n], of == 2 ? 77 : 0, of == 2 ? pipes[0] : uffd, of == 1 ? longer : file);
            close(to);
            close(uffd);
            close(longer);
        }
    _exit(0);
}

static void sealed(void) {
    int file = attach();
    uint64_t at = 0;
    if (call(0, 1, 2048 * PAGE, 3, 0, 0, &at) != 0)
        die("map");
    for (int n = 0; n < 16; n++)
        ((volatile char *)at)[n * PAGE] = 1;
    if (fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0)
        die("seal");
    for (int n = 0; n < 2048; n++)
        ((volatile char *)at)[n * PAGE] = 1;
    call(0, 3, at, 2048 * PAGE, 0, 0, NULL);
    _exit(0);
}

static void waiting(void) {
    attach();
    // The first time there is nothing to read; later there may be.
    for (int n = 0; n < 100; n++) {
        if (fcntl(served_by, F_SETFL, 0) < 0)
            die("F_SETFL");
        call(0, 1, PAGE, 3, 0, 0, NULL);
    }
    if (fcntl(served_by, F_SETFL, 0) < 0)
        die("F_SETFL");
    _exit(0);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "calls"))
        calls(strtoull(arguments[2], NULL, 10));
    else if (!strcmp(what, "number"))
        wrapping_numbers();
    else if (!strcmp(what, "greet"))
        greetings();
    else if (!strcmp(what, "seal"))
        sealed();
    else if (!strcmp(what, "wait"))
        waiting();
    return 9;
}
