/* Attaches to all threads of a process, says so, and detaches at the next line of its input. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    char path[64], line[16];
    pid_t threads[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", argc > 1 ? atoi(argv[1]) : 0);
    DIR *all = opendir(path);
    for (struct dirent *one; all && (one = readdir(all));) {
        pid_t thread = atoi(one->d_name);
        if (thread > 0 && count < 64 && ptrace(PTRACE_SEIZE, thread, 0, 0) == 0) threads[count++] = thread;
    }
    printf("attached to %d\n", count);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    for (int i = 0; i < count; i++) {
        int status;
        if (ptrace(PTRACE_INTERRUPT, threads[i], 0, 0) || waitpid(threads[i], &status, __WALL) != threads[i]) return 2;
        if (ptrace(PTRACE_DETACH, threads[i], 0, 0)) return 3;
    }
    printf("detached\n");
    return 0;
}
