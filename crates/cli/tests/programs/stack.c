/* A thread on a stack of the program's own: it starts programs, and forks. Says how each ended. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK (1 << 20)

static void *run(void *none) {
    int status = system("exit 3");
    printf("program %x\n", status);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(4);
    waitpid(child, &status, 0);
    printf("fork %x\n", status & 0x7f);
    return none;
}

int main(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || pthread_attr_init(&attributes)) return 2;
    if (pthread_attr_setstack(&attributes, stack, STACK)) return 2;
    if (pthread_create(&thread, &attributes, run, NULL)) return 2;
    pthread_join(thread, NULL);
    return 0;
}
