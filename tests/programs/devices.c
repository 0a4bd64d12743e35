// Several vGPUs as devices of one process: what works between them, and what is refused.
//
//   devices N          works on N devices, one by one and between the first and the second
//   devices N fault    the first device faults; the others go on

#include "../../examples/cuda/common.h"

EMBED(kernel_ptx, "kernels/vector_add.ptx");

enum { DEVICES_MAX = 15, WORDS = 100 * 1000, PITCH = 512, WIDTH = 300, HEIGHT = 70 };

struct device {
    CUcontext context;
    CUmodule module;
    CUfunction add;
    CUstream stream;
    CUdeviceptr memory;
};

static struct device devices[DEVICES_MAX];
static unsigned words[WORDS];

#define EXPECT(condition)                                                              \
    do {                                                                               \
        if (!(condition)) {                                                            \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);             \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static void use(int number) { CHECK(cuCtxSetCurrent(devices[number].context)); }

static void open_all(int count) {
    int found = 0;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&found));
    EXPECT(found == count);
    EXPECT(cuDeviceGet(&found, count) == CUDA_ERROR_INVALID_DEVICE);
    for (int i = 0; i < count; ++i) {
        struct device *device = &devices[i];
        CUdevice ordinal, own;
        CHECK(cuDeviceGet(&ordinal, i));
        CHECK(cuDevicePrimaryCtxRetain(&device->context, ordinal));
        use(i);
        CHECK(cuCtxGetDevice(&own));
        EXPECT(own == ordinal);
        device->add = load_kernel(&device->module, kernel_ptx, "vector_add");
        CHECK(cuStreamCreate(&device->stream, CU_STREAM_NON_BLOCKING));
        CHECK(cuMemAlloc(&device->memory, sizeof words));
    }
}

static int all_are(CUdeviceptr memory, unsigned value) {
    CHECK(cuMemcpyDtoH(words, memory, sizeof words));
    for (int i = 0; i < WORDS; ++i)
        if (words[i] != value)
            return 0;
    return 1;
}

static CUresult add(const struct device *device, CUstream stream, CUdeviceptr out) {
    CUdeviceptr a = device->memory, b = device->memory, c = out;
    unsigned count = WORDS;
    void *params[] = {&a, &b, &c, &count};
    return cuLaunchKernel(device->add, (WORDS + 255) / 256, 1, 1, 256, 1, 1, 0, stream, params, NULL);
}

// Each device computes with what is its own.
static void alone(int count) {
    for (int i = 0; i < count; ++i) {
        use(i);
        float value = (float)(i + 1);
        unsigned bits;
        memcpy(&bits, &value, sizeof bits);
        CHECK(cuMemsetD32(devices[i].memory, bits, WORDS));
        CHECK(cuCtxSynchronize());
        CHECK(add(&devices[i], devices[i].stream, devices[i].memory));
    }
    for (int i = 0; i < count; ++i) {
        use(i);
        CHECK(cuCtxSynchronize());
        CHECK(cuMemcpyDtoH(words, devices[i].memory, sizeof words));
        for (int k = 0; k < WORDS; ++k) {
            float value;
            memcpy(&value, &words[k], sizeof value);
            EXPECT(value == 2.0f * (float)(i + 1));
        }
    }
}

static void between(void) {
    struct device *a = &devices[0], *b = &devices[1];
    // In stream order behind a fill, from either side.
    use(0);
    CHECK(cuMemsetD32Async(a->memory, 5, WORDS, a->stream));
    CHECK(cuMemcpyAsync(b->memory, a->memory, sizeof words, a->stream));
    CHECK(cuStreamSynchronize(a->stream));
    use(1);
    EXPECT(all_are(b->memory, 5));
    CHECK(cuMemsetD32(b->memory, 6, WORDS));
    use(0);
    CHECK(cuMemcpyPeer(a->memory, a->context, b->memory, b->context, sizeof words));
    EXPECT(all_are(a->memory, 6));
    CHECK(cuMemcpyDtoD(b->memory + 4, a->memory, 8));
    // Rows of a box.
    CUdeviceptr from, to;
    use(1);
    CHECK(cuMemAlloc(&to, PITCH * HEIGHT));
    CHECK(cuMemsetD8(to, 1, PITCH * HEIGHT));
    use(0);
    CHECK(cuMemAlloc(&from, PITCH * HEIGHT));
    CHECK(cuMemsetD8(from, 9, PITCH * HEIGHT));
    CUDA_MEMCPY2D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from, .srcPitch = WIDTH,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstPitch = PITCH,
                         .WidthInBytes = WIDTH, .Height = HEIGHT};
    CHECK(cuMemcpy2D(&box));
    static unsigned char rows[HEIGHT][PITCH];
    use(1);
    CHECK(cuMemcpyDtoH(rows, to, sizeof rows));
    for (int y = 0; y < HEIGHT; ++y)
        for (int x = 0; x < PITCH; ++x)
            EXPECT(rows[y][x] == (x < WIDTH ? 9 : 1));
    // What is freed is the other device's: the current one does not matter.
    CHECK(cuMemFree(from));
    CHECK(cuMemFree(to));
    // Page-locked memory of one device serves copies of the other.
    unsigned *pinned;
    use(0);
    CHECK(cuMemAllocHost((void **)&pinned, sizeof words));
    for (int i = 0; i < WORDS; ++i)
        pinned[i] = 11;
    use(1);
    CHECK(cuMemcpyHtoDAsync(b->memory, pinned, sizeof words, b->stream));
    CHECK(cuStreamSynchronize(b->stream));
    EXPECT(all_are(b->memory, 11));
    CHECK(cuMemFreeHost(pinned));
}

