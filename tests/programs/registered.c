// Memory that the program has registered: whether the device says that it can be
// (CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED), what cuMemHostRegister answers, and, where it is
// taken, that a copy to it and from it arrives. Prints both numbers; a wrong result is 1, a CUDA
// error 2.
#include "../../examples/cuda/common.h"

enum { BYTES = 1 << 16, PAGE = 4096 };

int main(void) {
    CUdevice device;
    open_device(&device);
    int is_supported = -1;
    CHECK(cuDeviceGetAttribute(&is_supported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, device));
    unsigned char *memory = aligned_alloc(PAGE, BYTES);
    for (int i = 0; i < BYTES; ++i)
        memory[i] = (unsigned char)(i * 7);
    CUresult registered = cuMemHostRegister(memory, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP);
    printf("supported %d, registered %d\n", is_supported, (int)registered);
    // Refused or not, the memory is the program's, and copies of it work.
    CUdeviceptr there;
    CHECK(cuMemAlloc(&there, BYTES));
    CHECK(cuMemcpyHtoDAsync(there, memory, BYTES, NULL));
    CHECK(cuStreamSynchronize(NULL));
    memset(memory, 0, BYTES);
    CHECK(cuMemcpyDtoHAsync(memory, there, BYTES, NULL));
    CHECK(cuStreamSynchronize(NULL));
    int is_right = 1;
    for (int i = 0; i < BYTES; ++i)
        is_right &= memory[i] == (unsigned char)(i * 7);
    CUresult undone = cuMemHostUnregister(memory);
    is_right &= (undone == CUDA_SUCCESS) == (registered == CUDA_SUCCESS);
    return verdict("registered", is_right);
}
