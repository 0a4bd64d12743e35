// Programs that share one processor: interactive tenants, which wait for every kernel, and hogs,
// which only compute.
//
//   cosched tenant KERNEL SECONDS START PROCESSOR
//   cosched hog SECONDS START PROCESSOR
//
// START is a moment of CLOCK_MONOTONIC in seconds, or - for a tenant in a virtual machine, whose
// clock is another one: it prints a line and begins, records nothing for the first seconds, and
// prints how long each launch took until the program ran again. A tenant prints, in ns and for
// every wait in which it slept, how long after the end of its kernel it ran: the device's own time
// stamps against the clock, whose difference is the smallest that was seen. Both print the
// processor time that they got. The result proves that every launch ran once. One JSON line at the
// end.
#define _GNU_SOURCE
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { ELEMENTS = 64, WAITS_MAX = 30000, WARM_SECONDS = 3 };

// A wait: the end of its kernel, when the program ran again, and whether it slept meanwhile.
static struct wait {
    CUevent end;
    double launched, ran;
    int slept;
} waits[WAITS_MAX];

static void pin(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("cosched: sched_setaffinity");
        exit(2);
    }
}

static void wait_until(double moment) {
    while (seconds_now() < moment) {
        struct timespec pause = {0, 500000};
        nanosleep(&pause, NULL);
    }
}

static double processor_seconds(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

static long sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static int hog(double seconds, double start) {
    wait_until(start);
    double before = processor_seconds(), end = start + seconds;
    volatile uint64_t work = 0;
    while (seconds_now() < end)
        for (int i = 0; i < 10000; ++i)
            work += (uint64_t)i;
    printf("{\"hog\": true, \"processor_seconds\": %.6f, \"verified\": true}\n",
           processor_seconds() - before);
    return 0;
}

// Prints how late the program ran after each wait in which it slept, against the promptest of all.
static void print_lateness(CUevent base, long count) {
    double promptest = INFINITY;
    for (long i = 0; i < count; ++i) {
        float ms;
        CHECK(cuEventElapsedTime(&ms, base, waits[i].end));
        waits[i].ran -= 1e-3 * (double)ms;
        promptest = fmin(promptest, waits[i].ran);
    }
    const char *separator = "";
    for (long i = 0; i < count; ++i)
        if (waits[i].slept) {
            printf("%s%.0f", separator, 1e9 * (waits[i].ran - promptest));
            separator = ",";
        }
}

// Prints how long each launch took until the program ran again, in ns.
static void print_times(long count) {
    for (long i = 0; i < count; ++i)
        printf("%s%.0f", i > 0 ? "," : "", 1e9 * (waits[i].ran - waits[i].launched));
}

static int tenant(const char *kernel, double seconds, const char *begins, int processor) {
    int is_guest = strcmp(begins, "-") == 0;
    double start = is_guest ? 0 : atof(begins);
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction step = load_kernel(&module, share_ptx, kernel);
    CUdeviceptr state = new_steps(ELEMENTS);
    void *arguments[] = {&state};
    CUevent base;
    CHECK(cuEventCreate(&base, CU_EVENT_DEFAULT));
    for (long i = 0; i < WAITS_MAX; ++i)
        CHECK(cuEventCreate(&waits[i].end, CU_EVENT_DEFAULT));
    CHECK(cuEventRecord(base, NULL));
    CHECK(cuCtxSynchronize());
    pin(processor);
    wait_until(start);
    if (is_guest) {
        printf("{\"ready\": true}\n");
        fflush(stdout);
        start = seconds_now();
        seconds += WARM_SECONDS;
    }

    double used = processor_seconds(), end = start + seconds;
    long launches = 0, recorded = 0;
    while (seconds_now() < end && recorded < WAITS_MAX) {
        struct wait *wait = &waits[recorded];
        wait->launched = seconds_now();
        CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
        CHECK(cuEventRecord(wait->end, NULL));
        ++launches;
        recorded += !is_guest || wait->launched >= start + WARM_SECONDS;
        long sleeps_before = sleeps();
        CHECK(cuCtxSynchronize());
        wait->ran = seconds_now();
        wait->slept = sleeps() > sleeps_before;
    }
    used = processor_seconds() - used;
    double took = seconds_now() - start;
    int correct = took_steps(state, ELEMENTS, (uint64_t)launches);
    printf("{\"launches\": %ld, \"seconds\": %.6f, \"processor_seconds\": %.6f, \"waits_ns\": [",
           launches, took, used);
    if (is_guest)
        print_times(recorded);
    else
        print_lateness(base, recorded);
    printf("], \"verified\": %s}\n", correct ? "true" : "false");
    return correct ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "hog") == 0) {
        pin(atoi(argv[4]));
        return hog(atof(argv[2]), atof(argv[3]));
    }
    if (argc == 6 && strcmp(argv[1], "tenant") == 0)
        return tenant(argv[2], atof(argv[3]), argv[4], atoi(argv[5]));
    fprintf(stderr, "usage: cosched tenant KERNEL SECONDS START PROCESSOR\n"
                    "       cosched hog SECONDS START PROCESSOR\n");
    return 2;
}
