extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void saxpy(float a, const float4 *x, float4 *y, int n) {
    for (int i = blockDim.x * blockIdx.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float4 v = x[i], w = y[i];
        w.x = a * v.x + w.x; w.y = a * v.y + w.y; w.z = a * v.z + w.z; w.w = a * v.w + w.w;
        y[i] = w;
    }
}
