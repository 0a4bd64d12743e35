// A remoting transport that traps: the same launches as `share`, sent one by one over a Unix socket
// to a process that executes them. Every request costs four system calls (send, receive,
// send, receive), as in GVirtuS: what FairGV and Weft are compared with.
//
//   trap KERNEL COUNT [--queued]     so many launches
//   trap KERNEL SECONDSs [--queued]  launches for so many seconds, after a line that says it begins
//   trap --calls COUNT               requests for nothing, each timed
//   trap --copy KIB                  copies to the device, whose bytes travel through the socket
//
// The server ends each request before it answers; with --queued it answers when the launch is
// queued, so that the next request travels while the kernel runs. Prints what `share` prints, and
// the other two what `call` and `copy` print, named `trap_…`.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { ELEMENTS = 64, MESSAGE = 64, REPEATS = 7 };

// One message: what is asked for, or a part of the answer.
struct message {
    char kind; // 'l' launch, 's' synchronise, 'v' verify, 'n' nothing, 'q' quit, 'c' copy, 'w' what
               // was copied.
    char correct;
    long number; // Launches that there were, bytes that follow, or the sum of those.
    char filler[MESSAGE - 16];
};

// What the client copies.
static unsigned char *to_copy;

static void transfer(int ok) {
    if (!ok) {
        perror("trap: the other side is gone");
        exit(2);
    }
}

// What was copied last.
static struct {
    unsigned char *host;
    size_t bytes;
    CUdeviceptr device;
} copied;

static void copy(int socket, size_t bytes) {
    if (copied.bytes != bytes) {
        if (copied.bytes > 0)
            CHECK(cuMemFree(copied.device));
        copied.host = realloc(copied.host, bytes);
        CHECK(cuMemAlloc(&copied.device, bytes));
        copied.bytes = bytes;
        // Touched, so that no copy pays for page faults.
        memset(copied.host, 0, bytes);
        CHECK(cuMemsetD8(copied.device, 0, bytes));
    }
    for (size_t have = 0; have < bytes;) {
        ssize_t more = read(socket, copied.host + have, bytes - have);
        transfer(more > 0);
        have += (size_t)more;
    }
    CHECK(cuMemcpyHtoD(copied.device, copied.host, bytes));
    CHECK(cuCtxSynchronize());
}

static long sum(const unsigned char *bytes, size_t count) {
    unsigned long sum = 0;
    for (size_t i = 0; i < count; ++i)
        sum = sum * 31 + bytes[i];
    return (long)sum;
}

// The sum of what the device has of it.
static long copied_sum(void) {
    memset(copied.host, 0, copied.bytes);
    CHECK(cuMemcpyDtoH(copied.host, copied.device, copied.bytes));
    return sum(copied.host, copied.bytes);
}

static void serve(int socket, const char *kernel, int queued) {
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction step = load_kernel(&module, share_ptx, kernel);
    CUdeviceptr state = new_steps(ELEMENTS);
    CHECK(cuCtxSynchronize());
    void *arguments[] = {&state};
    struct message message;
    while (read(socket, &message, sizeof message) == sizeof message && message.kind != 'q') {
        switch (message.kind) {
        case 'l':
            CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
            if (!queued)
                CHECK(cuCtxSynchronize());
            break;
        case 's':
            CHECK(cuCtxSynchronize());
            break;
        case 'v':
            message.correct = (char)took_steps(state, ELEMENTS, (uint64_t)message.number);
            break;
        case 'c':
            copy(socket, (size_t)message.number);
            break;
        case 'w':
            message.number = copied_sum();
            break;
        }
        transfer(write(socket, &message, sizeof message) == sizeof message);
    }
}

