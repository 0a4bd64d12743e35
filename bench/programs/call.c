// What a call costs: a synchronous round trip to the worker, and the submission of a launch.
// Prints one JSON line. The launched kernels' result is verified.
//
//   call                 both
//   call polled [N]      N round trips alone, which both sides poll for; prints how many there were
//   call blocked [N]     N waits alone that outlast the polling; prints how many there were
//   call line            no call: what a cache line takes to another thread's processor and back
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");
EMBED(adversary_ptx, "../../bench/programs/kernels/adversary.ptx");

enum { WARM = 2000, SYNC = 50000, GROUPS = 4000, GROUP = 16, ELEMENTS = 32 };
// Some milliseconds of a software device, whoever emulates the machine that waits.
enum { WAITS = 100, STEPS_OF_WAIT = 300000 };
enum { EXCHANGES = 64, EXCHANGE_GROUPS = 4000 };

// On one processor alone each exchange waits for the scheduler: no more than this, in seconds.
static const double EXCHANGE_LIMIT = 1.0;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *sorted, int n, double q) { return sorted[(int)(q * (n - 1))]; }

static double sync_us[SYNC], submit_us[GROUPS];

static void round_trips(int count) {
    // The time between two events is known to the worker alone: the plain round trip.
    CUevent first, second;
    CHECK(cuEventCreate(&first, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&second, CU_EVENT_DEFAULT));
    CHECK(cuEventRecord(first, NULL));
    CHECK(cuEventRecord(second, NULL));
    CHECK(cuCtxSynchronize());
    float elapsed_ms;
    for (int i = 0; i < WARM + count; ++i) {
        double begin = seconds_now();
        CHECK(cuEventElapsedTime(&elapsed_ms, first, second));
        if (i >= WARM)
            sync_us[i - WARM] = 1e6 * (seconds_now() - begin);
    }
    qsort(sync_us, (size_t)count, sizeof *sync_us, ascending);
}

static void launches(CUfunction step, CUdeviceptr *state, int groups, int group_size) {
    void *arguments[] = {state};
    for (int group = 0; group < groups; ++group) {
        double begin = seconds_now();
        for (int i = 0; i < group_size; ++i)
            CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
        submit_us[group] = 1e6 * (seconds_now() - begin) / group_size;
        CHECK(cuCtxSynchronize());
    }
    qsort(submit_us, groups, sizeof *submit_us, ascending);
}

// Kernels that take far longer than anybody polls, waited for one by one.
static int waits(int count) {
    CUmodule module;
    CUfunction work = load_kernel(&module, adversary_ptx, "work");
    CUdeviceptr state = new_steps(ELEMENTS), finished;
    CHECK(cuMemAlloc(&finished, 2 * sizeof(uint64_t)));
    CHECK(cuMemsetD32(finished, 0, 4));
    uint32_t steps = STEPS_OF_WAIT;
    void *arguments[] = {&state, &steps, &finished};
    for (int wait = 0; wait < count; ++wait) {
        CHECK(cuLaunchKernel(work, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
        CHECK(cuCtxSynchronize());
    }
    int correct = took_steps(state, ELEMENTS, (uint64_t)count * STEPS_OF_WAIT);
    printf("{\"calls\": %d, \"verified\": %s}\n", count, correct ? "true" : "false");
    return correct ? 0 : 1;
}

static int is_correct(CUdeviceptr device_state, int launched) {
    uint32_t state[ELEMENTS], expected = 0;
    CHECK(cuMemcpyDtoH(state, device_state, sizeof state));
    for (int i = 0; i < launched; ++i)
        expected = expected * 1664525u + 1013904223u;
    int correct = 1;
    for (int i = 0; i < ELEMENTS; ++i)
        correct &= state[i] == expected;
    return correct;
}

// Counts up: odd numbers are this thread's, even ones the other's.
static _Alignas(128) atomic_long line;

static void *answer(void *unused) {
    for (;;) {
        long seen = atomic_load_explicit(&line, memory_order_acquire);
        if (seen < 0)
            return unused;
        if (seen % 2 == 1)
            atomic_store_explicit(&line, seen + 1, memory_order_release);
    }
}

// Keeps a thread on the first or the last of the processors that this program may use.
static void stay(pthread_t thread, int on_last) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    int place = on_last ? CPU_SETSIZE - 1 : 0;
    while (!CPU_ISSET(place, &all))
        place += on_last ? -1 : 1;
    CPU_ZERO(&one);
    CPU_SET(place, &one);
    pthread_setaffinity_np(thread, sizeof one, &one);
}

static int exchanges(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, answer, NULL) != 0)
        return 2;
    // The mask is the calling thread's: the other one stays first.
    stay(other, 1);
    stay(pthread_self(), 0);
    int groups = 0;
    long sent = 0;
    for (double first = seconds_now(); groups < EXCHANGE_GROUPS; ++groups) {
        double begin = seconds_now();
        if (groups > 0 && begin > first + EXCHANGE_LIMIT)
            break;
        for (int i = 0; i < EXCHANGES; ++i) {
            sent += 2;
            atomic_store_explicit(&line, sent - 1, memory_order_release);
            while (atomic_load_explicit(&line, memory_order_acquire) != sent) {}
        }
        submit_us[groups] = 1e6 * (seconds_now() - begin) / EXCHANGES;
    }
    atomic_store(&line, -1);
    pthread_join(other, NULL);
    qsort(submit_us, (size_t)groups, sizeof *submit_us, ascending);
    printf("{\"line_exchange_us_p50\": %.4f, \"exchanges\": %ld, \"verified\": true}\n",
           quantile(submit_us, groups, .5), sent / 2);
    return 0;
}

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    if (!strcmp(only, "line"))
        return exchanges();
    CUdevice device;
    open_device(&device);
    int is_blocked = !strcmp(only, "blocked");
    int count = argc > 2 ? atoi(argv[2]) : is_blocked ? WAITS : SYNC;
    if (count < 0 || count > SYNC) {
        fprintf(stderr, "call: between 0 and %d of them, not %s\n", SYNC, argv[2]);
        return 2;
    }
    if (is_blocked)
        return waits(count);
    CUmodule module;
    CUfunction step = load_kernel(&module, share_ptx, "step_21us");
    uint32_t state[ELEMENTS] = {0};
    CUdeviceptr device_state;
    CHECK(cuMemAlloc(&device_state, sizeof state));
    CHECK(cuMemcpyHtoD(device_state, state, sizeof state));
    CHECK(cuCtxSynchronize());
    round_trips(count);
    if (!strcmp(only, "polled")) {
        printf("{\"calls\": %d, \"sync_us_p50\": %.4f, \"verified\": true}\n", WARM + count,
               count > 0 ? quantile(sync_us, count, .5) : 0.0);
        return 0;
    }
    launches(step, &device_state, GROUPS, GROUP);
    int correct = is_correct(device_state, GROUPS * GROUP);
    printf("{\"sync_us_p50\": %.4f, \"sync_us_p99\": %.4f, \"submit_us_p50\": %.4f, "
           "\"submit_us_p99\": %.4f, \"verified\": %s}\n",
           quantile(sync_us, SYNC, .5), quantile(sync_us, SYNC, .99),
           quantile(submit_us, GROUPS, .5), quantile(submit_us, GROUPS, .99),
           correct ? "true" : "false");
    return correct ? 0 : 1;
}
