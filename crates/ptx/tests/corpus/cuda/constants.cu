__constant__ float coefficients[4] = {1.5f, -2.0f, 0.25f, 3.0f};
__constant__ int scale;
__device__ float state[64];
__device__ const char message[] = "weft";
__device__ const char *pointer = message;
struct Node { const Node *next; int value; };
__device__ Node second = {0, 2};
__device__ Node first = {&second, 1};
__device__ unsigned char packed[3][5] = {{1, 2}, {3}, {4, 5, 6, 7, 8}};
extern "C" __global__ void constants(float *out, int which) {
    __shared__ int shared_counter;
    if (threadIdx.x == 0) shared_counter = 0;
    __syncthreads();
    int old = atomicAdd(&shared_counter, 1);
    float local[16];
    for (int i = 0; i < 16; i++) local[i] = coefficients[(i + which) & 3];
    state[threadIdx.x] = local[(which + old) & 15] * scale;
    int sum = 0;
    for (const Node *n = &first; n; n = n->next) sum += n->value;
    out[threadIdx.x] = state[threadIdx.x] + sum + pointer[which & 3] + packed[which % 3][which % 5];
}
extern "C" __global__ void __launch_bounds__(128, 2) grid_constant(const __grid_constant__ Node n, int *out, int i) {
    const int *p = (const int *)&n; out[threadIdx.x] = p[i];
}
