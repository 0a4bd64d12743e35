// Sum of n floats: warps by shuffles, blocks through shared memory, the grid by one atomic a block.
extern "C" __global__ void reduce_sum(const float *input, float *sum, int n) {
    __shared__ float partial[32];
    float value = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        value += input[i];
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_down_sync(0xffffffffu, value, offset);
    int lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    if (lane == 0)
        partial[warp] = value;
    __syncthreads();
    if (warp == 0) {
        value = lane < (blockDim.x + 31) / 32 ? partial[lane] : 0.0f;
        for (int offset = 16; offset > 0; offset /= 2)
            value += __shfl_down_sync(0xffffffffu, value, offset);
        if (lane == 0)
            atomicAdd(sum, value);
    }
}
