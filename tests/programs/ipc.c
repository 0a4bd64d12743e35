// Device memory that several processes of one vGPU use, and what does not get at it.
//
//   ipc export          allocates, prints a handle, then obeys its input: check N, free, open
//   ipc open HANDLE     opens, reads, writes, closes
//   ipc hold HANDLE     opens; at each line of input reads and prints what it finds
//   ipc forge HANDLE    tries handles that differ in one bit

#include "../../examples/cuda/common.h"

enum { WORDS = 800 * 1000 };

static CUresult open_handle(CUdeviceptr *memory, const CUipcMemHandle *handle) {
    return cuIpcOpenMemHandle(memory, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUipcMemHandle parse(const char *text) {
    CUipcMemHandle handle;
    for (size_t i = 0; i < sizeof handle; ++i) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        handle.reserved[i] = (char)byte;
    }
    return handle;
}

static const char *name_of(CUresult result) {
    const char *name = "?";
    cuGetErrorName(result, &name);
    return name;
}

// Whether all words have the value.
static int holds(CUdeviceptr memory, unsigned value) {
    static unsigned words[WORDS];
    CHECK(cuMemcpyDtoH(words, memory, sizeof words));
    for (size_t i = 0; i < WORDS; ++i)
        if (words[i] != value)
            return 0;
    return 1;
}

static int export_memory(void) {
    CUdeviceptr memory, own;
    CUipcMemHandle handle;
    CHECK(cuMemAlloc(&memory, WORDS * 4));
    CHECK(cuMemsetD32(memory, 7, WORDS));
    CHECK(cuCtxSynchronize());
    CHECK(cuIpcGetMemHandle(&handle, memory + 4000));
    for (size_t i = 0; i < sizeof handle; ++i)
        printf("%02x", (unsigned char)handle.reserved[i]);
    printf("\n");
    fflush(stdout);
    char line[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strncmp(line, "check ", 6) == 0)
            printf("%s\n", holds(memory, (unsigned)atoi(line + 6)) ? "same" : "different");
        else if (strcmp(line, "open\n") == 0)
            printf("%s\n", name_of(open_handle(&own, &handle)));
        else if (strcmp(line, "free\n") == 0)
            printf("%s\n", name_of(cuMemFree(memory)));
        fflush(stdout);
    }
    return 0;
}

static int open_memory(const CUipcMemHandle *handle) {
    CUdeviceptr memory, again;
    size_t bytes = 0;
    CUresult result = open_handle(&memory, handle);
    if (result != CUDA_SUCCESS) {
        printf("refused: %s\n", name_of(result));
        return 3;
    }
    CHECK(open_handle(&again, handle));
    CHECK(cuMemGetAddressRange(NULL, &bytes, memory));
    if (again != memory || bytes < WORDS * 4 || !holds(memory, 7))
        return 1;
    CHECK(cuMemsetD32(memory, 9, WORDS));
    CHECK(cuCtxSynchronize());
    if (cuMemFree(memory) != CUDA_ERROR_INVALID_VALUE)
        return 1;
    CHECK(cuIpcCloseMemHandle(memory));
    if (!holds(memory, 9)) // Open once more.
        return 1;
    CHECK(cuIpcCloseMemHandle(memory));
    if (cuIpcCloseMemHandle(memory) != CUDA_ERROR_INVALID_VALUE)
        return 1;
    printf("opened\n");
    return 0;
}

static int hold(const CUipcMemHandle *handle) {
    CUdeviceptr memory;
    unsigned word = 0;
    CHECK(open_handle(&memory, handle));
    printf("open\n");
    fflush(stdout);
    char line[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        CUresult result = cuMemcpyDtoH(&word, memory, 4);
        printf("%s %u\n", name_of(result), word);
        fflush(stdout);
    }
    return 0;
}

static int forge(const CUipcMemHandle *handle) {
    for (size_t bit = 0; bit < 8 * sizeof *handle; ++bit) {
        CUdeviceptr memory;
        CUipcMemHandle forged = *handle;
        forged.reserved[bit / 8] ^= (char)(1 << bit % 8);
        CUresult result = open_handle(&memory, &forged);
        if (result != CUDA_ERROR_INVALID_HANDLE) {
            printf("bit %zu: %s\n", bit, name_of(result));
            return 1;
        }
    }
    printf("all refused\n");
    return 0;
}

int main(int argc, char **argv) {
    CUdevice device;
    open_device(&device);
    if (argc == 2 && strcmp(argv[1], "export") == 0)
        return export_memory();
    if (argc == 3 && strlen(argv[2]) == 2 * sizeof(CUipcMemHandle)) {
        CUipcMemHandle handle = parse(argv[2]);
        if (strcmp(argv[1], "open") == 0)
            return open_memory(&handle);
        if (strcmp(argv[1], "hold") == 0)
            return hold(&handle);
        if (strcmp(argv[1], "forge") == 0)
            return forge(&handle);
    }
    fprintf(stderr, "usage: ipc export, ipc open|hold|forge HANDLE\n");
    return 2;
}
