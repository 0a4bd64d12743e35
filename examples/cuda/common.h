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
    uint32_t *initial = malloc(elements * sizeof *initial);
    for (uint32_t i = 0; i < elements; ++i)
        initial[i] = i;
    CUdeviceptr state;
    CHECK(cuMemAlloc(&state, elements * sizeof *initial));
    CHECK(cuMemcpyHtoD(state, initial, elements * sizeof *initial));
    free(initial);
    return state;
}

// Whether each element, which begins as its index, took so many steps x → 1664525 · x + 1013904223.
static inline int took_steps(CUdeviceptr state, uint32_t elements, uint64_t steps) {
    uint32_t factor = 1, offset = 0;
    // x → a · x + b, taken to a power by squaring.
    for (uint32_t a = 1664525u, b = 1013904223u; steps > 0; steps >>= 1) {
        if (steps & 1)
            factor *= a, offset = offset * a + b;
        b = b * a + b;
        a *= a;
    }
    uint32_t *result = malloc(elements * sizeof *result);
    CHECK(cuMemcpyDtoH(result, state, elements * sizeof *result));
    int correct = 1;
    for (uint32_t i = 0; i < elements; ++i)
        correct &= result[i] == factor * i + offset;
    free(result);
    return correct;
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
    result = cuModuleGetFunction(&function, *module, name);
    if (result == CUDA_ERROR_NOT_FOUND) {
        fprintf(stderr, "this program's module has no kernel `%s`\n", name);
        exit(2);
    }
    CHECK(result);
    return function;
}

// A graph of so many launches with these parameters, one after the other.
static inline CUgraphExec chain_of(const CUDA_KERNEL_NODE_PARAMS *params, int launches) {
    CUgraph graph;
    CUgraphNode node, before = NULL;
    CHECK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < launches; ++i) {
        CHECK(cuGraphAddKernelNode(&node, graph, i > 0 ? &before : NULL, i > 0, params));
        before = node;
    }
    CUgraphExec executable;
    CHECK(cuGraphInstantiate(&executable, graph, 0));
    CHECK(cuGraphDestroy(graph));
    return executable;
}

// A kernel step_*us and what it works on. The paced device gives it the time in its name. For one
// that takes its own time, STEPS_PER_US says how many steps last a microsecond there: each launch
// then does as many of them on every multiprocessor as its name says.
struct step_kernel {
    CUfunction function;
    CUdeviceptr state;
    uint32_t blocks, count;
    void *arguments[2];
};

enum { STEP_THREADS = 64 };

// What `name` lasts, in us.
static inline long step_us(const char *name) {
    long us = 0;
    sscanf(name, "step_%ldus", &us);
    return us;
}

static inline void open_step_kernel(struct step_kernel *step, const char *ptx, const char *name) {
    CUmodule module;
    const char *per_us = getenv("STEPS_PER_US");
    step->blocks = step->count = 1;
    if (per_us != NULL) {
        CUdevice device;
        int multiprocessors;
        CHECK(cuCtxGetDevice(&device));
        CHECK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                   device));
        step->blocks = (uint32_t)multiprocessors;
        double count = atof(per_us) * (double)step_us(name);
        if (!(count >= 1.0 && count <= (double)UINT32_MAX)) {
            fprintf(stderr, "STEPS_PER_US=%s makes no number of steps of %s: from 1 to 2^32 - 1\n",
                    per_us, name);
            exit(2);
        }
        step->count = (uint32_t)count;
    }
    step->function = load_kernel(&module, ptx, per_us != NULL ? "steps" : name);
    step->state = new_steps(step->blocks * STEP_THREADS);
    step->arguments[0] = &step->state;
    step->arguments[1] = &step->count;
}

static inline CUresult launch_step(struct step_kernel *step) {
    return cuLaunchKernel(step->function, step->blocks, 1, 1, STEP_THREADS, 1, 1, 0, NULL,
                          step->arguments, NULL);
}

// Whether every one of so many launches ran once.
static inline int ran_steps(const struct step_kernel *step, uint64_t launches) {
    return took_steps(step->state, step->blocks * STEP_THREADS, launches * step->count);
}

// Says the verdict and turns it into an exit code.
static inline int verdict(const char *program, int correct) {
    printf("%s: %s\n", program, correct ? "PASSED" : "FAILED: wrong result");
    return correct ? 0 : 1;
}

#endif
