extern "C" __global__ void histogram(const unsigned char *data, unsigned *bins, int n) {
    __shared__ unsigned local[256];
    local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[data[i]], 1u);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}
__device__ int lock;
extern "C" __global__ void atomics(int *i, unsigned *u, unsigned long long *l, float *f) {
    atomicMin(i, 3); atomicMax(i + 1, 4); atomicAnd(u, 5u); atomicOr(u + 1, 6u); atomicXor(u + 2, 7u);
    atomicInc(u + 3, 8u); atomicDec(u + 4, 9u); u[5] = atomicExch(u + 6, 10u);
    l[0] = atomicCAS(l + 1, 1ull, 2ull); atomicAdd(f, 1.5f); atomicMax(l + 2, 11ull);
    atomicAdd_system(i + 2, 1); atomicAdd_block(i + 3, 1);
    while (atomicCAS(&lock, 0, 1)) __nanosleep(20);
    __threadfence(); i[4] += 1; __threadfence_system(); __threadfence_block();
    atomicExch(&lock, 0);
}
