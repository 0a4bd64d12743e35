/* Saxpy and a matrix product on a virtual accelerator, synchronous and as futures, with the results
 * checked: tasks ACCELERATOR. Link with -lweft_tasks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft_tasks.h"

/* The kernels, as in the other languages' examples. */
__asm__(".section .rodata\n"
        ".global kernels_begin, kernels_end\n"
        "kernels_begin: .incbin \"kernels.ptx\"\n"
        "kernels_end:\n"
        ".previous\n");
extern const char kernels_begin[], kernels_end[];

enum { N = 1000, SIDE = 48, PRODUCTS = 8 };

static void check(int code, const char *what)
{
    if (code != WEFT_TASKS_OK) {
        fprintf(stderr, "%s: %s\n", what, weft_tasks_error());
        exit(1);
    }
}

static void expect(int right, const char *what)
{
    if (!right) {
        fprintf(stderr, "%s computed something else\n", what);
        exit(1);
    }
}

static void saxpy(weft_tasks_accelerator *accelerator, weft_tasks_module *module)
{
    static float x[N], y[N];
    float a = 2.0f;
    uint32_t n = N;
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = 1.0f;
    }
    weft_tasks_argument arguments[] = {
        {WEFT_TASKS_IN_OUT, y, sizeof y},
        {WEFT_TASKS_INPUT, x, sizeof x},
        {WEFT_TASKS_SCALAR, &a, sizeof a},
        {WEFT_TASKS_SCALAR, &n, sizeof n},
    };
    weft_tasks_task task = {
        .module = module,
        .kernel = "saxpy",
        .grid = {(N + 255) / 256, 1, 1},
        .block = {256, 1, 1},
        .arguments = arguments,
        .argument_count = 4,
    };
    weft_tasks_done done;
    check(weft_tasks_run(accelerator, &task, &done), "saxpy");
    for (int i = 0; i < N; i++)
        expect(y[i] == 2.0f * x[i] + 1.0f, "saxpy");
    printf("saxpy: %llu ns on %s\n", (unsigned long long)done.used_ns, done.device);
}

/* All are submitted before the first one is waited for. */
static void products(weft_tasks_accelerator *accelerator, weft_tasks_module *module)
{
    static float a[PRODUCTS][SIDE * SIDE], c[PRODUCTS][SIDE * SIDE], identity[SIDE * SIDE];
    weft_tasks_pending *pending[PRODUCTS];
    uint32_t side = SIDE;
    for (int i = 0; i < SIDE; i++)
        identity[i * SIDE + i] = 1.0f;
    for (int round = 0; round < PRODUCTS; round++) {
        for (int i = 0; i < SIDE * SIDE; i++)
            a[round][i] = (float)((i * 7 + round) % 13);
        weft_tasks_argument arguments[] = {
            {WEFT_TASKS_OUTPUT, c[round], sizeof c[round]},
            {WEFT_TASKS_INPUT, a[round], sizeof a[round]},
            {WEFT_TASKS_INPUT, identity, sizeof identity},
            {WEFT_TASKS_SCALAR, &side, sizeof side},
        };
        weft_tasks_task task = {
            .module = module,
            .kernel = "matmul",
            .grid = {(SIDE + 15) / 16, (SIDE + 15) / 16, 1},
            .block = {16, 16, 1},
            .arguments = arguments,
            .argument_count = 4,
        };
        check(weft_tasks_submit(accelerator, &task, &pending[round]), "matmul");
    }
    for (int round = 0; round < PRODUCTS; round++) {
        check(weft_tasks_wait(pending[round], -1, NULL), "matmul");
        weft_tasks_release(pending[round]);
        expect(memcmp(a[round], c[round], sizeof a[round]) == 0, "matmul");
    }
    printf("matmul: %d products by the identity\n", PRODUCTS);
}

int main(int argc, char **argv)
{
    weft_tasks_accelerator *accelerator;
    weft_tasks_module *module;
    if (argc != 2) {
        fprintf(stderr, "usage: tasks ACCELERATOR\n");
        return 2;
    }
    check(weft_tasks_open(argv[1], NULL, &accelerator), "open");
    size_t bytes = (size_t)(kernels_end - kernels_begin);
    check(weft_tasks_load(accelerator, kernels_begin, bytes, &module), "load");
    saxpy(accelerator, module);
    products(accelerator, module);

    /* What cannot run is refused before it does. */
    weft_tasks_task wrong = {.module = module, .kernel = "sakspy", .grid = {1, 1, 1},
                             .block = {1, 1, 1}};
    expect(weft_tasks_run(accelerator, &wrong, NULL) == WEFT_TASKS_REFUSED, "an unknown kernel");
    printf("refused: %s\n", weft_tasks_error());
    weft_tasks_unload(module);
    weft_tasks_close(accelerator);
    printf("ok\n");
    return 0;
}
