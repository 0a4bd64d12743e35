// A program with a state: memory, two streams, events, a graph and a global variable, which it goes
// on changing until it is told to end, and then proves that nothing of it was lost or mixed up. What
// it writes is its own and nobody else's, and what was there is looked at before it is written over.
//
//   resident MIB
//
// Prints how long it takes on this machine to copy MIB of memory to fresh shared memory, and to copy
// its own to the host and back, in ms, and begins. A line on standard input ends it. One JSON line at the end:
// rounds, every gap between two results of more than a millisecond (in ms), and the verdict.
#define _GNU_SOURCE
#include "../../examples/cuda/common.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

EMBED(share_ptx, "kernels/share.ptx");

// A round writes a stripe of a block.
enum { ELEMENTS = 64, BLOCK = 1 << 20, STRIPE = BLOCK / 16, STRIPES = BLOCK / STRIPE };
enum { GRAPH_STEPS = 3, GAPS_MAX = 100000 };

static double gaps[GAPS_MAX];

// What copying so many bytes takes here, to memory that nobody used before, in ms: the least of
// five times.
static double copy_ms(size_t bytes) {
    double least = 1e9;
    for (int i = 0; i < 5; ++i) {
        int flags = MAP_SHARED | MAP_ANONYMOUS;
        char *from = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        char *to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (from == MAP_FAILED || to == MAP_FAILED)
            exit(2);
        memset(from, i + 1, bytes);
        double begin = seconds_now();
        memcpy(to, from, bytes);
        double took = 1e3 * (seconds_now() - begin);
        least = took < least ? took : least;
        if (memcmp(from, to, bytes) != 0)
            exit(2);
        munmap(from, bytes);
        munmap(to, bytes);
    }
    return least;
}

// What copying the blocks to fresh host memory and back takes, in ms.
static double round_trip_ms(const CUdeviceptr *blocks, int count) {
    char *host = mmap(NULL, (size_t)count * BLOCK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED)
        exit(2);
    double begin = seconds_now();
    for (int i = 0; i < count; ++i)
        CHECK(cuMemcpyDtoH(host + (size_t)i * BLOCK, blocks[i], BLOCK));
    for (int i = 0; i < count; ++i)
        CHECK(cuMemcpyHtoD(blocks[i], host + (size_t)i * BLOCK, BLOCK));
    CHECK(cuCtxSynchronize());
    double took = 1e3 * (seconds_now() - begin);
    munmap(host, (size_t)count * BLOCK);
    return took;
}

static CUgraphExec steps_graph(CUfunction step, CUdeviceptr *state) {
    CUgraph graph;
    CUgraphExec executable;
    CUgraphNode before = NULL;
    void *arguments[] = {state};
    CUDA_KERNEL_NODE_PARAMS params = {.func = step, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                      .blockDimX = ELEMENTS, .blockDimY = 1, .blockDimZ = 1,
                                      .kernelParams = arguments};
    CHECK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < GRAPH_STEPS; ++i) {
        CUgraphNode node;
        CHECK(cuGraphAddKernelNode(&node, graph, i > 0 ? &before : NULL, i > 0, &params));
        before = node;
    }
    CHECK(cuGraphInstantiate(&executable, graph, 0));
    CHECK(cuGraphDestroy(graph));
    return executable;
}

static int is_told_to_end(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, 0) != 0;
}

// Whether a stripe holds what was written to it last.
static int holds(CUdeviceptr stripe, uint32_t value) {
    static uint32_t seen[STRIPE / 4];
    CHECK(cuMemcpyDtoH(seen, stripe, STRIPE));
    for (int i = 0; i < STRIPE / 4; ++i)
        if (seen[i] != value) {
            fprintf(stderr, "%#llx holds %#x, not %#x\n", (unsigned long long)stripe + 4 * i,
                    seen[i], value);
            return 0;
        }
    return 1;
}

int main(int argc, char **argv) {
    int count = argc == 2 ? atoi(argv[1]) : 0;
    if (count <= 0) {
        fprintf(stderr, "usage: resident MIB\n");
        return 2;
    }
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction step = load_kernel(&module, share_ptx, "step_21us");
    CUdeviceptr first = new_steps(ELEMENTS), second = new_steps(ELEMENTS);
    CUdeviceptr *blocks = malloc((size_t)count * sizeof *blocks);
    long stripes = (long)count * STRIPES;
    uint32_t *values = malloc((size_t)stripes * sizeof *values);
    uint32_t own = (uint32_t)getpid() * 0x85EBCA6Bu;
    CUstream one, other;
    CUevent done;
    CHECK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < count; ++i) {
        CHECK(cuMemAlloc(&blocks[i], BLOCK));
        for (int j = 0; j < STRIPES; ++j) {
            values[i * STRIPES + j] = own + 0x9E3779B9u * (uint32_t)(i * STRIPES + j);
            CHECK(cuMemsetD32(blocks[i] + j * STRIPE, values[i * STRIPES + j], STRIPE / 4));
        }
    }
    CUgraphExec graph = steps_graph(step, &second);
    void *arguments[] = {&first};
    CHECK(cuCtxSynchronize());
    double round_trip = round_trip_ms(blocks, count);
    printf("{\"copy_ms\": %.3f, \"round_trip_ms\": %.3f}\n", copy_ms((size_t)count * BLOCK),
           round_trip);
    fflush(stdout);

    long rounds = 0, seen = 0;
    int held = 1;
    double last = seconds_now();
    do {
        CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, one, arguments, NULL));
        CHECK(cuEventRecord(done, one));
        CHECK(cuStreamWaitEvent(other, done, 0));
        CHECK(cuGraphLaunch(graph, other));
        // Block after block, and each time the next stripe.
        long block = rounds % count, stripe = rounds / count % STRIPES;
        CUdeviceptr written = blocks[block] + stripe * STRIPE;
        uint32_t *value = &values[block * STRIPES + stripe];
        held &= holds(written, *value);
        *value += 0x01000193u;
        CHECK(cuMemsetD32Async(written, *value, STRIPE / 4, other));
        CHECK(cuStreamSynchronize(other));
        rounds += 1;
        double now = seconds_now();
        if (now - last > 1e-3 && seen < GAPS_MAX)
            gaps[seen++] = 1e3 * (now - last);
        last = now;
    } while (held && !is_told_to_end());
    for (long i = 0; held && i < stripes; ++i)
        held = holds(blocks[i / STRIPES] + i % STRIPES * STRIPE, values[i]);
    int correct = held && took_steps(first, ELEMENTS, (uint64_t)rounds) &&
                  took_steps(second, ELEMENTS, (uint64_t)rounds * GRAPH_STEPS);
    printf("{\"rounds\": %ld, \"gaps_ms\": [", rounds);
    for (long i = 0; i < seen; ++i)
        printf("%s%.3f", i > 0 ? ", " : "", gaps[i]);
    printf("], \"verified\": %s}\n", correct ? "true" : "false");
    return correct ? 0 : 1;
}
