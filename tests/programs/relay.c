// Everything that a session has to carry: launches that must run once each and in order, pageable
// and pinned copies, pinned memory that copies, fills, host functions and kernels write, graphs that
// do and are updated, events, words that streams write and waits for words that the program writes.
// Says how far it came; a wrong result is 1, a CUDA error 2.
#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { ELEMENTS = 32, WORDS = 40000, STEPS = 5, FEW = 256 };

static void fill(uint32_t *words, uint32_t seed) {
    for (int i = 0; i < WORDS; ++i)
        words[i] = seed = seed * 1664525u + 1013904223u;
}

struct job {
    uint32_t *words, seed;
};

static void CUDA_CB write_words(void *data) {
    struct job *job = data;
    fill(job->words, job->seed);
}

static int differs(const uint32_t *a, const uint32_t *b, const char *what, int round) {
    if (memcmp(a, b, WORDS * sizeof *a) == 0)
        return 0;
    fprintf(stderr, "round %d: %s differ\n", round, what);
    return 1;
}

// Pinned memory of graphs, fills and written words.
struct few {
    uint32_t *words[2], *back, *filled, *written;
    CUdeviceptr there;
    CUgraphExec exec;
};

static CUdeviceptr device_address(uint32_t *pinned) {
    return (CUdeviceptr)(uintptr_t)pinned;
}

static void open_few(struct few *few) {
    uint32_t **all[] = {&few->words[0], &few->words[1], &few->back, &few->filled, &few->written};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        CHECK(cuMemHostAlloc((void **)all[i], FEW * sizeof **all[i], 0));
    CHECK(cuMemAlloc(&few->there, FEW * sizeof(uint32_t)));
    few->exec = NULL;
}

