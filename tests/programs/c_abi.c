// Functions with the C ABI in a text of their own, as numba emits them for `abi="c"`: names that are
// not mangled, arguments and results in parameter space, linked with the kernel that calls them.
//
//   c_abi           links, calls, checks
//   c_abi alone     the same without the text that has the functions: the link must fail
#include "../../examples/cuda/common.h"

#define HEAD ".version 8.4\n.target sm_75\n.address_size 64\n"

static const char functions[] = HEAD
    ".visible .func (.param .b32 func_retval0) add(.param .b32 add_param_0,\n"
    "    .param .b32 add_param_1)\n{\n.reg .b32 %r<4>;\n"
    "ld.param.u32 %r1, [add_param_0];\nld.param.u32 %r2, [add_param_1];\n"
    "add.s32 %r3, %r2, %r1;\nst.param.b32 [func_retval0+0], %r3;\nret;\n}\n"
    // A small integer comes in 32 bits; what is above it is not its own.
    ".visible .func (.param .b64 func_retval0) scale(.param .b64 scale_param_0,\n"
    "    .param .b32 scale_param_1)\n{\n.reg .b16 %rs<2>;\n.reg .f64 %fd<4>;\n"
    "ld.param.f64 %fd1, [scale_param_0];\nld.param.s8 %rs1, [scale_param_1];\n"
    "cvt.rn.f64.s16 %fd2, %rs1;\nmul.f64 %fd3, %fd1, %fd2;\n"
    "st.param.f64 [func_retval0+0], %fd3;\nret;\n}\n"
    // A pair comes back in memory of its caller.
    ".visible .func (.param .align 8 .b8 func_retval0[16]) split(.param .b64 split_param_0)\n"
    "{\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [split_param_0];\n"
    "shr.u64 %rd2, %rd1, 32;\nand.b64 %rd3, %rd1, 4294967295;\n"
    "st.param.b64 [func_retval0+0], %rd2;\nst.param.b64 [func_retval0+8], %rd3;\nret;\n}\n"
    // Nothing comes back; it writes where its argument points.
    ".visible .func store(.param .b64 store_param_0, .param .b32 store_param_1)\n"
    "{\n.reg .b32 %r<2>;\n.reg .b64 %rd<2>;\nld.param.u64 %rd1, [store_param_0];\n"
    "ld.param.u32 %r1, [store_param_1];\nst.u32 [%rd1], %r1;\nret;\n}\n";

static const char kernel[] = HEAD
    ".extern .func (.param .b32 func_retval0) add(.param .b32 add_param_0,\n"
    "    .param .b32 add_param_1);\n"
    ".extern .func (.param .b64 func_retval0) scale(.param .b64 scale_param_0,\n"
    "    .param .b32 scale_param_1);\n"
    ".extern .func (.param .align 8 .b8 func_retval0[16]) split(.param .b64 split_param_0);\n"
    ".extern .func store(.param .b64 store_param_0, .param .b32 store_param_1);\n"
    ".visible .entry call(.param .u64 out)\n{\n.reg .b32 %r<6>;\n.reg .b64 %rd<8>;\n"
    ".reg .f64 %fd<3>;\nld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;\n"
    "mov.u32 %r1, %tid.x;\n"
    "{\n.param .b32 param0;\nst.param.b32 [param0+0], %r1;\n.param .b32 param1;\n"
    "st.param.b32 [param1+0], 40;\n.param .b32 retval0;\n"
    "call.uni (retval0), add, (param0, param1);\nld.param.b32 %r2, [retval0+0];\n}\n"
    "{\n.param .b64 param0;\nst.param.f64 [param0+0], 0d3FE0000000000000;\n.param .b32 param1;\n"
    "st.param.b32 [param1+0], 510;\n.param .b64 retval0;\n"
    "call.uni (retval0), scale, (param0, param1);\nld.param.f64 %fd1, [retval0+0];\n}\n"
    "{\n.param .b64 param0;\nst.param.b64 [param0+0], 30064771081;\n"
    ".param .align 8 .b8 retval0[16];\ncall.uni (retval0), split, (param0);\n"
    "ld.param.b64 %rd3, [retval0+0];\nld.param.b64 %rd4, [retval0+8];\n}\n"
    "mul.wide.u32 %rd5, %r1, 32;\nadd.s64 %rd6, %rd2, %rd5;\n"
    "cvt.u32.u64 %r3, %rd3;\ncvt.u32.u64 %r4, %rd4;\nst.global.f64 [%rd6+8], %fd1;\n"
    "st.global.v2.u32 [%rd6+16], {%r3, %r4};\nadd.s64 %rd7, %rd1, %rd5;\n"
    "{\n.param .b64 param0;\nst.param.b64 [param0+0], %rd7;\n.param .b32 param1;\n"
    "st.param.b32 [param1+0], %r2;\ncall.uni store, (param0, param1);\n}\nret;\n}\n";

struct result {
    uint32_t sum, unused;
    double scaled;
    uint32_t high, low;
    uint64_t beyond;
};

enum { THREADS = 64 };

static CUresult add_text(CUlinkState link, const char *text, size_t bytes, const char *name) {
    return cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)text, bytes, name, 0, NULL, NULL);
}

int main(int argc, char **argv) {
    int alone = argc > 1 && strcmp(argv[1], "alone") == 0;
    CUdevice device;
    open_device(&device);
    CUlinkState link;
    void *image;
    size_t bytes;
    CHECK(cuLinkCreate(0, NULL, NULL, &link));
    CHECK(add_text(link, kernel, sizeof kernel, "kernel"));
    if (!alone)
        CHECK(add_text(link, functions, sizeof functions, "functions"));
    CUresult linked = cuLinkComplete(link, &image, &bytes);
    if (alone) {
        printf("%s\n", linked == CUDA_SUCCESS ? "linked" : "refused");
        return linked == CUDA_SUCCESS;
    }
    CHECK(linked);
    CUmodule module;
    CUfunction call;
    CUdeviceptr memory;
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuLinkDestroy(link));
    CHECK(cuModuleGetFunction(&call, module, "call"));
    struct result results[THREADS] = {{0}};
    CHECK(cuMemAlloc(&memory, sizeof results));
    CHECK(cuMemsetD8(memory, 0, sizeof results));
    void *arguments[] = {&memory};
    CHECK(cuLaunchKernel(call, 1, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL));
    CHECK(cuMemcpyDtoH(results, memory, sizeof results));
    for (uint32_t i = 0; i < THREADS; ++i) {
        struct result *one = &results[i];
        // 510 as 8 bits is -2; 30064771081 is 7 << 32 | 9.
        if (one->sum != i + 40 || one->scaled != -1.0 || one->high != 7 || one->low != 9 ||
            one->unused != 0 || one->beyond != 0) {
            printf("thread %u: %u %f %u %u\n", i, one->sum, one->scaled, one->high, one->low);
            return 1;
        }
    }
    printf("PASSED\n");
    return 0;
}
