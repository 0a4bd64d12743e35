// A service that answers requests: each is some launches of one kernel and a wait for the last.
// Requests come at moments that do not depend on the answers, as users' do, so an answer that is
// late makes the next ones late, too, and all of that counts.
//
//   request KERNEL LAUNCHES PERIOD_US SECONDS START SEED
//
// The times between requests are uniform from half of PERIOD_US to one and a half of it, from SEED.
// START is a moment of CLOCK_MONOTONIC in seconds. The result proves that every launch ran once.
// One JSON line at the end: how long each answer took, in us, from when its request came.
#include "../../examples/cuda/common.h"

EMBED(share_ptx, "kernels/share.ptx");

enum { REQUESTS_MAX = 100000 };

static double answers[REQUESTS_MAX];

static void wait_until(double moment) {
    double left = moment - seconds_now();
    while (left > 0.0) {
        struct timespec pause = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&pause, NULL);
        left = moment - seconds_now();
    }
}

// Uniform in [0, 1): splitmix64.
static double uniform(uint64_t *state) {
    uint64_t mixed = *state += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return (double)((mixed ^ (mixed >> 31)) >> 11) / 9007199254740992.0;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: request KERNEL LAUNCHES PERIOD_US SECONDS START SEED\n");
        return 2;
    }
    const char *kernel = argv[1];
    int launches = atoi(argv[2]);
    double period = 1e-6 * atof(argv[3]), seconds = atof(argv[4]), start = atof(argv[5]);
    uint64_t seed = strtoull(argv[6], NULL, 10);
    CUdevice device;
    open_device(&device);
    struct step_kernel step;
    open_step_kernel(&step, share_ptx, kernel);
    CHECK(cuCtxSynchronize());

    long count = 0;
    double comes = start;
    for (;;) {
        comes += period * (0.5 + uniform(&seed));
        if (comes >= start + seconds || count == REQUESTS_MAX)
            break;
        wait_until(comes);
        for (int i = 0; i < launches; ++i)
            CHECK(launch_step(&step));
        CHECK(cuCtxSynchronize());
        answers[count++] = seconds_now() - comes;
    }
    int correct = ran_steps(&step, (uint64_t)count * (uint64_t)launches);
    printf("{\"answers_us\": [");
    for (long i = 0; i < count; ++i)
        printf("%s%.1f", i > 0 ? ", " : "", 1e6 * answers[i]);
    printf("], \"verified\": %s}\n", correct ? "true" : "false");
    return correct ? 0 : 1;
}
