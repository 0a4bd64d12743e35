// What OpenMP programs hand to a device, compiled by GCC with offloading to nvptx: its own run-time
// library and C library come as some fifty objects of PTX that the driver links.

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 2000 };

static int failures;

static void check(const char *what, int good)
{
    if (!good) {
        printf("%s FAILED\n", what);
        failures++;
    }
}

#pragma omp declare target
static int table[4] = {2, 3, 5, 7};

static int factorial(int n)
{
    return n <= 1 ? 1 : n * factorial(n - 1);
}
#pragma omp end declare target

static void regions(void)
{
    int x = 1, on_host = 1, sum = 0, product = 0;
#pragma omp target map(tofrom : x)
    x += 41;
    check("a region", x == 42);
#pragma omp target map(from : on_host)
    on_host = omp_is_initial_device();
    check("the device runs it", !on_host);
#pragma omp target map(from : sum, product)
    {
        sum = 0;
        for (int i = 0; i < 4; i++)
            sum += table[i];
        product = factorial(6);
    }
    check("functions and data of the device", sum == 17 && product == 720);
}

static void loops(void)
{
    static int a[N], b[N];
    static float f[N];
    static int grid[40][50];
    for (int i = 0; i < N; i++)
        a[i] = i;
#pragma omp target teams distribute parallel for map(to : a) map(from : b)
    for (int i = 0; i < N; i++)
        b[i] = 3 * a[i];
#pragma omp target teams distribute parallel for simd map(to : a) map(from : f)
    for (int i = 0; i < N; i++)
        f[i] = 0.5f * a[i];
#pragma omp target teams distribute parallel for collapse(2) map(from : grid)
    for (int i = 0; i < 40; i++)
        for (int j = 0; j < 50; j++)
            grid[i][j] = 100 * i + j;
    int good = 1;
    for (int i = 0; i < N; i++)
        good &= b[i] == 3 * i && f[i] == 0.5f * i && grid[i / 50][i % 50] == 100 * (i / 50) + i % 50;
    check("loops", good);
#pragma omp target parallel for schedule(dynamic, 3) map(from : b)
    for (int i = 0; i < N; i++)
        b[i] = i * i;
#pragma omp target parallel for schedule(guided) map(tofrom : b)
    for (int i = 0; i < N; i++)
        b[i] += 1;
    good = 1;
    for (int i = 0; i < N; i++)
        good &= b[i] == i * i + 1;
    check("schedules", good);
}

static void reductions(void)
{
    long sum = 0;
    float least = 1e9f, most = -1;
    int powers = 1, counted = 0, critical = 0;
#pragma omp target teams distribute parallel for reduction(+ : sum)
    for (int i = 0; i < 100 * N; i++)
        sum += i;
#pragma omp target teams distribute parallel for reduction(max : most)
    for (int i = 0; i < N; i++)
        most = fmaxf(most, (i * 7919) % N);
#pragma omp target teams distribute parallel for reduction(min : least)
    for (int i = 0; i < N; i++)
        least = fminf(least, (i * 7919) % N);
#pragma omp target parallel for reduction(* : powers)
    for (int i = 0; i < 10; i++)
        powers *= 2;
    check("reductions", sum == 100L * N * (100L * N - 1) / 2 && most == N - 1 && least == 0 &&
                            powers == 1024);
#pragma omp target parallel for map(tofrom : counted, critical)
    for (int i = 0; i < 300; i++) {
#pragma omp atomic
        counted += i;
#pragma omp critical
        critical += 1;
    }
    check("atomics and critical sections", counted == 44850 && critical == 300);
}

static void data(void)
{
    double *p = malloc(N * sizeof *p);
    for (int i = 0; i < N; i++)
        p[i] = i;
#pragma omp target enter data map(to : p[0 : N])
    for (int round = 0; round < 4; round++) {
#pragma omp target teams distribute parallel for
        for (int i = 0; i < N; i++)
            p[i] += 0.25;
    }
#pragma omp target update from(p[0 : N])
#pragma omp target exit data map(delete : p[0 : N])
    int good = 1;
    for (int i = 0; i < N; i++)
        good &= p[i] == i + 1;
    check("data that stays", good);
    free(p);
    int a[64], b[64];
#pragma omp target nowait map(from : a) depend(out : a)
    for (int i = 0; i < 64; i++)
        a[i] = i;
#pragma omp target nowait map(to : a) map(from : b) depend(in : a)
    for (int i = 0; i < 64; i++)
        b[i] = 3 * a[i];
#pragma omp taskwait
    good = 1;
    for (int i = 0; i < 64; i++)
        good &= b[i] == 3 * i;
    check("tasks", good);
}

static void libraries(void)
{
    static double r[N];
    int heap = 0, teams = 0, threads = 0;
#pragma omp target teams distribute parallel for map(from : r)
    for (int i = 0; i < N; i++)
        r[i] = sin(0.01 * i) + exp(-0.001 * i) + pow(i + 1.0, 0.3);
    int good = 1;
    for (int i = 0; i < N; i++) {
        double expected = sin(0.01 * i) + exp(-0.001 * i) + pow(i + 1.0, 0.3);
        good &= fabs(r[i] - expected) <= 1e-12 * fabs(expected);
    }
    check("mathematics", good);
#pragma omp target map(from : heap)
    {
        int *all = malloc(100 * sizeof *all);
        for (int i = 0; all && i < 100; i++)
            all[i] = i;
        heap = all ? all[0] + all[99] : -1;
        free(all);
        printf("printed on the %s\n", "device");
    }
    check("the heap of the device", heap == 99);
#pragma omp target map(from : teams, threads)
#pragma omp teams num_teams(4) thread_limit(64)
    if (omp_get_team_num() == 0) {
        teams = omp_get_num_teams();
#pragma omp parallel
        if (omp_get_thread_num() == 0)
            threads = omp_get_num_threads();
    }
    check("teams and threads", teams == 4 && threads >= 1 && threads <= 64);
}

int main(void)
{
    regions();
    loops();
    reductions();
    data();
    libraries();
    puts(failures ? "FAILED" : "PASSED");
    return failures != 0;
}
