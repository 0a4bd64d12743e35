// Kernels that print.
#include <cstdio>

extern "C" __global__ void say(int round, double half) {
    printf("round %d block %u thread %u of %s: %.2f %llx\n", round, blockIdx.x, threadIdx.x,
           "a warp", half, 0x123456789abcULL);
}

extern "C" __global__ void say_and_fail() {
    printf("last words\n");
    __trap();
}
