__device__ __forceinline__ double warp_sum(double v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
    return v;
}
extern "C" __global__ void reduce(const double *in, double *out, int n) {
    extern __shared__ double partial[];
    double sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        sum = warp_sum(sum);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}
extern "C" __global__ void votes(const int *in, unsigned *out) {
    int v = in[threadIdx.x];
    unsigned any = __any_sync(~0u, v > 3), all = __all_sync(~0u, v > 3), ballot = __ballot_sync(~0u, v & 1);
    unsigned same = __match_any_sync(~0u, v);
    int pred;
    unsigned equal = __match_all_sync(__activemask(), v, &pred);
    int count = __syncthreads_count(v), both = __syncthreads_and(v), either = __syncthreads_or(v);
    out[threadIdx.x] = any + all + ballot + same + equal + pred + count + both + either +
        __shfl_xor_sync(~0u, v, 1) + __shfl_up_sync(~0u, v, 2) + __shfl_sync(~0u, v, 3, 8);
}
