// A tenant whose kernels change: phases of one kernel size, then of another, at unequal lengths,
// so that a prediction from the last few kernels is wrong at every change.
//
//   phases SECONDS [START]
//
// Prints how often each kernel ran; the result proves the sum.
#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { ELEMENTS = 32, KINDS = 3 };

int main(int argc, char **argv) {
    static const char *const names[KINDS] = {"step_51us", "step_391us", "step_172us"};
    static const int lengths[KINDS] = {230, 37, 61}; // Launches per phase: 12, 14 and 10 ms.
    double seconds = argc > 1 ? atof(argv[1]) : 3.0;
    double start = argc > 2 ? atof(argv[2]) : 0.0;
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction kernels[KINDS];
    kernels[0] = load_kernel(&module, share_ptx, names[0]);
    for (int i = 1; i < KINDS; ++i)
        CHECK(cuModuleGetFunction(&kernels[i], module, names[i]));
    uint32_t state[ELEMENTS] = {0};
    CUdeviceptr device_state;
    CHECK(cuMemAlloc(&device_state, sizeof state));
    CHECK(cuMemcpyHtoD(device_state, state, sizeof state));
    void *arguments[] = {&device_state};
    long counts[KINDS] = {0};
    while (seconds_now() < start) {
        struct timespec moment = {0, 1000000};
        nanosleep(&moment, NULL);
    }
    double begin = seconds_now();
    for (int phase = 0; seconds_now() < begin + seconds; ++phase) {
        int kind = phase % KINDS, length = lengths[kind] - phase % 7;
        for (int i = 0; i < length; ++i)
            CHECK(cuLaunchKernel(kernels[kind], 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
        counts[kind] += length;
        if (phase % 3 == 2)
            CHECK(cuCtxSynchronize());
    }
    CHECK(cuMemcpyDtoH(state, device_state, sizeof state));
    uint32_t expected = 0;
    for (long i = 0; i < counts[0] + counts[1] + counts[2]; ++i)
        expected = expected * 1664525u + 1013904223u;
    int correct = state[0] == expected && state[ELEMENTS - 1] == expected;
    printf("{\"step_51us\": %ld, \"step_391us\": %ld, \"step_172us\": %ld, \"verified\": %s}\n",
           counts[0], counts[1], counts[2], correct ? "true" : "false");
    return correct ? 0 : 1;
}
