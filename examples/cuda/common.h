// What every example needs: the driver API, checks that say what failed, embedded PTX, a clock.
#ifndef WEFT_EXAMPLES_COMMON_H
#define WEFT_EXAMPLES_COMMON_H

#include <cuda.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(call)                                                                    \
    do {                                                                               \
        CUresult result_ = (call);                                                     \
        if (result_ != CUDA_SUCCESS) {                                                 \
            const char *name_ = "unknown error", *text_ = "";                          \
            cuGetErrorName(result_, &name_);                                           \
            cuGetErrorString(result_, &text_);                                         \
            fprintf(stderr, "%s:%d: %s failed: %s (%d): %s\n", __FILE__, __LINE__,     \
                    #call, name_, (int)result_, text_);                                \
            exit(2);                                                                   \
        }                                                                              \
    } while (0)

// Defines `symbol` as the NUL-terminated content of a file that the assembler finds.
#define EMBED(symbol, file)                                                            \
    __asm__(".section .rodata\n.global " #symbol "\n" #symbol ":\n.incbin \"" file     \
            "\"\n.byte 0\n.previous\n");                                               \
    extern const char symbol[]

static inline double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// The first device with a context that is current.
static inline CUcontext open_device(CUdevice *device) {
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, *device));
    CHECK(cuCtxSetCurrent(context));
    return context;
}

// Elements for the kernels step_*us, each of which begins as its index.
static inline CUdeviceptr new_steps(uint32_t elements) {
    uint32_t initial[64];
    if (elements > sizeof initial / sizeof *initial)
        exit(2);
    for (uint32_t i = 0; i < elements; ++i)
        initial[i] = i;
    CUdeviceptr state;
    CHECK(cuMemAlloc(&state, elements * sizeof *initial));
    CHECK(cuMemcpyHtoD(state, initial, elements * sizeof *initial));
    return state;
}

// Whether each element, which begins as its index, took so many steps x → 1664525 · x + 1013904223.
static inline int took_steps(CUdeviceptr state, uint32_t elements, uint64_t steps) {
    uint32_t result[64], factor = 1, offset = 0;
    if (elements > sizeof result / sizeof *result)
        return 0;
    // x → a · x + b, taken to a power by squaring.
    for (uint32_t a = 1664525u, b = 1013904223u; steps > 0; steps >>= 1) {
        if (steps & 1)
            factor *= a, offset = offset * a + b;
        b = b * a + b;
        a *= a;
    }
    CHECK(cuMemcpyDtoH(result, state, elements * sizeof *result));
    for (uint32_t i = 0; i < elements; ++i)
        if (result[i] != factor * i + offset)
            return 0;
    return 1;
}

static inline CUfunction load_kernel(CUmodule *module, const char *ptx, const char *name) {
    char log[4096] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    CUresult result = cuModuleLoadDataEx(module, ptx, 2, options, values);
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "%s\n", log);
    CHECK(result);
    CUfunction function;
    CHECK(cuModuleGetFunction(&function, *module, name));
    return function;
}

// Says the verdict and turns it into an exit code.
static inline int verdict(const char *program, int correct) {
    printf("%s: %s\n", program, correct ? "PASSED" : "FAILED: wrong result");
    return correct ? 0 : 1;
}

#endif
