// A tenant that misbehaves in one way, and checks that it gets the right error for it.
//
//   hostile HOW        see `cases` below; exit code 0 if the error was the expected one
#include "../../examples/cuda/common.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

EMBED(hostile_ptx, "../../tests/programs/kernels/hostile.ptx");

static const uint64_t PATTERN = 0x5eC2e7C0ffee1234u;
static CUmodule module;

static CUfunction kernel(const char *name) {
    CUfunction function;
    if (module == NULL)
        return load_kernel(&module, hostile_ptx, name);
    CHECK(cuModuleGetFunction(&function, module, name));
    return function;
}

static void launch(const char *name, unsigned blocks, unsigned threads, unsigned shared,
                   void **arguments) {
    CHECK(cuLaunchKernel(kernel(name), blocks, 1, 1, threads, 1, 1, shared, NULL, arguments, NULL));
}

// The error must be the expected one, and it must stay.
static int expect_sticky(CUresult expected) {
    CUresult first = cuCtxSynchronize(), second = cuCtxSynchronize();
    const char *name = "?", *again = "?";
    cuGetErrorName(first, &name);
    cuGetErrorName(second, &again);
    printf("got %s, then %s\n", name, again);
    return first == expected && second == expected ? 0 : 1;
}

static int endless(void) {
    CUdeviceptr counter;
    CHECK(cuMemAlloc(&counter, 4));
    CHECK(cuMemsetD32(counter, 0, 1));
    void *arguments[] = {&counter};
    launch("spin_forever", 1, 32, 0, arguments);
    return expect_sticky(CUDA_ERROR_LAUNCH_TIMEOUT);
}

static int trap(void) {
    launch("trap_now", 1, 32, 0, NULL);
    CUresult result = cuCtxSynchronize();
    return result == CUDA_ERROR_LAUNCH_FAILED || result == CUDA_ERROR_ILLEGAL_INSTRUCTION ? 0 : 1;
}

static int misaligned(void) {
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, 64));
    void *arguments[] = {&memory};
    launch("misaligned", 1, 1, 0, arguments);
    return expect_sticky(CUDA_ERROR_MISALIGNED_ADDRESS);
}

static int out_of_bounds(void) {
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, 64));
    long long offset = 1 << 20;
    void *arguments[] = {&memory, &offset};
    launch("out_of_bounds", 1, 1, 0, arguments);
    return expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
}

static int use_after_free(void) {
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, 1 << 20));
    CHECK(cuMemFree(memory));
    long long offset = 0;
    void *arguments[] = {&memory, &offset};
    launch("out_of_bounds", 1, 1, 0, arguments);
    return expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
}

static int null_pointer(void) {
    CUdeviceptr memory = 0;
    long long offset = 0;
    void *arguments[] = {&memory, &offset};
    launch("out_of_bounds", 1, 1, 0, arguments);
    return expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
}

// Allocates until there is no more; then everything still works, and what was freed comes back.
static int over_quota(void) {
    CUdeviceptr blocks[4096], one_more;
    size_t free_bytes, total_bytes, size = 16 << 20;
    CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
    int count = 0;
    CUresult result;
    while ((result = cuMemAlloc(&blocks[count], size)) == CUDA_SUCCESS && count < 4095)
        ++count;
    printf("%d blocks of %zu MiB of %zu MiB\n", count, size >> 20, total_bytes >> 20);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || (size_t)count * size > total_bytes ||
        (size_t)(count + 2) * size < total_bytes)
        return 1;
    CHECK(cuMemFree(blocks[--count]));
    CHECK(cuMemAlloc(&one_more, size));
    CHECK(cuMemsetD8(one_more, 7, size));
    unsigned char last = 0;
    CHECK(cuMemcpyDtoH(&last, one_more + size - 1, 1));
    return last == 7 ? 0 : 1;
}

// Fills all its memory with a pattern and waits to be killed, or ends.
static int secret(void) {
    size_t free_bytes, total_bytes;
    CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
    unsigned long long bytes = (free_bytes - (8 << 20)) & ~0xfffffull, words = bytes / 8;
    CUdeviceptr memory, sink;
    CHECK(cuMemAlloc(&memory, bytes));
    CHECK(cuMemAlloc(&sink, 4));
    uint64_t pattern = PATTERN;
    void *fill[] = {&memory, &pattern, &words};
    launch("fill_pattern", 64, 256, 0, fill);
    void *shared[] = {&pattern};
    launch("fill_shared", 4, 256, 48 * 1024, shared);
    void *local[] = {&pattern, &sink};
    launch("fill_local", 4, 256, 0, local);
    CHECK(cuCtxSynchronize());
    printf("ready %llu\n", bytes);
    fflush(stdout);
    char line[16];
    return fgets(line, sizeof line, stdin) != NULL ? 0 : 0;
}

