// Adds two vectors on the device and compares with the host.
#include "common.h"

EMBED(vector_add_ptx, "kernels/vector_add.ptx");

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 50000;
    size_t bytes = (size_t)n * sizeof(float);
    CUdevice device;
    open_device(&device);
    char name[128];
    CHECK(cuDeviceGetName(name, sizeof name, device));
    printf("vector_add of %d elements on %s\n", n, name);

    CUmodule module;
    CUfunction add = load_kernel(&module, vector_add_ptx, "vector_add");
    float *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
    for (int i = 0; i < n; ++i) {
        a[i] = (float)(i % 1000) * 0.5f;
        b[i] = (float)(i % 77) - 3.25f;
    }
    CUdeviceptr device_a, device_b, device_c;
    CHECK(cuMemAlloc(&device_a, bytes));
    CHECK(cuMemAlloc(&device_b, bytes));
    CHECK(cuMemAlloc(&device_c, bytes));
    CHECK(cuMemcpyHtoD(device_a, a, bytes));
    CHECK(cuMemcpyHtoD(device_b, b, bytes));
    void *arguments[] = {&device_a, &device_b, &device_c, &n};
    unsigned blocks = (unsigned)(n + 255) / 256;
    CHECK(cuLaunchKernel(add, blocks, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    CHECK(cuMemcpyDtoH(c, device_c, bytes));

    int correct = 1;
    for (int i = 0; i < n; ++i)
        correct &= c[i] == a[i] + b[i];
    CHECK(cuMemFree(device_a));
    CHECK(cuMemFree(device_b));
    CHECK(cuMemFree(device_c));
    CHECK(cuModuleUnload(module));
    CHECK(cuDevicePrimaryCtxRelease(device));
    return verdict("vector_add", correct);
}
