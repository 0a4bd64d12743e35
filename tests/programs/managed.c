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

// What was advised and prefetched is told: of a part, and of a whole of which not all was advised the same.
static int is_told(CUdeviceptr memory, size_t bytes, CUdevice device) {
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    int preferred = 7, last = 7, users[3] = {7, 7, 7}, mostly = 7, type = 7;
    void *places[] = {&preferred, &last, users, &mostly, &type};
    size_t sizes[] = {4, 4, sizeof users, 4, 4};
    CUmem_range_attribute which[] = {
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE};
    CHECK(cuMemRangeGetAttributes(places, sizes, which, 5, memory, bytes));
    // The host, and nobody else, uses it and was prefetched to last.
    if (preferred != device || last != CU_DEVICE_CPU || users[0] != CU_DEVICE_CPU ||
        users[1] != CU_DEVICE_INVALID || mostly != 0 || type != CU_MEM_LOCATION_TYPE_HOST)
        return 0;
    CHECK(cuMemAdvise(memory, bytes / 2, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
    int half = 0, whole = 1;
    CHECK(cuMemRangeGetAttribute(&half, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, bytes / 2));
    CHECK(cuMemRangeGetAttribute(&whole, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, memory, bytes));
    CHECK(cuMemAdvise(memory, bytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, here));
    CHECK(cuMemRangeGetAttribute(&preferred, 4, which[0], memory, bytes));
    return half == 1 && whole == 0 && preferred == CU_DEVICE_INVALID &&
           cuMemRangeGetAttribute(&half, 8, which[3], memory, bytes) == CUDA_ERROR_INVALID_VALUE &&
           cuMemRangeGetAttribute(users, 6, which[2], memory, bytes) == CUDA_ERROR_INVALID_VALUE &&
           cuMemRangeGetAttribute(&half, 4, which[3], memory, bytes + 1) == CUDA_ERROR_INVALID_VALUE &&
           cuMemRangeGetAttribute(&half, 4, 99, memory, bytes) == CUDA_ERROR_INVALID_VALUE;
}

// Advice and prefetching are taken, and what nobody may say is refused.
static int is_advised(CUdeviceptr memory, size_t bytes, CUdevice device) {
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CHECK(cuMemAdvise(memory, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here));
    CHECK(cuMemAdvise(memory, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
    CHECK(cuMemPrefetchAsync(memory, bytes, here, 0, NULL));
    CHECK(cuMemPrefetchAsync(memory, bytes, host, 0, NULL));
    if (!is_told(memory, bytes, device))
        return 0;
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
