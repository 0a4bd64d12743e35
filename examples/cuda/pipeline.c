// Streams work through pinned buffers: copy in and scale on one stream, accumulate on another,
// ordered by events alone. Also times the whole with two events.
#include "common.h"

EMBED(pipeline_ptx, "kernels/pipeline.ptx");

enum { CHUNKS = 24, CHUNK = 16384, DEPTH = 3 };

int main(void) {
    const size_t bytes = CHUNK * sizeof(float);
    int n = CHUNK;
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction scale = load_kernel(&module, pipeline_ptx, "scale");
    CUfunction accumulate;
    CHECK(cuModuleGetFunction(&accumulate, module, "accumulate"));

    CUstream feed, sum;
    CHECK(cuStreamCreate(&feed, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&sum, CU_STREAM_NON_BLOCKING));
    float *host[DEPTH];
    CUdeviceptr input[DEPTH], scaled[DEPTH], total;
    CUevent ready[DEPTH], consumed[DEPTH], copied[DEPTH], begin, end;
    for (int i = 0; i < DEPTH; ++i) {
        CHECK(cuMemAllocHost((void **)&host[i], bytes));
        CHECK(cuMemAlloc(&input[i], bytes));
        CHECK(cuMemAlloc(&scaled[i], bytes));
        CHECK(cuEventCreate(&ready[i], CU_EVENT_DISABLE_TIMING));
        CHECK(cuEventCreate(&consumed[i], CU_EVENT_DISABLE_TIMING));
        CHECK(cuEventCreate(&copied[i], CU_EVENT_DISABLE_TIMING));
    }
    CHECK(cuMemAlloc(&total, bytes));
    CHECK(cuMemsetD32(total, 0, CHUNK));
    CHECK(cuCtxSynchronize());
    CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    CHECK(cuEventRecord(begin, feed));

    double expected[CHUNK];
    memset(expected, 0, sizeof expected);
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        int slot = chunk % DEPTH;
        if (chunk >= DEPTH) {
            CHECK(cuEventSynchronize(copied[slot])); // The host buffer may be written again.
            CHECK(cuStreamWaitEvent(feed, consumed[slot], 0));
        }
        float factor = 1.0f + (float)(chunk % 4);
        for (int i = 0; i < CHUNK; ++i) {
            host[slot][i] = (float)((i * 7 + chunk * 13) % 101);
            expected[i] += factor * host[slot][i];
        }
        CHECK(cuMemcpyHtoDAsync(input[slot], host[slot], bytes, feed));
        CHECK(cuEventRecord(copied[slot], feed));
        void *scale_arguments[] = {&input[slot], &scaled[slot], &factor, &n};
        CHECK(cuLaunchKernel(scale, CHUNK / 256, 1, 1, 256, 1, 1, 0, feed, scale_arguments, NULL));
        CHECK(cuEventRecord(ready[slot], feed));
        CHECK(cuStreamWaitEvent(sum, ready[slot], 0));
        void *sum_arguments[] = {&scaled[slot], &total, &n};
        CHECK(cuLaunchKernel(accumulate, CHUNK / 256, 1, 1, 256, 1, 1, 0, sum, sum_arguments, NULL));
        CHECK(cuEventRecord(consumed[slot], sum));
    }
    CHECK(cuEventRecord(end, sum));
    float *result = malloc(bytes);
    CHECK(cuMemcpyDtoHAsync(result, total, bytes, sum));
    CHECK(cuStreamSynchronize(sum));
    CHECK(cuEventQuery(end));
    float milliseconds = -1.0f;
    CHECK(cuEventElapsedTime(&milliseconds, begin, end));

    int correct = milliseconds > 0.0f;
    for (int i = 0; i < CHUNK; ++i)
        correct &= result[i] == (float)expected[i]; // Integers below 2^24: exact.
    printf("%d chunks in %.3f ms of device time\n", CHUNKS, milliseconds);
    for (int i = 0; i < DEPTH; ++i)
        CHECK(cuMemFreeHost(host[i]));
    CHECK(cuStreamDestroy(feed));
    CHECK(cuStreamDestroy(sum));
    return verdict("pipeline", correct);
}
