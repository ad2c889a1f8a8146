/* Descriptors of files opened with O_DIRECT, which came from other programs: one is standard input, one comes in a message. Prints whether
   they still have it, and whether what is read into memory is right. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEN = 2 << 20 };

static void read_all(const char *what, int fd) {
    unsigned char *bytes = malloc(LEN + 1);
    size_t done = 0, wrong = 0;
    while (done < LEN) {
        ssize_t count = pread(fd, bytes + 1 + done, LEN - done, (off_t)done); /* not at a multiple of anything */
        if (count <= 0) break;
        done += (size_t)count;
    }
    for (size_t i = 0; i < done; i++) wrong += bytes[i + 1] != (unsigned char)(i * 7 + (i >> 12));
    printf("%s: direct %d, %zu bytes, %zu wrong\n", what, (fcntl(fd, F_GETFL) & O_DIRECT) != 0, done, wrong);
    free(bytes);
}

/* Sends a descriptor, or receives one. */
static int message(int socket, int *send) {
    int number = -1;
    char byte = 0;
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = {{0}};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    if (!send) {
        if (recvmsg(socket, &message, 0) != 1) exit(4);
        memcpy(&number, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof number);
        return number;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), send, sizeof *send);
    if (sendmsg(socket, &message, 0) != 1) exit(3);
    return *send;
}

/* The other program has no far memory, as it has no environment: so it opens files as it likes. */
static int from_another_program(char *path) {
    int pair[2];
    char number[16];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(2);
    snprintf(number, sizeof number, "%d", pair[0]);
    pid_t pid = fork();
    if (pid == 0) {
        char *arguments[] = {"handed", "send", number, path, NULL}, *nothing[] = {NULL};
        execve("/proc/self/exe", arguments, nothing);
        _exit(9);
    }
    close(pair[0]);
    int fd = message(pair[1], NULL);
    waitpid(pid, NULL, 0);
    return fd;
}

int main(int argc, char **argv) {
    if (argc == 4) {
        int fd = open(argv[3], O_RDONLY | O_DIRECT);
        message(atoi(argv[2]), &fd);
        return 0;
    }
    read_all("inherited", 0);
    read_all("in a message", from_another_program(argv[argc - 1]));
    return 0;
}
