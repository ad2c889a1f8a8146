/* Has the system write into memory that nobody has touched, and into memory that somebody has. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    int fd = open("/dev/zero", O_RDONLY);
    char *bytes = (char *)malloc(1 << 20) + (1 << 16); /* malloc itself writes before what it gives */
    long count = read(fd, bytes, 4000);
    printf("untouched: %s\n", count < 0 ? strerrorname_np(errno) : "read");
    memset(bytes, 7, 8192);
    count = read(fd, bytes, 4000);
    printf("touched: %s\n", count < 0 ? strerrorname_np(errno) : "read");
    printf("%d %d\n", bytes[0], bytes[8000]);
    return 0;
}