static struct message request(int socket, char kind, long number) {
    struct message message = {.kind = kind, .number = number};
    transfer(write(socket, &message, sizeof message) == sizeof message);
    // The bytes of a copy follow.
    for (size_t sent = 0; kind == 'c' && sent < (size_t)number;) {
        ssize_t more = write(socket, to_copy + sent, (size_t)number - sent);
        transfer(more > 0);
        sent += (size_t)more;
    }
    transfer(read(socket, &message, sizeof message) == sizeof message);
    return message;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int launches(int socket, const char *kernel, double most, int is_seconds) {
    if (is_seconds) {
        printf("{\"begun\": true}\n");
        fflush(stdout);
    }
    double begin = seconds_now();
    long count = 0;
    for (; (is_seconds ? seconds_now() - begin : (double)count) < most; ++count)
        request(socket, 'l', count);
    double stop = seconds_now();
    request(socket, 's', 0);
    double drained = seconds_now();
    int correct = request(socket, 'v', count).correct;
    printf("{\"kernel\": \"%s\", \"launches\": %ld, \"completed\": %ld, \"seconds\": %.6f, "
           "\"drained_seconds\": %.6f, ",
           kernel, count, count, stop - begin, drained - begin);
    return correct;
}

static int calls(int socket, long count) {
    double *us = malloc((size_t)count * sizeof *us);
    for (long i = 0; i < count; ++i) {
        double begin = seconds_now();
        request(socket, 'n', 0);
        us[i] = 1e6 * (seconds_now() - begin);
    }
    qsort(us, (size_t)count, sizeof *us, ascending);
    printf("{\"trap_sync_us_p50\": %.4f, \"trap_sync_us_p99\": %.4f, ", us[count / 2],
           us[count * 99 / 100]);
    free(us);
    return 1;
}

static int copies(int socket, long kib) {
    size_t bytes = (size_t)kib << 10;
    double seconds[REPEATS];
    to_copy = malloc(bytes);
    for (size_t i = 0; i < bytes; ++i)
        to_copy[i] = (unsigned char)(i * 2654435761u >> 13);
    request(socket, 'c', (long)bytes);
    for (int i = 0; i < REPEATS; ++i) {
        double begin = seconds_now();
        request(socket, 'c', (long)bytes);
        seconds[i] = seconds_now() - begin;
    }
    qsort(seconds, REPEATS, sizeof *seconds, ascending);
    printf("{\"trap_in_GBps_%ldK\": %.3f, ", kib, 1e-9 * (double)bytes / seconds[REPEATS / 2]);
    return request(socket, 'w', 0).number == sum(to_copy, bytes);
}

int main(int argc, char **argv) {
    int queued = argc == 4 && strcmp(argv[3], "--queued") == 0, sockets[2];
    char *unit = "";
    double most = argc > 2 ? strtod(argv[2], &unit) : 0;
    int is_seconds = strcmp(unit, "s") == 0;
    long count = (long)most;
    if (argc != 3 + queued || count <= 0 || (*unit != 0 && !is_seconds)) {
        fprintf(stderr,
                "usage: trap KERNEL COUNT|SECONDSs [--queued] | --calls COUNT | --copy KIB\n");
        return 2;
    }
    int times_calls = strcmp(argv[1], "--calls") == 0, times_copies = strcmp(argv[1], "--copy") == 0;
    transfer(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t server = fork();
    transfer(server >= 0);
    if (server == 0) {
        close(sockets[0]);
        serve(sockets[1], times_calls || times_copies ? "step_21us" : argv[1], queued);
        return 0;
    }
    close(sockets[1]);
    request(sockets[0], 's', 0); // The server is ready.
    int correct = times_calls    ? calls(sockets[0], count)
                  : times_copies ? copies(sockets[0], count)
                                 : launches(sockets[0], argv[1], most, is_seconds);
    struct message quit = {.kind = 'q'};
    transfer(write(sockets[0], &quit, sizeof quit) == sizeof quit);
    int status = 0;
    waitpid(server, &status, 0);
    correct = correct && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("\"verified\": %s}\n", correct ? "true" : "false");
    return correct ? 0 : 1;
}
