// Kernels that print: their output appears in the program's standard output, in order with what the
// program prints itself, at each call that waits.
//
//   printf          the program's own lines and the kernels' in turn
//   printf fault    a kernel prints, then faults
#include "../../examples/cuda/common.h"

EMBED(printf_ptx, "../../tests/programs/kernels/printf.ptx");

int main(int argc, char **argv) {
    int fault = argc > 1 && strcmp(argv[1], "fault") == 0;
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction say = load_kernel(&module, printf_ptx, "say");
    CUevent done;
    CHECK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr word;
    CHECK(cuMemAlloc(&word, 4));
    for (int round = 0; round < 4; ++round) {
        double half = round + 0.5;
        void *arguments[] = {&round, &half};
        printf("host %d\n", round);
        CHECK(cuLaunchKernel(say, 2, 1, 1, 2, 1, 1, 0, NULL, arguments, NULL));
        uint32_t value;
        switch (round) {
        case 0:
            CHECK(cuCtxSynchronize());
            break;
        case 1:
            CHECK(cuStreamSynchronize(NULL));
            break;
        case 2:
            CHECK(cuEventRecord(done, NULL));
            CHECK(cuEventSynchronize(done));
            break;
        default:
            CHECK(cuMemcpyDtoH(&value, word, 4));
        }
    }
    if (fault) {
        CUfunction fail;
        CHECK(cuModuleGetFunction(&fail, module, "say_and_fail"));
        CHECK(cuLaunchKernel(fail, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        return cuCtxSynchronize() == CUDA_SUCCESS;
    }
    printf("end\n");
    return 0;
}
