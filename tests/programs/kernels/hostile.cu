// Kernels that misbehave, for the fault tests.

// Never ends, and shows by a counter that it runs.
extern "C" __global__ void spin_forever(volatile unsigned int *counter) {
    for (;;)
        *counter += 1;
}

// Reads one word at base + index · stride for every thread, and keeps what is not zero.
extern "C" __global__ void peek(unsigned long long base, unsigned long long stride,
                                unsigned long long *found) {
    unsigned long long index = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long value = *(const volatile unsigned long long *)(base + index * stride);
    if (value != 0)
        *found = value;
}

// Reads its shared memory without writing it first, beyond what a block before left behind.
extern "C" __global__ void peek_shared(unsigned long long pattern, unsigned int *hits) {
    extern __shared__ unsigned long long words[];
    for (unsigned int i = threadIdx.x; i < 48 * 1024 / 8; i += blockDim.x)
        if (words[i] == pattern)
            atomicAdd(hits, 1u);
}

// Fills its shared memory with a pattern.
extern "C" __global__ void fill_shared(unsigned long long pattern) {
    extern __shared__ volatile unsigned long long shared_words[];
    for (unsigned int i = threadIdx.x; i < 48 * 1024 / 8; i += blockDim.x)
        shared_words[i] = pattern;
}

// Reads local memory that it never wrote.
extern "C" __global__ void peek_local(unsigned long long pattern, unsigned int *hits, int at) {
    unsigned long long words[256]; // Volatile ones would need a newer driver.
    if (at >= 0) // Never taken by the test: keeps the array in local memory.
        words[at] = pattern;
    for (int i = 0; i < 256; ++i)
        if (words[i] == pattern)
            atomicAdd(hits, 1u);
}

extern "C" __global__ void fill_local(unsigned long long pattern, unsigned int *sink) {
    volatile unsigned long long words[256];
    for (int i = 0; i < 256; ++i)
        words[i] = pattern;
    if (words[threadIdx.x % 256] != pattern)
        atomicAdd(sink, 1u);
}

extern "C" __global__ void trap_now() { asm volatile("trap;"); }

extern "C" __global__ void misaligned(char *base) { *(volatile int *)(base + 2) = 1; }

extern "C" __global__ void out_of_bounds(int *base, long long offset) { base[offset] = 1; }

extern "C" __global__ void fill_pattern(unsigned long long *words, unsigned long long pattern,
                                        unsigned long long count) {
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (unsigned long long)gridDim.x * blockDim.x)
        words[i] = pattern;
}

extern "C" __global__ void count_nonzero(const unsigned long long *words, unsigned int *hits,
                                         unsigned long long count) {
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (unsigned long long)gridDim.x * blockDim.x)
        if (words[i] != 0)
            atomicAdd(hits, 1u);
}
