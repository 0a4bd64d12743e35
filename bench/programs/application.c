// An application as a node of another host sees it: it sends what it works on for good, and then in
// rounds sends a piece, computes, and takes a result back, waiting for it.
//
//   application TO_KEEP_KIB ROUNDS IN_KIB LAUNCHES KERNEL_US OUT_KIB
//
// Its kernels time themselves (kernels/stamp.cu), so they are as long on any clock. Prints a line
// when it is ready, reads from standard input at which moment (CLOCK_MONOTONIC, seconds) it begins,
// and prints one JSON line: how long it took, and for how long of that its kernels were on the
// device by their own stamps. What came back and what was kept must be what it sent, and each kernel
// must have run once; that is checked after the time is taken.
#include "../../examples/cuda/common.h"

EMBED(stamp_ptx, "kernels/stamp.ptx");

// What is sent in a round begins this much later than in the round before, in bytes.
enum { STEP = 8 };

struct proportions {
    size_t to_keep, in, out;
    uint32_t launches, kernel_us;
    int rounds;
};

static struct proportions parse(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr,
                "usage: application TO_KEEP_KIB ROUNDS IN_KIB LAUNCHES KERNEL_US OUT_KIB\n");
        exit(2);
    }
    struct proportions of = {.to_keep = strtoul(argv[1], NULL, 10) << 10,
                             .rounds = atoi(argv[2]),
                             .in = strtoul(argv[3], NULL, 10) << 10,
                             .launches = (uint32_t)strtoul(argv[4], NULL, 10),
                             .kernel_us = (uint32_t)strtoul(argv[5], NULL, 10),
                             .out = strtoul(argv[6], NULL, 10) << 10};
    if (of.rounds < 1 || of.in == 0 || of.launches == 0 || of.out == 0 || of.out > of.in) {
        fprintf(stderr, "application: a round sends, computes, and takes back what it sent\n");
        exit(2);
    }
    return of;
}

// Bytes that were touched and do not repeat.
static unsigned char *filled(size_t bytes, uint64_t seed) {
    unsigned char *memory = malloc(bytes + sizeof seed);
    for (size_t i = 0; i < bytes; i += sizeof seed) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        memcpy(memory + i, &seed, sizeof seed);
    }
    return memory;
}

// Memory of the device that was touched.
static CUdeviceptr allocated(size_t bytes) {
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, bytes));
    CHECK(cuMemsetD8(memory, 0, bytes));
    return memory;
}

int main(int argc, char **argv) {
    struct proportions of = parse(argc, argv);
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction stamp = load_kernel(&module, stamp_ptx, "stamp");
    size_t back_bytes = of.out * (size_t)of.rounds;
    unsigned char *keep = filled(of.to_keep, 1), *back = filled(back_bytes, 2);
    unsigned char *piece = filled(of.in + STEP * (size_t)of.rounds, 3);
    CUdeviceptr device_keep = of.to_keep > 0 ? allocated(of.to_keep) : 0;
    CUdeviceptr device_piece = allocated(of.in);
    uint32_t entries = 1;
    uint64_t book[3] = {0};
    CUdeviceptr device_plan = allocated(sizeof of.kernel_us), device_book = allocated(sizeof book);
    CHECK(cuMemcpyHtoD(device_plan, &of.kernel_us, sizeof of.kernel_us));
    void *arguments[] = {&device_plan, &entries, &device_book};
    CHECK(cuCtxSynchronize());
    printf("{\"ready\": true}\n");
    fflush(stdout);
    double start;
    if (scanf("%lf", &start) != 1)
        return 2;
    while (seconds_now() < start) {
        struct timespec moment = {0, 1000000};
        nanosleep(&moment, NULL);
    }

    double begin = seconds_now();
    if (of.to_keep > 0)
        CHECK(cuMemcpyHtoD(device_keep, keep, of.to_keep));
    for (int round = 0; round < of.rounds; ++round) {
        CHECK(cuMemcpyHtoD(device_piece, piece + STEP * (size_t)round, of.in));
        for (uint32_t i = 0; i < of.launches; ++i)
            CHECK(cuLaunchKernel(stamp, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
        CHECK(cuMemcpyDtoH(back + of.out * (size_t)round, device_piece, of.out));
    }
    double seconds = seconds_now() - begin;

    CHECK(cuMemcpyDtoH(book, device_book, sizeof book));
    uint64_t launches = (uint64_t)of.rounds * of.launches;
    int correct = book[0] == launches && book[1] >= 1000ull * of.kernel_us * launches;
    for (int round = 0; round < of.rounds; ++round) {
        size_t sent = STEP * (size_t)round, came = of.out * (size_t)round;
        correct &= memcmp(back + came, piece + sent, of.out) == 0;
    }
    if (of.to_keep > 0) {
        unsigned char *kept = filled(of.to_keep, 4);
        CHECK(cuMemcpyDtoH(kept, device_keep, of.to_keep));
        correct &= memcmp(kept, keep, of.to_keep) == 0;
    }
    printf("{\"seconds\": %.6f, \"device_ns\": %llu, \"verified\": %s}\n", seconds,
           (unsigned long long)book[1], correct ? "true" : "false");
    return correct ? 0 : 1;
}
