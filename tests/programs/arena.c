// Eight threads copy pageable buffers in and out at once, far more than a small arena holds: each
// copy must wait for room, none for another that waits, and every byte must arrive.
#include "../../examples/cuda/common.h"
#include <pthread.h>

enum { THREADS = 8, ROUNDS = 6, BYTES = 3 << 20 };

static CUcontext shared_context;

static void *copy(void *argument) {
    uint32_t seed = (uint32_t)(uintptr_t)argument;
    CHECK(cuCtxSetCurrent(shared_context));
    CUdeviceptr memory;
    CUstream stream;
    CHECK(cuMemAlloc(&memory, BYTES));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    uint32_t *out = malloc(BYTES), *back = malloc(BYTES);
    uintptr_t wrong = 0;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        for (uint32_t i = 0; i < BYTES / 4; ++i)
            out[i] = i * 2654435761u + seed + round;
        memset(back, 0, BYTES);
        CHECK(cuMemcpyHtoDAsync(memory, out, BYTES, stream));
        CHECK(cuMemcpyDtoHAsync(back, memory, BYTES, stream));
        CHECK(cuStreamSynchronize(stream));
        wrong += memcmp(out, back, BYTES) != 0;
    }
    free(out);
    free(back);
    CHECK(cuMemFree(memory));
    return (void *)wrong;
}

int main(void) {
    CUdevice device;
    shared_context = open_device(&device);
    pthread_t threads[THREADS];
    uintptr_t wrong = 0;
    for (uintptr_t i = 0; i < THREADS; ++i)
        if (pthread_create(&threads[i], NULL, copy, (void *)i) != 0)
            return 2;
    for (int i = 0; i < THREADS; ++i) {
        void *count;
        pthread_join(threads[i], &count);
        wrong += (uintptr_t)count;
    }
    printf("arena: %s\n", wrong == 0 ? "PASSED" : "FAILED");
    return wrong == 0 ? 0 : 1;
}
