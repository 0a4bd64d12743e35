// Managed memory that the host and kernels change in turns.
//
//   managed MIB ROUNDS
//
// In each round a kernel steps each word, and then the host changes some of them, through the same address.
// A copy in the host's own memory goes through the same; both must be equal after each round.
#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { BLOCK = 256, STRIDE = 1021 };

// As the kernel does it.
static void step(uint32_t *words, size_t count) {
    for (size_t i = 0; i < count; ++i)
        words[i] = words[i] * 1664525u + 1013904223u;
}

// What the host does to its turn's words.
static void change(uint32_t *words, size_t count, uint32_t round) {
    for (size_t i = round % STRIDE; i < count; i += STRIDE)
        words[i] ^= 0x9E3779B9u + round;
}

// Advice and prefetching are taken, and what nobody may say is refused.
static int is_advised(CUdeviceptr memory, size_t bytes, CUdevice device) {
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CHECK(cuMemAdvise(memory, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here));
    CHECK(cuMemAdvise(memory, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
    CHECK(cuMemPrefetchAsync(memory, bytes, here, 0, NULL));
    CHECK(cuMemPrefetchAsync(memory, bytes, host, 0, NULL));
    unsigned managed = 0;
    CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory));
    CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_INVALID};
    return managed == 1 &&
           cuMemAdvise(memory, bytes + 1, CU_MEM_ADVISE_SET_READ_MOSTLY, here) ==
               CUDA_ERROR_INVALID_VALUE &&
           cuMemPrefetchAsync(memory, bytes, nowhere, 0, NULL) == CUDA_ERROR_INVALID_VALUE;
}

int main(int argc, char **argv) {
    size_t bytes = argc == 3 ? (size_t)atoi(argv[1]) << 20 : 0;
    uint32_t rounds = argc == 3 ? (uint32_t)atoi(argv[2]) : 0;
    if (bytes == 0 || rounds == 0) {
        fprintf(stderr, "usage: managed MIB ROUNDS\n");
        return 2;
    }
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction kernel = load_kernel(&module, share_ptx, "step_21us");
    size_t count = bytes / sizeof(uint32_t);
    CUdeviceptr memory;
    CHECK(cuMemAllocManaged(&memory, bytes, CU_MEM_ATTACH_GLOBAL));
    uint32_t *words = (uint32_t *)(uintptr_t)memory, *expected = malloc(bytes);
    if (expected == NULL || !is_advised(memory, bytes, device))
        return verdict("managed", 0);
    for (size_t i = 0; i < count; ++i)
        words[i] = expected[i] = (uint32_t)i;
    void *arguments[] = {&memory};
    unsigned grid = (unsigned)(count / BLOCK);
    for (uint32_t round = 0; round < rounds; ++round) {
        CHECK(cuLaunchKernel(kernel, grid, 1, 1, BLOCK, 1, 1, 0, NULL, arguments, NULL));
        CHECK(cuCtxSynchronize());
        step(expected, count);
        change(words, count, round);
        change(expected, count, round);
        if (memcmp(words, expected, bytes) != 0)
            return verdict("managed", 0);
    }
    CHECK(cuMemFree(memory));
    return verdict("managed", cuMemFree(memory) == CUDA_ERROR_INVALID_VALUE);
}
