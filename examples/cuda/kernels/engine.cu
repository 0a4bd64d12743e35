// y[i] = a · x[i] + y[i]
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n)
        y[i] = a * x[i] + y[i];
}
