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
