// What a call costs: a synchronous round trip to the worker, and the submission of a launch.
// Prints one JSON line. The launched kernels' result is verified.
#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { WARM = 2000, SYNC = 50000, GROUPS = 4000, GROUP = 16, ELEMENTS = 32 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *sorted, int n, double q) { return sorted[(int)(q * (n - 1))]; }

int main(void) {
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction step = load_kernel(&module, share_ptx, "step_21us");
    uint32_t state[ELEMENTS] = {0};
    CUdeviceptr device_state;
    CHECK(cuMemAlloc(&device_state, sizeof state));
    CHECK(cuMemcpyHtoD(device_state, state, sizeof state));
    CHECK(cuCtxSynchronize());

    // The time between two events is known to the worker alone: the plain round trip.
    static double sync_us[SYNC], submit_us[GROUPS];
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
    void *arguments[] = {&device_state};
    for (int group = 0; group < GROUPS; ++group) {
        double begin = seconds_now();
        for (int i = 0; i < GROUP; ++i)
            CHECK(cuLaunchKernel(step, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
        submit_us[group] = 1e6 * (seconds_now() - begin) / GROUP;
        CHECK(cuCtxSynchronize());
    }
    CHECK(cuMemcpyDtoH(state, device_state, sizeof state));
    uint32_t expected = 0;
    for (int i = 0; i < GROUPS * GROUP; ++i)
        expected = expected * 1664525u + 1013904223u;
    int correct = 1;
    for (int i = 0; i < ELEMENTS; ++i)
        correct &= state[i] == expected;
    qsort(sync_us, SYNC, sizeof *sync_us, ascending);
    qsort(submit_us, GROUPS, sizeof *submit_us, ascending);
    printf("{\"sync_us_p50\": %.4f, \"sync_us_p99\": %.4f, \"submit_us_p50\": %.4f, "
           "\"submit_us_p99\": %.4f, \"verified\": %s}\n",
           quantile(sync_us, SYNC, .5), quantile(sync_us, SYNC, .99),
           quantile(submit_us, GROUPS, .5), quantile(submit_us, GROUPS, .99),
           correct ? "true" : "false");
    return correct ? 0 : 1;
}