// Looks for anything in fresh global, shared and local memory that it did not write.
static int leftovers(void) {
    size_t free_bytes, total_bytes;
    CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
    unsigned long long bytes = (free_bytes - (8 << 20)) & ~0xfffffull, words = bytes / 8;
    CUdeviceptr memory, hits;
    CHECK(cuMemAlloc(&hits, 4));
    CHECK(cuMemsetD32(hits, 0, 1));
    CHECK(cuMemAlloc(&memory, bytes));
    uint64_t pattern = PATTERN;
    int nowhere = -1;
    void *global[] = {&memory, &hits, &words};
    launch("count_nonzero", 64, 256, 0, global);
    void *shared[] = {&pattern, &hits};
    launch("peek_shared", 4, 256, 48 * 1024, shared);
    void *local[] = {&pattern, &hits, &nowhere};
    launch("peek_local", 4, 256, 0, local);
    unsigned found = 1;
    CHECK(cuMemcpyDtoH(&found, hits, sizeof found));
    printf("looked through %llu bytes, found %u words\n", bytes, found);
    return found == 0 ? 0 : 1;
}

// Touches one address from a kernel, in a process of its own because the error is sticky.
// Exit code: 0 fault as it should be, 1 readable but zero, 3 found something.
static int probe(uint64_t address) {
    CUdeviceptr found;
    uint64_t stride = 0, value = 0;
    CHECK(cuMemAlloc(&found, 8));
    CHECK(cuMemsetD8(found, 0, 8));
    void *arguments[] = {&address, &stride, &found};
    launch("peek", 1, 1, 0, arguments);
    CUresult result = cuCtxSynchronize();
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_INVALID_ADDRESS_SPACE)
        return 0;
    CHECK(result);
    CHECK(cuMemcpyDtoH(&value, found, sizeof value));
    return value == 0 ? 1 : 3;
}

// Scans the address space below and above its own allocation, one process per probe. No probe may
// find the other tenant's pattern; outside its own memory every probe must fault.
static int scan(const char *self) {
    int faults = 0, zeros = 0, found = 0, broken = 0;
    for (int bit = 12; bit < 64; ++bit)
        for (int side = 0; side < 2; ++side) {
            char address[32], command[512];
            uint64_t at = (1ull << bit) + (side ? 1ull << (bit > 20 ? bit - 3 : 12) : 0);
            snprintf(address, sizeof address, "%llu", (unsigned long long)at);
            snprintf(command, sizeof command, "'%s' probe %s", self, address);
            int status = system(command);
            switch (WIFEXITED(status) ? WEXITSTATUS(status) : -1) {
            case 0: ++faults; break;
            case 1: ++zeros; break;
            case 3: ++found; break;
            default: ++broken;
            }
        }
    printf("%d faults, %d zeros, %d found, %d broken\n", faults, zeros, found, broken);
    return found == 0 && broken == 0 && faults > 80 ? 0 : 1;
}

static int garbage(void) {
    static const unsigned fatbin[] = {0xba55ed50u, 0x00100001u, 0xffffffffu, 0x7fffffffu, 1, 2, 3, 4};
    unsigned wrapper[6] = {0x466243b1u, 1, 0, 0, 0, 0};
    uintptr_t data = (uintptr_t)fatbin;
    memcpy(&wrapper[2], &data, sizeof data);
    char half[600], noise[1024], elf[256] = "\177ELF\2\1\1";
    snprintf(half, sizeof half, "%.*s", 500, hostile_ptx);
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof noise; ++i)
        noise[i] = (char)((state = state * 1664525u + 1013904223u) >> 24);
    noise[sizeof noise - 1] = '\0';
    const void *images[] = {fatbin, wrapper, half, noise, elf, "", ".version 99.9\n",
                            ".version 7.5\n.target sm_75\n.address_size 64\n"
                            ".visible .entry k()\n{\n  frobnicate.u32 %r1, %r2;\n  ret;\n}\n"};
    for (size_t i = 0; i < sizeof images / sizeof *images; ++i) {
        CUmodule bad;
        char log[1024] = "";
        CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        void *values[] = {log, (void *)(uintptr_t)sizeof log};
        CUresult result = cuModuleLoadDataEx(&bad, images[i], 2, options, values);
        const char *name = "?";
        cuGetErrorName(result, &name);
        printf("image %zu: %s %s\n", i, name, log);
        if (result == CUDA_SUCCESS)
            return 1;
        if (i == 7 && (strstr(log, "frobnicate") == NULL || strstr(log, "6") == NULL))
            return 1; // The message names the instruction and its line.
    }
    kernel("trap_now"); // The session still loads good modules.
    return 0;
}

// How many sockets and pipes this process has open.
static int connections(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) {
        struct stat about;
        count += fstat(fd, &about) == 0 && (S_ISSOCK(about.st_mode) || S_ISFIFO(about.st_mode));
    }
    return count;
}

