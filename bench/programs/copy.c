// Copies of 4 KiB to 256 MiB to and from the device, pageable and pinned, each beside a memcpy of
// the same size in the same process. Prints one JSON line; the bytes that come back are checked.
//
//   copy [KIB]      of at most so many KiB
//
// The memcpy baseline runs between buffers of the same kind as the copy's: fresh pages that were
// touched before, so that neither side pays for page faults.
#include "../../examples/cuda/common.h"

enum { REPEATS = 7 };

static const size_t sizes[] = {4096, 65536, 1 << 20, 16 << 20, 256 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes };
static int used = SIZES; // Sizes that are not too large.

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, REPEATS, sizeof *values, ascending);
    return values[REPEATS / 2];
}

static void fill(unsigned char *bytes, size_t n, uint32_t seed) {
    for (size_t i = 0; i + 4 <= n; i += 4) {
        seed = seed * 1664525u + 1013904223u;
        memcpy(bytes + i, &seed, 4);
    }
}

// Seconds of a copy in, a copy out and a memcpy; loops small sizes to about a millisecond.
struct times {
    double in, out, plain;
};

static struct times measure(unsigned char *host, unsigned char *back, unsigned char *plain,
                            CUdeviceptr device, size_t bytes) {
    int loops = bytes < (1 << 20) ? (int)((1 << 20) / bytes) : 1;
    double in[REPEATS], out[REPEATS], copy[REPEATS];
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        double t0 = seconds_now();
        for (int i = 0; i < loops; ++i)
            memcpy(plain, host, bytes);
        double t1 = seconds_now();
        for (int i = 0; i < loops; ++i)
            CHECK(cuMemcpyHtoD(device, host, bytes));
        CHECK(cuCtxSynchronize()); // The copy in has arrived, staged or not.
        double t2 = seconds_now();
        for (int i = 0; i < loops; ++i)
            CHECK(cuMemcpyDtoH(back, device, bytes));
        double t3 = seconds_now();
        copy[repeat] = (t1 - t0) / loops;
        in[repeat] = (t2 - t1) / loops;
        out[repeat] = (t3 - t2) / loops;
    }
    struct times times = {median(in), median(out), median(copy)};
    return times;
}

static int run(const char *kind, int pinned, CUdeviceptr device, unsigned char *plain) {
    size_t largest = sizes[used - 1];
    unsigned char *host, *back;
    if (pinned) {
        CHECK(cuMemHostAlloc((void **)&host, largest, 0));
        CHECK(cuMemHostAlloc((void **)&back, largest, 0));
    } else {
        host = malloc(largest);
        back = malloc(largest);
    }
    int correct = 1;
    for (int i = 0; i < used; ++i) {
        fill(host, sizes[i], (uint32_t)i + 1);
        memset(back, 0, sizes[i]);
        memset(plain, 0, sizes[i]);
        struct times times = measure(host, back, plain, device, sizes[i]);
        correct &= memcmp(host, back, sizes[i]) == 0;
        printf("\"%s_in_over_memcpy_%zuK\": %.4f, \"%s_out_over_memcpy_%zuK\": %.4f, "
               "\"%s_in_GBps_%zuK\": %.3f, \"%s_out_GBps_%zuK\": %.3f, ",
               kind, sizes[i] >> 10, times.plain / times.in, kind, sizes[i] >> 10,
               times.plain / times.out, kind, sizes[i] >> 10, 1e-9 * sizes[i] / times.in, kind,
               sizes[i] >> 10, 1e-9 * sizes[i] / times.out);
    }
    if (pinned) {
        CHECK(cuMemFreeHost(host));
        CHECK(cuMemFreeHost(back));
    } else {
        free(host);
        free(back);
    }
    return correct;
}

int main(int argc, char **argv) {
    if (argc > 1)
        while (used > 1 && sizes[used - 1] >> 10 > strtoul(argv[1], NULL, 10))
            --used;
    CUdevice device;
    open_device(&device);
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, sizes[used - 1]));
    CHECK(cuMemsetD8(memory, 0, sizes[used - 1]));
    unsigned char *plain = malloc(sizes[used - 1]);
    printf("{");
    int correct = run("pageable", 0, memory, plain);
    correct &= run("pinned", 1, memory, plain);
    printf("\"verified\": %s}\n", correct ? "true" : "false");
    return correct ? 0 : 1;
}
