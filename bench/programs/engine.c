// Speed of the device on four small kernels, with checked results. Prints one JSON line: the
// median of several launches in ms, each timed from launch to the end of its synchronisation.
#include "../../examples/cuda/common.h"

EMBED(engine_ptx, "kernels/engine.ptx");
EMBED(matrix_mul_ptx, "kernels/matrix_mul.ptx");
EMBED(reduction_ptx, "kernels/reduction.ptx");

enum { REPEATS = 9, N = 1 << 20, SIDE = 256 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_ms(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned block_x,
                      unsigned block_y, void **arguments) {
    double times[REPEATS];
    for (int i = 0; i < REPEATS; ++i) {
        double begin = seconds_now();
        CHECK(cuLaunchKernel(kernel, grid_x, grid_y, 1, block_x, block_y, 1, 0, NULL, arguments,
                             NULL));
        CHECK(cuCtxSynchronize());
        times[i] = 1e3 * (seconds_now() - begin);
    }
    qsort(times, REPEATS, sizeof *times, ascending);
    return times[REPEATS / 2];
}

static float *host_floats(int n, int modulus, float scale) {
    float *values = malloc((size_t)n * sizeof *values);
    for (int i = 0; i < n; ++i)
        values[i] = (float)(i % modulus - modulus / 2) * scale;
    return values;
}

static CUdeviceptr device_floats(const float *values, int n) {
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, (size_t)n * sizeof *values));
    if (values != NULL)
        CHECK(cuMemcpyHtoD(memory, values, (size_t)n * sizeof *values));
    return memory;
}

static int saxpy(double *ms) {
    CUmodule module;
    CUfunction kernel = load_kernel(&module, engine_ptx, "saxpy");
    float *x = host_floats(N, 101, 0.5f), *y = host_floats(N, 37, 0.25f), a = 2.0f;
    CUdeviceptr device_x = device_floats(x, N), device_y = device_floats(y, N);
    int n = N;
    void *arguments[] = {&a, &device_x, &device_y, &n};
    *ms = time_ms(kernel, N / 256, 1, 256, 1, arguments);
    float *result = malloc(N * sizeof *result);
    CHECK(cuMemcpyDtoH(result, device_y, N * sizeof *result));
    int correct = 1;
    for (int i = 0; i < N; ++i) {
        float expected = y[i];
        for (int repeat = 0; repeat < REPEATS; ++repeat)
            expected = fmaf(a, x[i], expected);
        correct &= result[i] == expected;
    }
    return correct;
}

static int matmul(const char *name, double *ms) {
    CUmodule module;
    CUfunction kernel = load_kernel(&module, matrix_mul_ptx, name);
    float *a = host_floats(SIDE * SIDE, 13, 1.0f), *b = host_floats(SIDE * SIDE, 7, 0.25f);
    CUdeviceptr device_a = device_floats(a, SIDE * SIDE), device_b = device_floats(b, SIDE * SIDE);
    CUdeviceptr device_c = device_floats(NULL, SIDE * SIDE);
    int n = SIDE;
    void *arguments[] = {&device_a, &device_b, &device_c, &n};
    *ms = time_ms(kernel, SIDE / 16, SIDE / 16, 16, 16, arguments);
    float *c = malloc(SIDE * SIDE * sizeof *c);
    CHECK(cuMemcpyDtoH(c, device_c, SIDE * SIDE * sizeof *c));
    int correct = 1;
    for (int row = 0; row < SIDE; ++row)
        for (int column = 0; column < SIDE; ++column) {
            float sum = 0.0f; // Multiples of 1/4 far below 2^24: exact in any order.
            for (int k = 0; k < SIDE; ++k)
                sum += a[row * SIDE + k] * b[k * SIDE + column];
            correct &= c[row * SIDE + column] == sum;
        }
    return correct;
}

static int reduction(double *ms) {
    CUmodule module;
    CUfunction kernel = load_kernel(&module, reduction_ptx, "reduce_sum");
    float *input = host_floats(N, 9, 1.0f), sum = 0.0f;
    double expected = 0.0;
    for (int i = 0; i < N; ++i)
        expected += input[i];
    CUdeviceptr device_input = device_floats(input, N), device_sum = device_floats(&sum, 1);
    int n = N;
    void *arguments[] = {&device_input, &device_sum, &n};
    *ms = time_ms(kernel, 64, 1, 256, 1, arguments);
    CHECK(cuMemcpyDtoH(&sum, device_sum, sizeof sum));
    return sum == (float)(REPEATS * expected);
}

int main(void) {
    CUdevice device;
    open_device(&device);
    double saxpy_ms, naive_ms, tiled_ms, reduction_ms;
    int correct = saxpy(&saxpy_ms);
    correct &= matmul("matrix_mul_naive", &naive_ms);
    correct &= matmul("matrix_mul_tiled", &tiled_ms);
    correct &= reduction(&reduction_ms);
    printf("{\"saxpy_ms\": %.4f, \"matmul_naive_ms\": %.4f, \"matmul_tiled_ms\": %.4f, "
           "\"reduction_ms\": %.4f, \"verified\": %s}\n",
           saxpy_ms, naive_ms, tiled_ms, reduction_ms, correct ? "true" : "false");
    return correct ? 0 : 1;
}
