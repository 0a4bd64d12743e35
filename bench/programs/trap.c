// A remoting transport that traps: the same launches as `share`, sent one by one over a Unix socket
// to a process that executes them. Every request costs four system calls (send, receive,
// send, receive), as in GVirtuS: what FairGV and Weft are compared with.
//
//   trap KERNEL COUNT [--queued]
//
// The server ends each request before it answers; with --queued it answers when the launch is
// queued, so that the next request travels while the kernel runs. Prints what `share` prints.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { ELEMENTS = 64, MESSAGE = 64 };

// One message: what is asked for, or a part of the answer.
struct message {
    char kind; // 'l' launch, 's' synchronise, 'v' verify, 'q' quit.
    char correct;
    long launches;
    char filler[MESSAGE - 16];
};

static void transfer(int ok) {
    if (!ok) {
        perror("trap: the other side is gone");
        exit(2);
    }
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
        if (message.kind == 'l')
            CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
        if (!queued || message.kind == 's')
            CHECK(cuCtxSynchronize());
        if (message.kind == 'v')
            message.correct = (char)took_steps(state, ELEMENTS, (uint64_t)message.launches);
        transfer(write(socket, &message, sizeof message) == sizeof message);
    }
}

static struct message request(int socket, char kind, long launches) {
    struct message message = {.kind = kind, .launches = launches};
    transfer(write(socket, &message, sizeof message) == sizeof message);
    transfer(read(socket, &message, sizeof message) == sizeof message);
    return message;
}

int main(int argc, char **argv) {
    int queued = argc == 4 && strcmp(argv[3], "--queued") == 0, sockets[2];
    if (argc != 3 + queued) {
        fprintf(stderr, "usage: trap KERNEL COUNT [--queued]\n");
        return 2;
    }
    transfer(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t server = fork();
    transfer(server >= 0);
    if (server == 0) {
        close(sockets[0]);
        serve(sockets[1], argv[1], queued);
        return 0;
    }
    close(sockets[1]);
    request(sockets[0], 's', 0); // The server is ready.
    long count = atol(argv[2]);
    double begin = seconds_now();
    for (long i = 0; i < count; ++i)
        request(sockets[0], 'l', i);
    double stop = seconds_now();
    request(sockets[0], 's', 0);
    double drained = seconds_now();
    int correct = request(sockets[0], 'v', count).correct;
    struct message quit = {.kind = 'q'};
    transfer(write(sockets[0], &quit, sizeof quit) == sizeof quit);
    int status = 0;
    waitpid(server, &status, 0);
    correct = correct && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("{\"kernel\": \"%s\", \"launches\": %ld, \"completed\": %ld, \"seconds\": %.6f, "
           "\"drained_seconds\": %.6f, \"verified\": %s}\n",
           argv[1], count, count, stop - begin, drained - begin, correct ? "true" : "false");
    return correct ? 0 : 1;
}
