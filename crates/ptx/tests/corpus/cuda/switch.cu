extern "C" __global__ void dispatch(const int *op, const unsigned *a, unsigned *out) {
    int i = threadIdx.x; unsigned x = a[i], r = 0;
    switch (op[i]) {
    case 0: r = __popc(x); break;
    case 1: r = __clz(x); break;
    case 2: r = __brev(x); break;
    case 3: r = __ffs(x); break;
    case 4: r = __byte_perm(x, r, 0x1234); break;
    case 5: r = __funnelshift_l(x, r, 7); break;
    case 6: r = x / 7 + x % 11; break;
    case 7: r = __umulhi(x, 12345); break;
    case 8: r = __sad((int)x, 5, 6u); break;
    case 9: r = __dp4a(x, x, 5u); break;
    case 10: r = __mul24(x, 3); break;
    case 11: r = __umul24(x, x); break;
    default: asm volatile("trap;");
    }
    out[i] = r;
}
