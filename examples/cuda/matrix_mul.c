// Multiplies two square matrices, naively and by tiles in shared memory, and checks both.
#include "common.h"

EMBED(matrix_mul_ptx, "kernels/matrix_mul.ptx");

static int check(const char *kernel, const float *c, const float *a, const float *b, int n) {
    for (int row = 0; row < n; row += 17)
        for (int column = 0; column < n; ++column) {
            double sum = 0.0;
            for (int k = 0; k < n; ++k)
                sum += (double)a[row * n + k] * b[k * n + column];
            if (fabs(sum - c[row * n + column]) > 1e-3 * (1.0 + fabs(sum))) {
                fprintf(stderr, "%s: [%d][%d] is %g, expected %g\n", kernel, row, column,
                        c[row * n + column], sum);
                return 0;
            }
        }
    return 1;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 128;
    if (n < 16 || n % 16 != 0) {
        fprintf(stderr, "usage: matrix_mul [n]; n is a multiple of 16, not %d\n", n);
        return 2;
    }
    size_t bytes = (size_t)n * (size_t)n * sizeof(float);
    CUdevice device;
    open_device(&device);
    float *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
    for (int i = 0; i < n * n; ++i) {
        a[i] = (float)(i % 13) - 6.0f;
        b[i] = (float)(i % 7) * 0.25f;
    }
    CUdeviceptr device_a, device_b, device_c;
    CHECK(cuMemAlloc(&device_a, bytes));
    CHECK(cuMemAlloc(&device_b, bytes));
    CHECK(cuMemAlloc(&device_c, bytes));
    CHECK(cuMemcpyHtoD(device_a, a, bytes));
    CHECK(cuMemcpyHtoD(device_b, b, bytes));

    static const char *const kernels[] = {"matrix_mul_naive", "matrix_mul_tiled"};
    int correct = 1;
    for (int k = 0; k < 2; ++k) {
        CUmodule module;
        CUfunction multiply = load_kernel(&module, matrix_mul_ptx, kernels[k]);
        void *arguments[] = {&device_a, &device_b, &device_c, &n};
        unsigned tiles = (unsigned)n / 16;
        CHECK(cuMemsetD32(device_c, 0x7fc00000, (size_t)n * (size_t)n));
        CHECK(cuLaunchKernel(multiply, tiles, tiles, 1, 16, 16, 1, 0, NULL, arguments, NULL));
        CHECK(cuCtxSynchronize());
        CHECK(cuMemcpyDtoH(c, device_c, bytes));
        correct &= check(kernels[k], c, a, b, n);
        CHECK(cuModuleUnload(module));
    }
    return verdict("matrix_mul", correct);
}
