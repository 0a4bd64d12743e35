// A tenant with more memory than it works on at a time, as a program has weights of which a request
// needs a part. Each round runs saxpy on every block of its working set; the other blocks wait.
//
//   working MIB WORKING_MIB SECONDS [--start AT] [--window SECONDS] [--spoil]
//
// Memory is MIB blocks of 1 MiB, the working set the first WORKING_MIB of them. --start and --window
// are as of `share`: with `--start -` it prints a line when it has its memory and reads the moment
// from standard input; it prints how many blocks were worked on in each window as it passes. At the end
// all memory is read back: every block must hold what its rounds made of it, to the bit. --spoil
// changes one word of a block that no round works on, so that it must not. One JSON line at the end.
#include "../../examples/cuda/common.h"

#include <unistd.h>

EMBED(engine_ptx, "kernels/engine.ptx");

// A block is x and y side by side; a round works on the first ELEMENTS of both.
enum { BLOCK = 1 << 20, HALF = BLOCK / 2, ELEMENTS = 4096, BATCH = 16 };

struct options {
    int blocks, working, spoil, start_is_asked;
    double seconds, start, window;
};

static struct options parse(int argc, char **argv) {
    struct options options = {0};
    if (argc < 4) {
        fprintf(stderr, "usage: working MIB WORKING_MIB SECONDS [--start AT] [--window SECONDS] "
                        "[--spoil]\n");
        exit(2);
    }
    options.blocks = atoi(argv[1]);
    options.working = atoi(argv[2]);
    options.seconds = atof(argv[3]);
    for (int i = 4; i < argc; ++i) {
        if (strcmp(argv[i], "--spoil") == 0)
            options.spoil = 1;
        else if (strcmp(argv[i], "--start") == 0 && i + 1 < argc) {
            options.start_is_asked = strcmp(argv[++i], "-") == 0;
            options.start = atof(argv[i]);
        }
        else if (strcmp(argv[i], "--window") == 0 && i + 1 < argc)
            options.window = atof(argv[++i]);
        else {
            fprintf(stderr, "working: unknown option %s\n", argv[i]);
            exit(2);
        }
    }
    if (options.working < 1 || options.working > options.blocks || options.seconds <= 0.0) {
        fprintf(stderr, "working: 1 to MIB blocks are worked on, for some time\n");
        exit(2);
    }
    return options;
}

// No other tenant of the same moment has the same in all of its blocks, also not in others of them.
static unsigned own(int block, unsigned odd) {
    return ((unsigned)block + 0x9E3779B1u * (unsigned)getpid()) * odd >> 16;
}
static float x_of(int block) { return (float)(own(block, 0x85EBCA6Bu) % 61 + 1); }
static float y_of(int block) { return (float)(own(block, 0xC2B2AE35u) % 89) * 0.5f; }

// Whether a block holds what so many rounds of y = x + y made of it: exact below 2^24.
static int holds(CUdeviceptr memory, int block, long rounds) {
    static float seen[BLOCK / 4];
    CHECK(cuMemcpyDtoH(seen, memory, BLOCK));
    float x = x_of(block), y = y_of(block), worked = y;
    for (long round = 0; round < rounds; ++round)
        worked += x;
    for (int i = 0; i < HALF / 4; ++i) {
        float expected = i < ELEMENTS ? worked : y;
        if (seen[i] != x || seen[HALF / 4 + i] != expected) {
            fprintf(stderr, "block %d holds %g and %g at %d, not %g and %g\n", block, seen[i],
                    seen[HALF / 4 + i], i, x, expected);
            return 0;
        }
    }
    return 1;
}

static CUdeviceptr new_block(int block) {
    CUdeviceptr memory;
    float x = x_of(block), y = y_of(block);
    uint32_t words[2];
    memcpy(&words[0], &x, 4);
    memcpy(&words[1], &y, 4);
    CHECK(cuMemAlloc(&memory, BLOCK));
    CHECK(cuMemsetD32(memory, words[0], HALF / 4));
    CHECK(cuMemsetD32(memory + HALF, words[1], HALF / 4));
    return memory;
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction kernel = load_kernel(&module, engine_ptx, "saxpy");
    CUdeviceptr *blocks = malloc((size_t)options.blocks * sizeof *blocks);
    long *rounds = calloc((size_t)options.blocks, sizeof *rounds);
    for (int i = 0; i < options.blocks; ++i)
        blocks[i] = new_block(i);
    CHECK(cuCtxSynchronize());
    if (options.start_is_asked) {
        printf("{\"ready\": true}\n");
        fflush(stdout);
        if (scanf("%lf", &options.start) != 1)
            return 2;
    }
    while (seconds_now() < options.start) {
        struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
    }
    double begin = seconds_now(), end = begin + options.seconds, passed = begin + options.window;
    long worked = 0, in_window = 0;
    float one = 1.0f;
    int n = ELEMENTS;
    for (int next = 0; seconds_now() < end;) {
        for (int i = 0; i < BATCH; ++i, next = (next + 1) % options.working) {
            CUdeviceptr x = blocks[next], y = blocks[next] + HALF;
            void *arguments[] = {&one, &x, &y, &n};
            CHECK(cuLaunchKernel(kernel, ELEMENTS / 256, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
            rounds[next] += 1;
        }
        CHECK(cuCtxSynchronize());
        double now = seconds_now();
        worked += now < end ? BATCH : 0;
        for (; options.window > 0.0 && now >= passed; passed += options.window, in_window = 0)
            if (passed <= end + 1e-6) {
                printf("{\"window\": %ld}\n", in_window);
                fflush(stdout);
            }
        in_window += BATCH;
    }
    double took = seconds_now() - begin;
    if (options.spoil)
        CHECK(cuMemsetD32(blocks[options.blocks - 1] + BLOCK - 4, 0x7FC00000u, 1));
    int correct = 1;
    for (int i = 0; i < options.blocks; ++i)
        correct &= holds(blocks[i], i, rounds[i]);
    printf("{\"blocks\": %ld, \"seconds\": %.6f, \"verified\": %s}\n", worked, took,
           correct ? "true" : "false");
    return correct ? 0 : 1;
}
