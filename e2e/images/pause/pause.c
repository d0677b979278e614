/* The process that holds a pod's namespaces: it sleeps, collects orphans, and ends when told to. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_child(int number) {
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

static void on_end(int number) {
    (void)number;
    _exit(0);
}

int main(void) {
    signal(SIGCHLD, on_child);
    signal(SIGTERM, on_end);
    signal(SIGINT, on_end);
    for (;;)
        pause();
}
