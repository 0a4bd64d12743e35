//! The kernels of the suite.

/// Module with the kernels; all parameters are 64-bit.
pub(super) const TEXT: &str = r"
.version 6.4
.target sm_75
.address_size 64

.global .align 4 .u32 counter;
.const .align 4 .u32 fixed[2] = {11, 22};

// out[i] = i + add, for every thread of the grid.
.visible .entry iota(.param .u64 out, .param .u64 add)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<6>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [add];
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd3, %r4, 4;
    add.u64 %rd4, %rd1, %rd3;
    cvt.u32.u64 %r1, %rd2;
    add.u32 %r4, %r4, %r1;
    st.global.u32 [%rd4], %r4;
    ret;
}

// Every thread adds 1 to *out.
.visible .entry count(.param .u64 out)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    red.global.add.u32 [%rd1], 1;
    ret;
}

// counter += 1; *out = counter + fixed[1].
.visible .entry state(.param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    ld.global.u32 %r1, [counter];
    add.u32 %r1, %r1, 1;
    st.global.u32 [counter], %r1;
    ld.const.u32 %r2, [fixed+4];
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd1], %r1;
    ret;
}

.visible .entry store(.param .u64 at)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [at];
    cvta.to.global.u64 %rd1, %rd1;
    st.global.u32 [%rd1], 7;
    ret;
}

.visible .entry traps()
{
    trap;
}

.visible .entry endless()
{
$L:
    bra $L;
}

// Dynamic shared memory reversed: out[i] = i-th from the end.
.extern .shared .align 4 .b8 pool[];
.visible .entry reverse(.param .u64 out)
{
    .reg .b32 %r<7>;
    .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, pool;
    shl.b32 %r4, %r1, 2;
    add.u32 %r4, %r3, %r4;
    st.shared.u32 [%r4], %r1;
    bar.sync 0;
    sub.u32 %r5, %r2, %r1;
    sub.u32 %r5, %r5, 1;
    shl.b32 %r5, %r5, 2;
    add.u32 %r5, %r3, %r5;
    ld.shared.u32 %r6, [%r5];
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r6;
    ret;
}
";