static void events(void) {
    struct device *a = &devices[0], *b = &devices[1];
    CUevent first, second;
    float ms;
    use(0);
    CHECK(cuEventCreate(&first, 0));
    CHECK(cuMemsetD32Async(a->memory, 21, WORDS, a->stream));
    CHECK(cuEventRecord(first, a->stream));
    use(1);
    CHECK(cuStreamWaitEvent(b->stream, first, 0));
    CHECK(cuStreamSynchronize(b->stream));
    CHECK(cuEventQuery(first));
    CHECK(cuEventCreate(&second, 0));
    EXPECT(cuEventRecord(second, a->stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventRecord(second, b->stream));
    CHECK(cuEventSynchronize(second));
    EXPECT(cuEventElapsedTime(&ms, first, second) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventDestroy(first));
    CHECK(cuEventDestroy(second));
}

// Nobody waits for more than the stream says: neither the caller nor the other device's streams.
static void in_order(void) {
    struct device *a = &devices[0], *b = &devices[1];
    CUstream busy;
    CUevent event;
    unsigned *flag;
    CUdeviceptr flag_a, flag_b;
    use(1);
    CHECK(cuStreamCreate(&busy, 0));
    CHECK(cuMemAlloc(&flag_b, 4));
    CHECK(cuMemsetD32(flag_b, 0, 1));
    CHECK(cuStreamWaitValue32(busy, flag_b, 1, CU_STREAM_WAIT_VALUE_EQ));
    use(0);
    CHECK(cuMemsetD32Async(a->memory, 31, WORDS, a->stream));
    CHECK(cuMemcpyPeerAsync(b->memory, b->context, a->memory, a->context, sizeof words, a->stream));
    CHECK(cuStreamSynchronize(a->stream));
    use(1);
    CHECK(cuMemcpyDtoHAsync(words, b->memory, sizeof words, b->stream));
    CHECK(cuStreamSynchronize(b->stream));
    for (int i = 0; i < WORDS; ++i)
        EXPECT(words[i] == 31);
    CHECK(cuStreamWriteValue32(b->stream, flag_b, 1, 0));
    CHECK(cuStreamSynchronize(busy));
    // The caller of a wait goes on, and may be who ends it.
    use(0);
    CHECK(cuMemAllocHost((void **)&flag, 4));
    *flag = 0;
    CHECK(cuMemHostGetDevicePointer(&flag_a, flag, 0));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuStreamWaitValue32(a->stream, flag_a, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuEventRecord(event, a->stream));
    use(1);
    CHECK(cuStreamWaitEvent(b->stream, event, 0));
    CHECK(cuMemsetD32Async(b->memory, 41, WORDS, b->stream));
    EXPECT(cuStreamQuery(b->stream) == CUDA_ERROR_NOT_READY);
    *(volatile unsigned *)flag = 1;
    CHECK(cuStreamSynchronize(b->stream));
    CHECK(cuEventQuery(event));
    CHECK(cuEventDestroy(event));
    CHECK(cuMemFreeHost(flag));
}

// Two pipelines that have nothing to do with each other, one each way: each copies to the other
// device when its flag is set, and a stream there waits for that.
static void both_ways(void) {
    CUstream from[2], to[2];
    CUdeviceptr memory[2], flags[2];
    CUevent copied[2];
    for (int i = 0; i < 2; ++i) {
        use(i);
        CHECK(cuStreamCreate(&from[i], CU_STREAM_NON_BLOCKING));
        CHECK(cuStreamCreate(&to[i], CU_STREAM_NON_BLOCKING));
        CHECK(cuMemAlloc(&memory[i], sizeof words));
        CHECK(cuMemAlloc(&flags[i], 4));
        CHECK(cuMemsetD32(flags[i], 0, 1));
        CHECK(cuMemsetD32(devices[i].memory, 50 + (unsigned)i, WORDS));
    }
    for (int i = 0; i < 2; ++i) {
        use(i);
        CHECK(cuEventCreate(&copied[i], CU_EVENT_DISABLE_TIMING));
        CHECK(cuStreamWaitValue32(from[i], flags[i], 1, CU_STREAM_WAIT_VALUE_EQ));
        CHECK(cuMemcpyPeerAsync(memory[!i], devices[!i].context, devices[i].memory,
                                devices[i].context, sizeof words, from[i]));
        CHECK(cuEventRecord(copied[i], from[i]));
        use(!i);
        CHECK(cuStreamWaitEvent(to[!i], copied[i], 0));
    }
    for (int i = 0; i < 2; ++i) {
        use(i);
        CHECK(cuStreamWriteValue32(devices[i].stream, flags[i], 1, 0));
    }
    for (int i = 0; i < 2; ++i) {
        use(i);
        CHECK(cuStreamSynchronize(to[i]));
        EXPECT(all_are(memory[i], 50 + !i));
        CHECK(cuMemFree(memory[i]));
    }
}

// A graph is of the device that it works on, whatever is current.
static void graphs(void) {
    struct device *a = &devices[0], *b = &devices[1];
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    use(0);
    CHECK(cuStreamBeginCapture(b->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuMemsetD32Async(b->memory, 51, WORDS, b->stream));
    CHECK(cuStreamEndCapture(b->stream, &graph));
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, b->stream));
    CHECK(cuStreamSynchronize(b->stream));
    use(1);
    EXPECT(all_are(b->memory, 51));
    size_t count = 1;
    CHECK(cuGraphGetNodes(graph, &node, &count));
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = a->memory, .value = 1, .elementSize = 4, .width = 1,
                                    .height = 1};
    EXPECT(cuGraphExecMemsetNodeSetParams(exec, node, &fill, b->context) ==
           CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    // A blocking capture of one device leaves the other's legacy stream alone.
    CUstream blocking;
    use(0);
    CHECK(cuStreamCreate(&blocking, 0));
    CHECK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    use(1);
    CHECK(cuMemsetD32(b->memory, 1, WORDS));
    use(0);
    CHECK(cuStreamEndCapture(blocking, &graph));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamDestroy(blocking));
}

