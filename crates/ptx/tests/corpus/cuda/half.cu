#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void halves(const __half *a, __half2 *b, float *f, __nv_bfloat16 *g, int n) {
    int i = threadIdx.x;
    __half x = a[i], y = __hadd(x, x);
    y = __hfma(x, y, __float2half(f[i])); y = __hmul(y, x); y = __hsub(y, __int2half_rn(n));
    b[i] = __hfma2(b[i], __halves2half2(x, y), __float2half2_rn(0.5f));
    if (__hgt(x, y)) f[i] = __half2float(x) + __half2float(hexp2(y)) + __half2int_rz(x);
    g[i] = __float2bfloat16(f[i]);
    f[i] += __bfloat162float(g[i]) + __half2float(__hneg(x)) + __half2float(__habs(x)) + __half2float(hsqrt(x));
}
