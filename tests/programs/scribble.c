// What a hostile virtual machine can do to the region that it shares with its host: writes random
// words all over it for so many seconds. Run in the guest as root.
//
//   scribble SECONDS FILE      FILE is the device's memory (resource2)
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: scribble SECONDS FILE\n");
        return 2;
    }
    struct stat size;
    int file = open(argv[2], O_RDWR);
    if (file < 0 || fstat(file, &size) != 0) {
        perror(argv[2]);
        return 1;
    }
    uint64_t words = (uint64_t)size.st_size / 8, seed = 88172645463325252u, written = 0;
    void *mapped = mmap(NULL, (size_t)size.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    volatile uint64_t *region = mapped;
    double end = seconds() + atof(argv[1]);
    while (seconds() < end)
        for (int i = 0; i < 100000; ++i) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            // Every other one among the first control words, where most harm can be done.
            uint64_t at = i % 2 ? seed % words : seed % (words < 200000 ? words : 200000);
            region[at] = i % 3 ? seed * 2685821657736338717u : seed % 64;
            ++written;
        }
    printf("scribbled %llu words\n", (unsigned long long)written);
    return 0;
}
