// A tenant that attaches, says how long that took, and then does nothing until its input ends.
// Prints JSON lines; the last one confirms that the device still answers correctly.
#include "../../examples/cuda/common.h"

int main(void) {
    CUdevice device;
    double begin = seconds_now();
    open_device(&device);
    printf("{\"attach_us\": %.1f}\n", 1e6 * (seconds_now() - begin));
    fflush(stdout);
    while (getchar() != EOF) {
    }
    CUdeviceptr memory;
    uint32_t words[64], back[64];
    for (uint32_t i = 0; i < 64; ++i)
        words[i] = i * 2654435761u;
    CHECK(cuMemAlloc(&memory, sizeof words));
    CHECK(cuMemcpyHtoD(memory, words, sizeof words));
    CHECK(cuMemcpyDtoH(back, memory, sizeof back));
    int correct = memcmp(words, back, sizeof words) == 0;
    printf("{\"verified\": %s}\n", correct ? "true" : "false");
    return correct ? 0 : 1;
}
