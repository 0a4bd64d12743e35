// A tenant whose kernels time themselves: each stamps the device's clock (%globaltimer) at its
// beginning and end into memory, and the program sums. How long a kernel works is data: phases of
// short, long and middling ones follow each other, and no two of a phase are alike, so nothing that
// a scheduler knows beforehand (the kernel's name, its grid) tells its time.
//
//   stamps SECONDS START SHORTEST_US LONGEST_US
//
// START is a moment of CLOCK_MONOTONIC in seconds. Keeps up to 8 launches in flight. Prints how
// many launches ran, the sum of their stamps, the sum of the first five, and whether the sum is
// possible: no kernel can have been shorter than its plan.
#include "../../examples/cuda/common.h"

EMBED(stamp_ptx, "kernels/stamp.ptx");

enum { PLAN = 509, AHEAD = 8, PHASE = 17 };

// The time of each launch in µs, in turn: phases of PHASE launches near the shortest, the longest
// and the middle.
static void make_plan(uint32_t *plan_us, uint32_t shortest, uint32_t longest) {
    uint32_t random = shortest * 2654435761u + longest;
    for (int i = 0; i < PLAN; ++i) {
        random = random * 1664525u + 1013904223u;
        double within = (double)(random >> 8) / 16777216.0, at = (double)(i / PHASE % 3) / 3.0;
        if (i / PHASE % 3 == 1)
            at = 2.0 / 3.0;
        else if (i / PHASE % 3 == 2)
            at = 1.0 / 3.0;
        plan_us[i] = shortest + (uint32_t)((longest - shortest) * (at + within / 3.0));
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: stamps SECONDS START SHORTEST_US LONGEST_US\n");
        return 2;
    }
    double seconds = atof(argv[1]), start = atof(argv[2]);
    uint32_t plan_us[PLAN], entries = PLAN;
    make_plan(plan_us, (uint32_t)atol(argv[3]), (uint32_t)atol(argv[4]));
    CUdevice device;
    open_device(&device);
    CUmodule module;
    CUfunction stamp = load_kernel(&module, stamp_ptx, "stamp");
    CUdeviceptr device_plan, device_book;
    uint64_t book[3] = {0};
    CHECK(cuMemAlloc(&device_plan, sizeof plan_us));
    CHECK(cuMemcpyHtoD(device_plan, plan_us, sizeof plan_us));
    CHECK(cuMemAlloc(&device_book, sizeof book));
    CHECK(cuMemcpyHtoD(device_book, book, sizeof book));
    CUevent done[AHEAD];
    for (int i = 0; i < AHEAD; ++i)
        CHECK(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
    void *arguments[] = {&device_plan, &entries, &device_book};
    CHECK(cuCtxSynchronize());
    while (seconds_now() < start) {
        struct timespec moment = {0, 1000000};
        nanosleep(&moment, NULL);
    }
    double begin = seconds_now();
    long launches = 0;
    while (seconds_now() < begin + seconds) {
        if (launches >= AHEAD)
            CHECK(cuEventSynchronize(done[launches % AHEAD]));
        CHECK(cuLaunchKernel(stamp, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
        CHECK(cuEventRecord(done[launches % AHEAD], NULL));
        launches += 1;
    }
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(book, device_book, sizeof book));
    uint64_t least_ns = 0;
    for (long i = 0; i < launches; ++i)
        least_ns += 1000ull * plan_us[i % PLAN];
    int correct = book[0] == (uint64_t)launches && book[1] >= least_ns && launches >= 5;
    printf("{\"launches\": %ld, \"stamped_ns\": %llu, \"first_five_ns\": %llu, \"verified\": %s}\n",
           launches, (unsigned long long)book[1], (unsigned long long)book[2],
           correct ? "true" : "false");
    return correct ? 0 : 1;
}
