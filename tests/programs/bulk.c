// One large copy from the device into pinned memory at a time: bulk ROUNDS [BELOW], of words that are
// anything, or below BELOW. Says when the first one begins; a wrong result is 1, a CUDA error 2.
#include "../../examples/cuda/common.h"

enum { WORDS = 8 << 20 };

static void fill(uint32_t *words, uint32_t seed, uint32_t below) {
    for (int i = 0; i < WORDS; ++i) {
        seed = seed * 1664525u + 1013904223u;
        words[i] = below > 0 ? (seed >> 8) % below : seed;
    }
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    uint32_t below = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    CUdevice device;
    open_device(&device);
    size_t bytes = WORDS * sizeof(uint32_t);
    uint32_t *words, *expected = malloc(bytes);
    CHECK(cuMemHostAlloc((void **)&words, bytes, 0));
    fill(expected, 1, below);
    CUdeviceptr there;
    CHECK(cuMemAlloc(&there, bytes));
    CHECK(cuMemcpyHtoD(there, expected, bytes));
    CHECK(cuCtxSynchronize());
    printf("ready\n");
    fflush(stdout);
    int is_right = 1;
    for (int round = 0; round < rounds && is_right; ++round) {
        memset(words, 0, bytes);
        CHECK(cuMemcpyDtoHAsync(words, there, bytes, NULL));
        CHECK(cuCtxSynchronize());
        is_right = memcmp(words, expected, bytes) == 0;
    }
    return verdict("bulk", is_right);
}
