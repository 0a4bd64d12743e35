// Sums a vector by shuffles, shared memory and atomics, and compares with the host's sum.
#include "common.h"

EMBED(reduction_ptx, "kernels/reduction.ptx");

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1 << 18;
    size_t bytes = (size_t)n * sizeof(float);
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction reduce = load_kernel(&module, reduction_ptx, "reduce_sum");
    float *input = malloc(bytes);
    double expected = 0.0;
    for (int i = 0; i < n; ++i) {
        input[i] = (float)(i % 9) - 4.0f; // Small integers: every order of addition is exact.
        expected += input[i];
    }
    CUdeviceptr device_input, device_sum;
    CHECK(cuMemAlloc(&device_input, bytes));
    CHECK(cuMemAlloc(&device_sum, sizeof(float)));
    CHECK(cuMemcpyHtoD(device_input, input, bytes));
    CHECK(cuMemsetD32(device_sum, 0, 1));
    void *arguments[] = {&device_input, &device_sum, &n};
    CHECK(cuLaunchKernel(reduce, 32, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    float sum = NAN;
    CHECK(cuMemcpyDtoH(&sum, device_sum, sizeof sum));
    printf("sum of %d elements: %g, expected %g\n", n, sum, expected);
    return verdict("reduction", sum == (float)expected);
}
