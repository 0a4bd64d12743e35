// Device memory and events that several processes of one vGPU use, and what does not get at them.
//
//   ipc export          allocates, prints a handle, then obeys its input: check N, free, open
//   ipc open HANDLE     opens, reads, writes, closes
//   ipc hold HANDLE     opens; at each line of input reads and prints what it finds
//   ipc forge HANDLE    tries handles that differ in one bit
//   ipc record          makes an event, prints a handle, then obeys its input: record, go
//   ipc await HANDLE    opens the event, then obeys its input: query, wait, stream, sync, record

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

static void say_handle(const char *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i)
        printf("%02x", (unsigned char)bytes[i]);
    printf("\n");
    fflush(stdout);
}

static int export_memory(void) {
    CUdeviceptr memory, own;
    CUipcMemHandle handle;
    CHECK(cuMemAlloc(&memory, WORDS * 4));
    CHECK(cuMemsetD32(memory, 7, WORDS));
    CHECK(cuCtxSynchronize());
    CHECK(cuIpcGetMemHandle(&handle, memory + 4000));
    say_handle(handle.reserved, sizeof handle);
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

// Records behind a wait for `word`, which "go" writes: between the two the record is pending.
static int record(CUdevice device) {
    int supported = 0;
    CHECK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, device));
    if (supported != 1)
        return 1;
    CUevent event, plain;
    CUipcEventHandle handle;
    CUdeviceptr word;
    CUstream stream;
    unsigned turn = 0;
    if (cuEventCreate(&event, CU_EVENT_INTERPROCESS) != CUDA_ERROR_INVALID_VALUE)
        return 1;
    CHECK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    if (cuIpcGetEventHandle(&handle, plain) != CUDA_ERROR_INVALID_HANDLE)
        return 1;
    CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CHECK(cuIpcGetEventHandle(&handle, event));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&word, 4));
    CHECK(cuMemsetD32(word, 0, 1));
    CHECK(cuCtxSynchronize());
    say_handle(handle.reserved, sizeof handle);
    char line[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "record\n") == 0) {
            CHECK(cuStreamWaitValue32(stream, word, ++turn, CU_STREAM_WAIT_VALUE_GEQ));
            printf("%s\n", name_of(cuEventRecord(event, stream)));
        } else if (strcmp(line, "go\n") == 0) {
            CHECK(cuStreamWriteValue32(0, word, turn, CU_STREAM_WRITE_VALUE_DEFAULT));
            printf("%s\n", name_of(cuEventSynchronize(event)));
        } else {
            printf("%s\n", name_of(cuEventQuery(event)));
        }
        fflush(stdout);
    }
    return 0;
}

static int await_event(const char *text) {
    CUipcEventHandle handle;
    CUipcMemHandle bytes = parse(text);
    CUevent event;
    CUstream stream;
    memcpy(&handle, &bytes, sizeof handle);
    CUresult result = cuIpcOpenEventHandle(&event, handle);
    if (result != CUDA_SUCCESS) {
        printf("refused: %s\n", name_of(result));
        return 3;
    }
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    printf("open\n");
    fflush(stdout);
    char line[32];
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "query\n") == 0)
            result = cuEventQuery(event);
        else if (strcmp(line, "wait\n") == 0)
            result = cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT);
        else if (strcmp(line, "stream\n") == 0)
            result = cuStreamQuery(stream);
        else if (strcmp(line, "sync\n") == 0)
            result = cuEventSynchronize(event);
        else
            result = cuEventRecord(event, stream);
        printf("%s\n", name_of(result));
        fflush(stdout);
    }
    CHECK(cuEventDestroy(event));
    return 0;
}

int main(int argc, char **argv) {
    CUdevice device;
    open_device(&device);
    if (argc == 2 && strcmp(argv[1], "export") == 0)
        return export_memory();
    if (argc == 2 && strcmp(argv[1], "record") == 0)
        return record(device);
    if (argc == 3 && strcmp(argv[1], "await") == 0)
        return await_event(argv[2]);
    if (argc == 3 && strlen(argv[2]) == 2 * sizeof(CUipcMemHandle)) {
        CUipcMemHandle handle = parse(argv[2]);
        if (strcmp(argv[1], "open") == 0)
            return open_memory(&handle);
        if (strcmp(argv[1], "hold") == 0)
            return hold(&handle);
        if (strcmp(argv[1], "forge") == 0)
            return forge(&handle);
    }
    fprintf(stderr, "usage: ipc export|record, ipc open|hold|forge|await HANDLE\n");
    return 2;
}
