// A tenant of long kernels: keeps two launches of a kernel in flight that lasts as long as its grid
// (100 µs per block on the paced device, so 19,000 blocks are 1.9 s; STEPS_PER_BLOCK steps per block
// on one that takes its own time), and counts finished *blocks*: each block counts itself in pinned
// memory (there every 64th does), which the program reads at the end of each window.
//
//   long SECONDS [--blocks N] [--start AT] [--window SECONDS]
//
// Prints {"window": BLOCKS} as each window passes, and at the end how many blocks finished within
// the time and whether the result proves that every block of every launch ran once.
#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { AHEAD = 2 };

static void nap(double seconds) {
    if (seconds <= 0.0)
        return;
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

// Whether every block advanced its element by so many steps.
static int verify(CUdeviceptr state, uint32_t blocks, uint64_t steps) {
    uint32_t *result = malloc(blocks * sizeof *result);
    CHECK(cuMemcpyDtoH(result, state, blocks * sizeof *result));
    uint32_t expected = 0;
    for (uint64_t i = 0; i < steps; ++i)
        expected = expected * 1664525u + 1013904223u;
    int correct = 1;
    for (uint32_t i = 0; i < blocks; ++i)
        correct &= result[i] == expected;
    free(result);
    return correct;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 3.0, start = 0.0, window = 0.0;
    uint32_t blocks = 19000;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--blocks") == 0)
            blocks = (uint32_t)atol(argv[i + 1]);
        else if (strcmp(argv[i], "--start") == 0)
            start = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--window") == 0)
            window = atof(argv[i + 1]);
    }
    CUdevice device;
    open_device(&device);
    CUmodule module;
    const char *per_block = getenv("STEPS_PER_BLOCK");
    double wanted = per_block != NULL ? strtod(per_block, NULL) : 1.0;
    if (!(wanted >= 1.0 && wanted <= (double)UINT32_MAX) || blocks == 0 || blocks > INT32_MAX) {
        fprintf(stderr, "long: STEPS_PER_BLOCK=%s or --blocks is no number from 1 on that fits\n",
                per_block != NULL ? per_block : "");
        return 2;
    }
    uint32_t steps = (uint32_t)wanted;
    // Few at a time on a GPU, of which one works.
    unsigned threads = per_block != NULL ? 1024 : 32;
    CUfunction kernel =
        load_kernel(&module, share_ptx, per_block != NULL ? "blocks_steps" : "blocks_100us");
    CUdeviceptr state, device_finished;
    CHECK(cuMemAlloc(&state, (blocks + 1ul) * sizeof(uint32_t)));
    CHECK(cuMemsetD32(state, 0, blocks + 1ul));
    volatile uint32_t *finished;
    CHECK(cuMemHostAlloc((void **)&finished, sizeof *finished, CU_MEMHOSTALLOC_DEVICEMAP));
    *finished = 0;
    CHECK(cuMemHostGetDevicePointer(&device_finished, (void *)finished, 0));
    CUevent done[AHEAD];
    for (int i = 0; i < AHEAD; ++i)
        CHECK(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
    void *arguments[] = {&state, &device_finished, &steps};
    CHECK(cuCtxSynchronize());
    nap(start - seconds_now());

    double begin = seconds_now(), window_end = begin + window;
    uint32_t reported = 0;
    long launches = 0, ended = 0;
    while (seconds_now() < begin + seconds) {
        while (launches - ended < AHEAD) {
            CHECK(cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, NULL, arguments, NULL));
            CHECK(cuEventRecord(done[launches % AHEAD], NULL));
            launches += 1;
        }
        double left = window > 0.0 ? window_end - seconds_now() : 0.005;
        nap(left < 0.005 ? left : 0.005);
        if (window > 0.0 && seconds_now() >= window_end) {
            uint32_t now = *finished;
            printf("{\"window\": %u}\n", now - reported);
            fflush(stdout);
            reported = now;
            window_end += window;
        }
        while (ended < launches) {
            CUresult result = cuEventQuery(done[ended % AHEAD]);
            if (result == CUDA_ERROR_NOT_READY)
                break;
            CHECK(result);
            ended += 1;
        }
    }
    double stop = seconds_now();
    uint32_t in_time = *finished;
    CHECK(cuCtxSynchronize());
    double drained = seconds_now();
    int correct = *finished == (uint32_t)(launches * blocks) &&
                  verify(state, blocks, (uint64_t)launches * steps);
    printf("{\"kernel\": \"blocks_100us\", \"launches\": %ld, \"completed\": %u, "
           "\"seconds\": %.6f, \"drained_seconds\": %.6f, \"verified\": %s}\n",
           launches, in_time, stop - begin, drained - begin, correct ? "true" : "false");
    return correct ? 0 : 1;
}
