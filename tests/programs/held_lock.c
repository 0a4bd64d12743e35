// Locks a file (flock) that says its process id, and ends its first thread while another lives: what
// is left of a daemon that was killed while one of its threads waited in the kernel. Prints "held",
// then waits for the end of its input.
//
//     held_lock FILE
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

static void *stay(void *unused) {
    (void)unused;
    char path[64], state = 'R', line[512];
    while (state != 'Z') {
        snprintf(path, sizeof path, "/proc/%d/stat", getpid());
        FILE *stat = fopen(path, "r");
        if (stat == NULL || fgets(line, sizeof line, stat) == NULL) exit(1);
        sscanf(line, "%*d (%*[^)]) %c", &state);
        fclose(stat);
        usleep(1000);
    }
    puts("held");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    exit(0);
}

int main(int count, char **words) {
    if (count != 2) return 2;
    int lock = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) return 1;
    dprintf(lock, "%d\n", getpid());
    pthread_t thread;
    if (pthread_create(&thread, NULL, stay, NULL) != 0) return 1;
    pthread_exit(NULL);
}
