extern "C" __global__ void math_double(const double *x, double *y) {
    int i = threadIdx.x; double v = x[i];
    y[i] = sin(v) + exp(v) * log(fabs(v)) + pow(v, 1.5) + sqrt(v) / rsqrt(v) + floor(v) + fma(v, v, 1.0) + fmod(v, 3.0) + tgamma(v) + __dadd_rz(v, 1);
}
extern "C" __global__ void math_float(const float *x, float *y) {
    int i = threadIdx.x; float v = x[i];
    y[i] = sinf(v) + __sinf(v) + __cosf(v) + __expf(v) + __logf(v) + expf(v) * logf(v) + powf(v, 1.5f) + sqrtf(v) / rsqrtf(v) +
        __fdividef(v, 3.f) + roundf(v) + truncf(v) + rintf(v) + tanhf(v) + erff(v) + __saturatef(v) + copysignf(v, 2.f) +
        fminf(v, 1.f) + fmaxf(v, 2.f) + (float)(int)v + (float)(unsigned long long)v + __frcp_rd(v) + (isnan(v) ? 1 : 0);
}
extern "C" __global__ void integers(const long long *a, const unsigned long long *b, unsigned long long *c) {
    int i = threadIdx.x;
    __int128 wide = (__int128)a[i] * (long long)b[i] + a[i];
    c[i] = (unsigned long long)(wide >> 64) + (unsigned long long)(a[i] / 10) + b[i] % 7 + __popcll(b[i]) + __clzll(a[i]) +
        __umul64hi(b[i], b[i]) + (unsigned short)a[i] * (short)b[i] + (signed char)a[i] + clock64() + clock();
}
