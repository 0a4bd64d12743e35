// A tenant that keeps the device busy: launches one kernel over and over for a while, and reports
// how many launches it completed and whether the result proves that each of them ran once.
//
//   share KERNEL SECONDS [--sync] [--sleep PERCENT] [--count N] [--start AT] [--window SECONDS]
//         [--graph N] [--ex]
//
// KERNEL is step_21us, step_46us, step_51us, step_102us, step_133us, step_172us, step_207us,
// step_285us, step_377us or step_391us (kernels/share.ptx). --sync waits after every launch instead of
// keeping 16 batches of about 1 ms in flight. --sleep idles that share of the time. --count stops
// after N launches instead of SECONDS. --start waits until that moment (CLOCK_MONOTONIC, seconds), so
// that several tenants begin together; with `-` it prints a line when it is ready and reads the moment
// from standard input. --window prints how many launches completed in each window as it passes.
// --graph launches graphs of N kernels instead, --ex uses cuLaunchKernelEx. One JSON line at the end.
#include "common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { BATCH_US = 1000, AHEAD = 16 };

struct options {
    const char *kernel;
    double seconds, start, window;
    int start_is_asked;
    long count;
    int sync, sleep_percent, graph, ex;
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
                        "[--start AT] [--window SECONDS] [--graph N] [--ex]\n");
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
        if (strcmp(argv[i], "--ex") == 0) {
            options.ex = 1;
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
        else if (strcmp(argv[i], "--graph") == 0)
            options.graph = atoi(value);
        else if (strcmp(argv[i], "--start") == 0) {
            options.start_is_asked = strcmp(value, "-") == 0;
            options.start = atof(value);
        }
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

// Launches per batch, so that a batch lasts about BATCH_US: the kernel's name tells its time.
static int batch_size(const struct options *options) {
    if (options->graph > 0)
        return options->graph;
    long us = step_us(options->kernel);
    if (options->sync || us <= 0)
        return 1;
    long size = BATCH_US / us;
    return size < 1 ? 1 : (int)size;
}

// How a batch is launched: kernel by kernel, or as a graph.
struct launcher {
    struct step_kernel step;
    CUgraphExec graph;
    int ex;
};

// A graph of `kernels` launches one after the other.
static CUgraphExec build_graph(struct step_kernel *step, int kernels) {
    CUDA_KERNEL_NODE_PARAMS params = {0};
    params.func = step->function;
    params.gridDimX = step->blocks;
    params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = STEP_THREADS;
    params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = step->arguments;
    return chain_of(&params, kernels);
}

// What has been launched and what of it has completed, in batches.
struct progress {
    CUevent done[AHEAD];
    long batches, batches_done, completed;
    int batch;
};

static void launch_batch(struct progress *progress, struct launcher *launcher) {
    struct step_kernel *step = &launcher->step;
    CUlaunchConfig config = {.gridDimX = step->blocks, .gridDimY = 1, .gridDimZ = 1,
                             .blockDimX = STEP_THREADS, .blockDimY = 1, .blockDimZ = 1};
    if (launcher->graph != NULL)
        CHECK(cuGraphLaunch(launcher->graph, NULL));
    for (int i = 0; launcher->graph == NULL && i < progress->batch; ++i) {
        if (launcher->ex)
            CHECK(cuLaunchKernelEx(&config, step->function, step->arguments, NULL));
        else
            CHECK(launch_step(step));
    }
    CHECK(cuEventRecord(progress->done[progress->batches % AHEAD], NULL));
    progress->batches += 1;
}

// Counts the batches that have completed by now.
static void collect(struct progress *progress) {
    while (progress->batches_done < progress->batches) {
        CUresult result = cuEventQuery(progress->done[progress->batches_done % AHEAD]);
        if (result == CUDA_ERROR_NOT_READY)
            return;
        CHECK(result);
        progress->batches_done += 1;
        progress->completed += progress->batch;
    }
}

// Prints each window that has passed. Called with what had completed when it passed: nothing
// completes while the program waits for the oldest batch, so the count before the wait holds.
static void report_windows(double now, double *window_end, double window, long completed,
                           long *reported) {
    while (window > 0.0 && now >= *window_end) {
        printf("{\"window\": %ld}\n", completed - *reported);
        fflush(stdout);
        *reported = completed;
        *window_end += window;
    }
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    CUdevice device;
    open_device(&device);
    struct launcher launcher = {.ex = options.ex};
    open_step_kernel(&launcher.step, share_ptx, options.kernel);
    struct progress progress = {.batch = batch_size(&options)};
    for (int i = 0; i < AHEAD; ++i)
        CHECK(cuEventCreate(&progress.done[i], CU_EVENT_DISABLE_TIMING));
    if (options.graph > 0)
        launcher.graph = build_graph(&launcher.step, options.graph);
    int wait_each = options.sync || options.sleep_percent > 0;
    CHECK(cuCtxSynchronize());
    if (options.start_is_asked) {
        printf("{\"ready\": true}\n");
        fflush(stdout);
        if (scanf("%lf", &options.start) != 1)
            return 2;
    }
    nap(options.start - seconds_now());

    double begin = seconds_now(), window_end = begin + options.window;
    long reported = 0;
    for (;;) {
        double batch_begin = seconds_now();
        if (options.count > 0 ? progress.batches * progress.batch >= options.count
                              : batch_begin >= begin + options.seconds)
            break;
        launch_batch(&progress, &launcher);
        long before = progress.completed;
        if (wait_each)
            CHECK(cuCtxSynchronize());
        else if (progress.batches - progress.batches_done == AHEAD)
            CHECK(cuEventSynchronize(progress.done[progress.batches_done % AHEAD]));
        report_windows(seconds_now(), &window_end, options.window, before, &reported);
        collect(&progress);
        if (options.sleep_percent > 0) {
            double busy = seconds_now() - batch_begin;
            nap(busy * options.sleep_percent / (100.0 - options.sleep_percent));
        }
    }
    double stop = seconds_now();
    long in_time = progress.completed, launches = progress.batches * progress.batch;
    CHECK(cuCtxSynchronize());
    double drained = seconds_now();
    int correct = ran_steps(&launcher.step, (uint64_t)launches);
    printf("{\"kernel\": \"%s\", \"launches\": %ld, \"completed\": %ld, \"seconds\": %.6f, "
           "\"drained_seconds\": %.6f, \"wait\": \"%s\", \"verified\": %s}\n",
           options.kernel, launches, in_time, stop - begin, drained - begin,
           options.sync ? "each" : "batches",
           correct ? "true" : "false");
    return correct ? 0 : 1;
}
