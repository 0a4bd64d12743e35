// A tenant that keeps the device busy: launches one kernel over and over for a while, and reports
// how many launches it completed and whether the result proves that each of them ran once.
//
//   share KERNEL SECONDS [--sync] [--sleep PERCENT] [--count N] [--start AT] [--window SECONDS]
//
// --sync waits after every launch instead of keeping batches in flight. --sleep idles that share
// of the time. --count stops after N launches instead of SECONDS. --start waits until that moment
// (CLOCK_MONOTONIC, seconds), so that several tenants begin together. --window prints the count
// completed in each window as it passes. One JSON line at the end.
#include "common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { ELEMENTS = 64, BATCH_NS = 3000000, AHEAD = 2 };

struct options {
    const char *kernel;
    double seconds, start, window;
    long count;
    int sync, sleep_percent;
};

static void nap(double seconds) {
    if (seconds <= 0.0)
        return;
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static struct options parse(int argc, char **argv) {
    struct options options = {0};
    if (argc < 3) {
        fprintf(stderr, "usage: share KERNEL SECONDS [--sync] [--sleep PERCENT] [--count N] "
                        "[--start AT] [--window SECONDS]\n");
        exit(2);
    }
    options.kernel = argv[1];
    options.seconds = atof(argv[2]);
    for (int i = 3; i < argc; ++i) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--sync") == 0) {
            options.sync = 1;
            continue;
        }
        if (value == NULL) {
            fprintf(stderr, "share: %s needs a value\n", argv[i]);
            exit(2);
        }
        if (strcmp(argv[i], "--sleep") == 0)
            options.sleep_percent = atoi(value);
        else if (strcmp(argv[i], "--count") == 0)
            options.count = atol(value);
        else if (strcmp(argv[i], "--start") == 0)
            options.start = atof(value);
        else if (strcmp(argv[i], "--window") == 0)
            options.window = atof(value);
        else {
            fprintf(stderr, "share: unknown option %s\n", argv[i]);
            exit(2);
        }
        ++i;
    }
    return options;
}

// Launches per batch, so that a batch lasts about BATCH_NS: the kernel's name tells its time.
static int batch_size(const struct options *options) {
    long us = 0;
    sscanf(options->kernel, "step_%ldus", &us);
    if (options->sync || us <= 0)
        return 1;
    long size = BATCH_NS / 1000 / us;
    return size < 1 ? 1 : (int)size;
}

// Whether every element advanced exactly `launches` steps from its index.
static int verify(CUdeviceptr state, long launches) {
    uint32_t result[ELEMENTS];
    CHECK(cuMemcpyDtoH(result, state, sizeof result));
    uint32_t factor = 1, offset = 0; // x → factor · x + offset after all steps.
    for (long i = 0; i < launches; ++i) {
        factor *= 1664525u;
        offset = offset * 1664525u + 1013904223u;
    }
    for (uint32_t i = 0; i < ELEMENTS; ++i)
        if (result[i] != factor * i + offset)
            return 0;
    return 1;
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction step = load_kernel(&module, share_ptx, options.kernel);
    uint32_t initial[ELEMENTS];
    for (uint32_t i = 0; i < ELEMENTS; ++i)
        initial[i] = i;
    CUdeviceptr state;
    CHECK(cuMemAlloc(&state, sizeof initial));
    CHECK(cuMemcpyHtoD(state, initial, sizeof initial));
    CUevent done[AHEAD];
    for (int i = 0; i < AHEAD; ++i)
        CHECK(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
    void *arguments[] = {&state};
    int batch = batch_size(&options);
    CHECK(cuCtxSynchronize());
    nap(options.start - seconds_now());

    double begin = seconds_now(), window_end = begin + options.window;
    long launched = 0, completed = 0, completed_before = 0, batches = 0;
    for (;;) {
        double now = seconds_now();
        if (options.count > 0 ? launched >= options.count : now >= begin + options.seconds)
            break;
        double batch_begin = now;
        for (int i = 0; i < batch; ++i)
            CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
        launched += batch;
        CHECK(cuEventRecord(done[batches % AHEAD], NULL));
        ++batches;
        if (options.sync || options.sleep_percent > 0) {
            CHECK(cuCtxSynchronize());
            completed = launched;
        } else if (batches >= AHEAD) {
            CHECK(cuEventSynchronize(done[batches % AHEAD])); // The oldest batch in flight.
            completed = launched - (long)batch * (AHEAD - 1);
        }
        if (options.sleep_percent > 0) {
            double busy = seconds_now() - batch_begin;
            nap(busy * options.sleep_percent / (100.0 - options.sleep_percent));
        }
        if (options.window > 0.0 && seconds_now() >= window_end) {
            printf("{\"window\": %ld}\n", completed - completed_before);
            fflush(stdout);
            completed_before = completed;
            window_end += options.window;
        }
    }
    double stop = seconds_now();
    long in_time = completed;
    CHECK(cuCtxSynchronize());
    double drained = seconds_now();
    int correct = verify(state, launched);
    printf("{\"kernel\": \"%s\", \"launches\": %ld, \"completed\": %ld, \"seconds\": %.6f, "
           "\"drained_seconds\": %.6f, \"verified\": %s}\n",
           options.kernel, launched, in_time, stop - begin, drained - begin,
           correct ? "true" : "false");
    return correct ? 0 : 1;
}
