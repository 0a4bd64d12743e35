// What it costs the device, and who feeds it, to be told that kernels ended: so many launches of one
// kernel, in streams that say it in different ways. Prints one JSON line: for each way the time of a
// launch in us, all in all, and whether every launch ran once. Meant for a driver of its own, not
// for a vGPU, where the worker decides.
//
//   completions [STEPS]     of a kernel of one block; 1 step is as short as kernels are
//
// plain: nothing said but the end. timed: an event behind each. timed_N: behind each Nth.
// untimed: events without a time. both: one before and one behind. graph_8: graphs of 8.
// graph_8_timed: an event behind each graph. depth_N: an event behind each, and no more than N in
// flight, as who looks for the oldest's end sees it. half_N: no more than N, started anew when half
// have ended, an event behind each burst.
#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { LAUNCHES = 2000, THREADS = 32, EVENTS = 64, GRAPH = 8 };

static CUfunction kernel;
static CUdeviceptr state;
static uint32_t steps = 1;
static void *arguments[] = {&state, &steps};
static CUstream stream;
static CUevent timed[EVENTS], untimed[EVENTS];
static uint64_t launched;

static void launch(void) {
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL));
    ++launched;
}

static void with_events(const CUevent *events, int before, int each) {
    for (int i = 0; i < LAUNCHES; ++i) {
        if (before)
            CHECK(cuEventRecord(events[(2 * i + 1) % EVENTS], stream));
        launch();
        if (each > 0 && (i + 1) % each == 0)
            CHECK(cuEventRecord(events[2 * i % EVENTS], stream));
    }
}

static CUgraphExec graph_of(int nodes) {
    CUDA_KERNEL_NODE_PARAMS params = {0};
    params.func = kernel;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = THREADS;
    params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    return chain_of(&params, nodes);
}

static void with_graphs(CUgraphExec graph, int is_timed) {
    for (int i = 0; i < LAUNCHES / GRAPH; ++i) {
        CHECK(cuGraphLaunch(graph, stream));
        launched += GRAPH;
        if (is_timed)
            CHECK(cuEventRecord(timed[i % EVENTS], stream));
    }
}

static void await(CUevent event) {
    CUresult result;
    while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {}
    CHECK(result);
}

// Bursts of so many, and so many bursts in flight.
static void with_bursts(int burst, int flying) {
    int bursts = LAUNCHES / burst;
    for (int i = 0; i < bursts; ++i) {
        if (i >= flying)
            await(timed[(i - flying) % EVENTS]);
        for (int j = 0; j < burst; ++j)
            launch();
        CHECK(cuEventRecord(timed[i % EVENTS], stream));
    }
}

static const char *separator = "";

static void say(const char *name, double began, uint64_t before) {
    CHECK(cuStreamSynchronize(stream));
    printf("%s\"%s\": %.3f", separator, name, 1e6 * (seconds_now() - began) / (double)(launched - before));
    separator = ", ";
}

#define MEASURE(name, what)                                                            \
    do {                                                                               \
        what;                                                                          \
        CHECK(cuStreamSynchronize(stream));                                            \
        uint64_t before_ = launched;                                                   \
        double began_ = seconds_now();                                                 \
        what;                                                                          \
        say(name, began_, before_);                                                    \
    } while (0)

int main(int argc, char **argv) {
    if (argc > 1)
        steps = (uint32_t)atol(argv[1]);
    CUdevice device;
    open_device(&device);
    CUmodule module;
    kernel = load_kernel(&module, share_ptx, "steps");
    state = new_steps(THREADS);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < EVENTS; ++i) {
        CHECK(cuEventCreate(&timed[i], CU_EVENT_DEFAULT));
        CHECK(cuEventCreate(&untimed[i], CU_EVENT_DISABLE_TIMING));
    }
    CUgraphExec graph = graph_of(GRAPH);
    printf("{\"steps\": %u, ", steps);
    MEASURE("plain", with_events(timed, 0, 0));
    MEASURE("timed", with_events(timed, 0, 1));
    MEASURE("timed_4", with_events(timed, 0, 4));
    MEASURE("timed_16", with_events(timed, 0, 16));
    MEASURE("untimed", with_events(untimed, 0, 1));
    MEASURE("both", with_events(timed, 1, 1));
    MEASURE("graph_8", with_graphs(graph, 0));
    MEASURE("graph_8_timed", with_graphs(graph, 1));
    MEASURE("depth_1", with_bursts(1, 1));
    MEASURE("depth_2", with_bursts(1, 2));
    MEASURE("depth_4", with_bursts(1, 4));
    MEASURE("depth_16", with_bursts(1, 16));
    MEASURE("half_8", with_bursts(4, 2));
    MEASURE("half_32", with_bursts(16, 2));
    int correct = took_steps(state, THREADS, launched * steps);
    printf(", \"verified\": %s}\n", correct ? "true" : "false");
    return correct ? 0 : 1;
}
