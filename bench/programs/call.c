// What a call costs: a synchronous round trip to the worker, and the submission of a launch.
// Prints one JSON line. The launched kernels' result is verified.
//
//   call                 both
//   call polled          round trips alone, which both sides poll for; prints how many there were
//   call blocked         waits alone that outlast the polling; prints how many there were
#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { WARM = 2000, SYNC = 50000, GROUPS = 4000, GROUP = 16, ELEMENTS = 32 };
enum { WAITS = 500, OF_WAIT = 256 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *sorted, int n, double q) { return sorted[(int)(q * (n - 1))]; }

static double sync_us[SYNC], submit_us[GROUPS];

static void round_trips(void) {
    // The time between two events is known to the worker alone: the plain round trip.
    CUevent first, second;
    CHECK(cuEventCreate(&first, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&second, CU_EVENT_DEFAULT));
    CHECK(cuEventRecord(first, NULL));
    CHECK(cuEventRecord(second, NULL));
    CHECK(cuCtxSynchronize());
    float elapsed_ms;
    for (int i = 0; i < WARM + SYNC; ++i) {
        double begin = seconds_now();
        CHECK(cuEventElapsedTime(&elapsed_ms, first, second));
        if (i >= WARM)
            sync_us[i - WARM] = 1e6 * (seconds_now() - begin);
    }
    qsort(sync_us, SYNC, sizeof *sync_us, ascending);
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

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction step = load_kernel(&module, share_ptx, "step_21us");
    uint32_t state[ELEMENTS] = {0};
    CUdeviceptr device_state;
    CHECK(cuMemAlloc(&device_state, sizeof state));
    CHECK(cuMemcpyHtoD(device_state, state, sizeof state));
    CHECK(cuCtxSynchronize());
    if (!strcmp(only, "blocked")) {
        launches(step, &device_state, WAITS, OF_WAIT);
        int correct = is_correct(device_state, WAITS * OF_WAIT);
        printf("{\"calls\": %d, \"verified\": %s}\n", WAITS, correct ? "true" : "false");
        return correct ? 0 : 1;
    }
    round_trips();
    if (!strcmp(only, "polled")) {
        printf("{\"calls\": %d, \"sync_us_p50\": %.4f, \"verified\": true}\n", WARM + SYNC,
               quantile(sync_us, SYNC, .5));
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