static int forked(void) {
    int before = connections();
    pid_t child = fork();
    if (child == 0) {
        size_t free_bytes, total_bytes;
        // The child has let go of the session's lifeline, so the session ends with its parent.
        if (connections() != before - 1)
            _exit(3);
        _exit(cuMemGetInfo(&free_bytes, &total_bytes) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    size_t free_bytes, total_bytes;
    CHECK(cuMemGetInfo(&free_bytes, &total_bytes)); // The parent goes on.
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int stale(void) {
    CUstream stream;
    CUevent event;
    CUdeviceptr memory;
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventDestroy(event));
    CHECK(cuMemAlloc(&memory, 4096));
    CHECK(cuMemFree(memory));
    int good = cuStreamSynchronize(stream) != CUDA_SUCCESS;
    good &= cuEventRecord(event, NULL) != CUDA_SUCCESS;
    good &= cuMemFree(memory) == CUDA_ERROR_INVALID_VALUE;
    good &= cuMemFree((CUdeviceptr)0x1234) == CUDA_ERROR_INVALID_VALUE;
    good &= cuMemcpyHtoD(memory, &good, 4) == CUDA_ERROR_INVALID_VALUE;
    CHECK(cuCtxSynchronize());
    return good ? 0 : 1;
}

static CUcontext shared_context;

static void *short_life(void *unused) {
    (void)unused;
    CHECK(cuCtxSetCurrent(shared_context));
    uint64_t value = 0;
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, 64));
    CHECK(cuMemsetD32(memory, 41, 2));
    CHECK(cuMemcpyDtoH(&value, memory, 8));
    CHECK(cuMemFree(memory));
    return (void *)(uintptr_t)(value == 41ull * 0x100000001ull ? 0 : 1);
}

// 10,000 short-lived threads, 8 at a time.
static int threads(void) {
    enum { TOTAL = 10000, AT_ONCE = 8 };
    CHECK(cuCtxGetCurrent(&shared_context));
    for (int round = 0; round < TOTAL / AT_ONCE; ++round) {
        pthread_t running[AT_ONCE];
        for (int i = 0; i < AT_ONCE; ++i)
            if (pthread_create(&running[i], NULL, short_life, NULL) != 0)
                return 1;
        for (int i = 0; i < AT_ONCE; ++i) {
            void *bad;
            pthread_join(running[i], &bad);
            if (bad != NULL)
                return 1;
        }
    }
    return 0;
}

// 20,000 launches and 30,000 synchronous calls between getppid calls, which mark the parts of the
// stretch for a tracer. Few launches at once: on a slow machine eight took longer than a side spins.
static int quiet_stretch(CUfunction fill, void **arguments, CUevent first, CUevent second) {
    float elapsed_ms;
    for (int round = -400; round < 10000; ++round) {
        if (round >= 0 && round % 200 == 0)
            getppid();
        for (int i = 0; i < 2; ++i)
            CHECK(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL));
        for (int i = 0; i < 2; ++i)
            CHECK(cuEventElapsedTime(&elapsed_ms, first, second));
        CHECK(cuCtxSynchronize());
    }
    getppid();
    return 0;
}

// Answers "ping", so that a tracer can see whether it sees, and works quietly at every "go".
static int quiet(void) {
    CUdeviceptr memory;
    unsigned long long words = 8;
    uint64_t pattern = 1;
    CHECK(cuMemAlloc(&memory, 64));
    void *arguments[] = {&memory, &pattern, &words};
    CUfunction fill = kernel("fill_pattern");
    CUevent first, second;
    CHECK(cuEventCreate(&first, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&second, CU_EVENT_DEFAULT));
    CHECK(cuEventRecord(first, NULL));
    CHECK(cuEventRecord(second, NULL));
    CHECK(cuCtxSynchronize());
    printf("ready\n");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "go\n") == 0 && quiet_stretch(fill, arguments, first, second) != 0)
            return 1;
        CHECK(cuCtxSynchronize());
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {{"endless", endless}, {"trap", trap}, {"misaligned", misaligned},
                 {"out_of_bounds", out_of_bounds}, {"use_after_free", use_after_free},
                 {"null_pointer", null_pointer}, {"over_quota", over_quota}, {"secret", secret},
                 {"leftovers", leftovers}, {"garbage", garbage}, {"forked", forked},
                 {"stale", stale}, {"threads", threads}, {"quiet", quiet}};
    if (argc == 2 && strcmp(argv[1], "scan") == 0)
        return scan(argv[0]);
    CUdevice device;
    open_device(&device);
    if (argc == 3 && strcmp(argv[1], "probe") == 0)
        return probe(strtoull(argv[2], NULL, 0));
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; ++i)
        if (strcmp(argv[1], cases[i].name) == 0)
            return cases[i].run();
    fprintf(stderr, "usage: hostile CASE; see the source for the cases\n");
    return 2;
}
