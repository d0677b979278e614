/* The process that holds a pod's namespaces: it sleeps, collects orphans, and ends when told to. Asked for its version it
 * ends at once: kubeadm's Job that looks whether pods run at all is that. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++)
        if (strcmp(arguments[i], "-v") == 0)
            return puts("pause.c " VERSION) < 0;
    signal(SIGCHLD, on_child);
    signal(SIGTERM, on_end);
    signal(SIGINT, on_end);
    for (;;)
        pause();
}
