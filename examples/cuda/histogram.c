// Counts bytes into 256 bins with atomics in shared and in global memory.
#include "common.h"

EMBED(histogram_ptx, "kernels/histogram.ptx");

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1 << 20;
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction count = load_kernel(&module, histogram_ptx, "histogram256");
    unsigned char *data = malloc((size_t)n);
    unsigned expected[256] = {0}, bins[256];
    uint32_t state = 12345;
    for (int i = 0; i < n; ++i) {
        state = state * 1664525u + 1013904223u;
        data[i] = (unsigned char)(state >> 24);
        expected[data[i]] += 1;
    }
    CUdeviceptr device_data, device_bins;
    CHECK(cuMemAlloc(&device_data, (size_t)n));
    CHECK(cuMemAlloc(&device_bins, sizeof bins));
    CHECK(cuMemcpyHtoD(device_data, data, (size_t)n));
    CHECK(cuMemsetD8(device_bins, 0, sizeof bins));
    void *arguments[] = {&device_data, &device_bins, &n};
    CHECK(cuLaunchKernel(count, 24, 1, 1, 192, 1, 1, 0, NULL, arguments, NULL));
    CHECK(cuMemcpyDtoH(bins, device_bins, sizeof bins));
    return verdict("histogram", memcmp(bins, expected, sizeof bins) == 0);
}