// What would need one device to use another's.
static void refused(void) {
    struct device *a = &devices[0], *b = &devices[1];
    int can = 1;
    CHECK(cuDeviceCanAccessPeer(&can, 0, 1));
    EXPECT(can == 0);
    char first[16], second[16];
    CHECK(cuDeviceGetPCIBusId(first, sizeof first, 0));
    CHECK(cuDeviceGetPCIBusId(second, sizeof second, 1));
    EXPECT(strcmp(first, second) != 0);
    // A box that no side has room for is refused before anything is copied.
    use(0);
    CUDA_MEMCPY2D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = a->memory,
                         .srcPitch = 1ull << 40, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = b->memory, .dstPitch = 1ull << 40,
                         .WidthInBytes = 1ull << 36, .Height = 4};
    EXPECT(cuMemcpy2D(&box) == CUDA_ERROR_INVALID_VALUE);
    use(1);
    CHECK(cuMemsetD32(b->memory, 7, WORDS));
    EXPECT(cuMemcpyDtoD(b->memory, a->memory, sizeof words + 4) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(all_are(b->memory, 7));
    EXPECT(add(a, b->stream, a->memory) == CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuMemsetD32Async(a->memory, 1, WORDS, b->stream) == CUDA_ERROR_INVALID_VALUE);
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_KERNEL_NODE_PARAMS params = {.func = a->add, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                      .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    CUdeviceptr memory = a->memory;
    unsigned count = 0;
    void *values[] = {&memory, &memory, &memory, &count};
    params.kernelParams = values;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
    CHECK(cuGraphInstantiate(&exec, graph, 0));
    EXPECT(cuGraphLaunch(exec, b->stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

static void fault(int count) {
    use(0);
    // The other device's memory is nothing to this device's kernels.
    CHECK(add(&devices[0], devices[0].stream, devices[1].memory));
    EXPECT(cuStreamSynchronize(devices[0].stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    for (int i = 1; i < count; ++i) {
        use(i);
        CHECK(cuMemsetD32(devices[i].memory, 3, WORDS));
        EXPECT(all_are(devices[i].memory, 3));
    }
    // What the first one can no longer give is not what was there before.
    struct device *last = &devices[count - 1];
    CUresult copied = cuMemcpyPeerAsync(last->memory, last->context, devices[0].memory,
                                        devices[0].context, sizeof words, last->stream);
    EXPECT(copied != CUDA_SUCCESS || cuStreamSynchronize(last->stream) != CUDA_SUCCESS);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 0;
    if (count < 1 || count > DEVICES_MAX) {
        fprintf(stderr, "usage: devices N [fault]\n");
        return 2;
    }
    open_all(count);
    alone(count);
    if (argc > 2) {
        fault(count);
    } else if (count > 1) {
        between();
        events();
        in_order();
        both_ways();
        graphs();
        refused();
    }
    printf("%d devices\n", count);
    return 0;
}