// A kernel steps pinned words, which go to the device and come back elsewhere.
static CUgraph captured(const struct few *few, uint32_t *words, CUfunction step, CUstream stream) {
    CUdeviceptr stepped = device_address(words);
    void *on_words[] = {&stepped};
    CUgraph graph;
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, stream, on_words, NULL));
    CHECK(cuMemcpyHtoDAsync(few->there, words, FEW * sizeof *words, stream));
    CHECK(cuMemcpyDtoHAsync(few->back, few->there, FEW * sizeof *words, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    return graph;
}

// A graph that is updated to other pinned words in each round, a fill and a word that the stream
// writes; whether anything is wrong.
static int few_differ(struct few *few, CUfunction step, CUstream stream, int round) {
    uint32_t *words = few->words[round % 2], seed = (uint32_t)round * 3 + 1;
    for (uint32_t i = 0; i < FEW; ++i)
        words[i] = seed + i;
    CUgraph graph = captured(few, words, step, stream);
    CUgraphExecUpdateResultInfo updated;
    if (few->exec == NULL)
        CHECK(cuGraphInstantiate(&few->exec, graph, 0));
    else
        CHECK(cuGraphExecUpdate(few->exec, graph, &updated));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphLaunch(few->exec, stream));
    CHECK(cuMemsetD32Async(device_address(few->filled), seed + 1, FEW, stream));
    CHECK(cuStreamWriteValue32(stream, device_address(few->written), seed + 2,
                               CU_STREAM_WRITE_VALUE_DEFAULT));
    CHECK(cuStreamSynchronize(stream));
    const char *what = few->written[0] == seed + 2 ? NULL : "the word of a stream";
    for (uint32_t i = 0; i < FEW; ++i) {
        uint32_t value = seed + i;
        if (i < ELEMENTS)
            value = value * 1664525u + 1013904223u;
        if (words[i] != value)
            what = "words that a graph's kernel has";
        if (few->back[i] != value)
            what = "words that a graph copies";
        if (few->filled[i] != seed + 1)
            what = "words of a fill";
    }
    if (what != NULL)
        fprintf(stderr, "round %d: %s differ\n", round, what);
    return what != NULL;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 20;
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction step = load_kernel(&module, share_ptx, "step_21us");
    CUdeviceptr state = new_steps(ELEMENTS), first, second;
    size_t bytes = WORDS * sizeof(uint32_t);
    CHECK(cuMemAlloc(&first, bytes));
    CHECK(cuMemAlloc(&second, bytes));
    uint32_t *in, *middle, *out, *mapped, *flag;
    CHECK(cuMemHostAlloc((void **)&in, bytes, 0));
    CHECK(cuMemHostAlloc((void **)&middle, bytes, 0));
    CHECK(cuMemHostAlloc((void **)&out, bytes, 0));
    CHECK(cuMemHostAlloc((void **)&mapped, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(cuMemHostAlloc((void **)&flag, 4096, 0));
    uint32_t *plain = malloc(bytes), *expected = malloc(bytes);
    for (uint32_t i = 0; i < ELEMENTS; ++i)
        mapped[i] = i;
    CUstream stream;
    CUevent event;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    void *on_state[] = {&state};
    CUdeviceptr mapped_device;
    CHECK(cuMemHostGetDevicePointer(&mapped_device, mapped, 0));
    void *on_mapped[] = {&mapped_device};
    struct few few;
    open_few(&few);
    int wrong = 0;
    printf("ready\n");
    fflush(stdout);
    for (int round = 0; round < rounds && !wrong; ++round) {
        uint32_t seed = (uint32_t)round * 4 + 1;
        for (int i = 0; i < STEPS; ++i)
            CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, stream, on_state, NULL));
        // Pinned there and back, with a stop in pinned memory that only the device has written.
        fill(in, seed);
        fill(expected, seed);
        CHECK(cuMemcpyHtoDAsync(first, in, bytes, stream));
        CHECK(cuMemcpyDtoHAsync(middle, first, bytes, stream));
        CHECK(cuMemcpyHtoDAsync(second, middle, bytes, stream));
        CHECK(cuMemcpyDtoHAsync(out, second, bytes, stream));
        CHECK(cuStreamSynchronize(stream));
        wrong |= differs(out, expected, "pinned words", round);
        // A host function writes what the copy behind it reads.
        struct job job = {in, seed + 1};
        CHECK(cuLaunchHostFunc(stream, write_words, &job));
        CHECK(cuMemcpyHtoDAsync(first, in, bytes, stream));
        CHECK(cuMemcpyDtoHAsync(out, first, bytes, stream));
        CHECK(cuEventRecord(event, stream));
        CUresult is_done;
        while ((is_done = cuEventQuery(event)) == CUDA_ERROR_NOT_READY)
            ;
        CHECK(is_done);
        fill(expected, seed + 1);
        wrong |= differs(out, expected, "words of a host function", round);
        // A stream waits for a word, which the program writes behind what is copied then.
        *flag = 0;
        CHECK(cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
        CHECK(cuMemcpyHtoDAsync(first, in, bytes, stream));
        fill(in, seed + 2);
        __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
        CHECK(cuMemcpyDtoHAsync(out, first, bytes, stream));
        CHECK(cuStreamSynchronize(stream));
        fill(expected, seed + 2);
        wrong |= differs(out, expected, "words behind a flag", round);
        wrong |= few_differ(&few, step, stream, round);
        // Pageable memory, and a kernel on pinned memory.
        fill(plain, seed + 3);
        fill(expected, seed + 3);
        CHECK(cuMemcpyHtoD(second, plain, bytes));
        memset(plain, 0, bytes);
        CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, stream, on_mapped, NULL));
        CHECK(cuMemcpyDtoH(plain, second, bytes));
        wrong |= differs(plain, expected, "pageable words", round);
        CHECK(cuCtxSynchronize());
        uint32_t value = 1;
        for (int i = 0; i <= round; ++i)
            value = value * 1664525u + 1013904223u;
        if (mapped[1] != value) {
            fprintf(stderr, "round %d: the kernel's words are %u, not %u\n", round, mapped[1], value);
            wrong = 1;
        }
    }
    CHECK(cuCtxSynchronize());
    wrong |= !took_steps(state, ELEMENTS, (uint64_t)rounds * STEPS);
    return verdict("relay", !wrong);
}
