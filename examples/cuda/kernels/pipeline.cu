// Two stages of a pipeline over streams: scale in one, accumulate in another.
extern "C" __global__ void scale(const float *input, float *output, float factor, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n)
        output[i] = factor * input[i];
}

extern "C" __global__ void accumulate(const float *input, float *total, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n)
        total[i] += input[i];
}
