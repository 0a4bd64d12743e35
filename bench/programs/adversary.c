// Tenants that compete by foul means, and the honest one beside them that they rob
// (`weft bench adversary`, `cargo xtask test`).
//
//   adversary WHAT SECONDS [--start AT] [--kernel NAME] [--steps N] [--ahead N] [--sync]
//             [--length SECONDS] [--fraction F] [--sessions N] [--names] [--launch] [--rate N]
//             [--rows N] [--pitch BYTES] [--users FIRST] [--parts N] [--pause SECONDS]
//             [--nice LEVEL] [--everywhere]
//
// WHAT is one of
//   calibrate  alone: how many steps `work` does in SECONDS
//   honest     keeps --ahead launches of --kernel in flight; counts and verifies them, and says how
//              long it waited longest for any of them
//   kill       processes that launch --ahead kernels of --length each and are killed after
//              --fraction of one; counts the steps whose results it has nevertheless
//   leave      the same, but the process destroys its context and exits
//   storm      --sessions processes that set a byte and load a module in a loop; with --launch a
//              launch instead of the byte, and the module has --kernels
//   fills      fills of --rows rows of one byte; with a --pitch above 1 of memory that is new each time
//   copies     the same with copies of rows of one byte, --pitch apart, to the next byte of each
//   pageable   --sessions processes that copy --rows bytes of ordinary memory to the device and back, and
//              do nothing else
//   pinned     the same from memory and to memory that the device reaches by itself: the device is asked
//              for as much, and no program copies
//   memory     --sessions processes that copy --rows bytes of ordinary memory to other such memory: as
//              much of the processors as anybody takes who never asks for the device
//   grow       launches by the thousand that turn long after they were queued
//   tiny       --sessions processes with one short kernel, and one on each of --parts of 4 MiB, between
//              pauses of --pause, or of 1 to 3 ms
//   graph      graphs of --kernels empty kernels, one after the other
//   modules    --sessions processes that do nothing but load modules
//   calls      --sessions processes that ask for memory and give it back without end, and never for
//              the device; with --launch there is always a kernel in between
//   attaches   --rate processes a second that attach and end
//
// --names gives each process of an attack a vGPU name of its own, --users FIRST a user of its own
// from there on (needs root). --nice LEVEL gives all processes that priority, 19 the lowest; whoever
// works for them elsewhere keeps its own. --everywhere has them run on every processor there is,
// whichever they were started on. --start is a moment of CLOCK_MONOTONIC in seconds, or `-`:
// the program says `ready` when it could begin and does so when it reads a line. One JSON line at the
// end.
#define _GNU_SOURCE
#include "../../examples/cuda/common.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

EMBED(adversary_ptx, "../../bench/programs/kernels/adversary.ptx");

enum { ELEMENTS = 32, AHEAD_MAX = 4096, SESSIONS_MAX = 64, KERNELS_MAX = 8000 };

struct options {
    const char *what, *kernel;
    double seconds, start, length, fraction, rate, pause;
    uint32_t steps;
    unsigned long rows, pitch;
    int ahead, sessions, sync, names, launch, users, waits, kernels, parts, nice, everywhere;
};

static void nap(double seconds) {
    if (seconds <= 0.0)
        return;
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static void await_start(const struct options *options) {
    char line[64];
    if (options->waits) {
        printf("ready\n");
        fflush(stdout);
        if (fgets(line, sizeof line, stdin) == NULL)
            exit(2);
    }
    nap(options->start - seconds_now());
}

static struct options parse(int argc, char **argv) {
    struct options options = {.kernel = "work", .length = 1.0, .fraction = 0.97, .rate = 300.0,
                              .steps = 1, .rows = (1ul << 30) - 2, .pitch = 1, .ahead = 16, .sessions = 8,
                              .kernels = 200};
    if (argc < 3) {
        fprintf(stderr, "usage: adversary WHAT SECONDS [options]; see the source\n");
        exit(2);
    }
    options.what = argv[1];
    options.seconds = atof(argv[2]);
    for (int i = 3; i < argc; ++i) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        int takes_value = 1;
        if (strcmp(name, "--sync") == 0)
            options.sync = 1, takes_value = 0;
        else if (strcmp(name, "--names") == 0)
            options.names = 1, takes_value = 0;
        else if (strcmp(name, "--launch") == 0)
            options.launch = 1, takes_value = 0;
        else if (strcmp(name, "--everywhere") == 0)
            options.everywhere = 1, takes_value = 0;
        else if (strcmp(name, "--start") == 0)
            options.start = atof(value), options.waits = strcmp(value, "-") == 0;
        else if (strcmp(name, "--kernel") == 0)
            options.kernel = value;
        else if (strcmp(name, "--steps") == 0)
            options.steps = (uint32_t)atol(value);
        else if (strcmp(name, "--ahead") == 0)
            options.ahead = atoi(value);
        else if (strcmp(name, "--length") == 0)
            options.length = atof(value);
        else if (strcmp(name, "--fraction") == 0)
            options.fraction = atof(value);
        else if (strcmp(name, "--sessions") == 0)
            options.sessions = atoi(value);
        else if (strcmp(name, "--kernels") == 0)
            options.kernels = atoi(value);
        else if (strcmp(name, "--rate") == 0)
            options.rate = atof(value);
        else if (strcmp(name, "--rows") == 0)
            options.rows = strtoul(value, NULL, 10);
        else if (strcmp(name, "--pitch") == 0)
            options.pitch = strtoul(value, NULL, 10);
        else if (strcmp(name, "--parts") == 0)
            options.parts = atoi(value);
        else if (strcmp(name, "--pause") == 0)
            options.pause = atof(value);
        else if (strcmp(name, "--users") == 0)
            options.users = atoi(value);
        else if (strcmp(name, "--nice") == 0)
            options.nice = atoi(value);
        else {
            fprintf(stderr, "adversary: unknown option %s\n", name);
            exit(2);
        }
        i += takes_value;
    }
    if (options.ahead < 1 || options.ahead > AHEAD_MAX || options.sessions < 1 ||
        options.sessions > SESSIONS_MAX || options.kernels < 1 || options.kernels > KERNELS_MAX) {
        fprintf(stderr, "adversary: --ahead is 1 to %d, --sessions 1 to %d, --kernels 1 to %d\n",
                AHEAD_MAX, SESSIONS_MAX, KERNELS_MAX);
        exit(2);
    }
    return options;
}

// What a tenant works on: elements that kernels advance, and the count of their steps and of the time
// that they were on the device in pinned memory, which outlives what becomes of the session as long as
// somebody reads it in time.
struct work {
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr state, finished;
    volatile uint32_t *count;
    volatile uint64_t *device_ns;
};

static struct work open_work(const char *name) {
    struct work work;
    CUdevice device;
    open_device(&device);
    work.kernel = load_kernel(&work.module, adversary_ptx, name);
    work.state = new_steps(ELEMENTS);
    void *pinned;
    CHECK(cuMemHostAlloc(&pinned, 64, CU_MEMHOSTALLOC_DEVICEMAP));
    memset(pinned, 0, 64);
    work.count = pinned;
    work.device_ns = (volatile uint64_t *)pinned + 1;
    CHECK(cuMemHostGetDevicePointer(&work.finished, pinned, 0));
    return work;
}

static void launch_on(const struct work *work, CUdeviceptr state, uint32_t steps) {
    CUdeviceptr finished = work->finished;
    void *arguments[] = {&state, &steps, &finished};
    CHECK(cuLaunchKernel(work->kernel, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
}

static void launch(const struct work *work, uint32_t steps) {
    launch_on(work, work->state, steps);
}

// Doubles the steps of one launch until it takes long enough to be measured.
static int calibrate(const struct options *options) {
    struct work work = open_work("work");
    uint32_t steps = 1000;
    double took = 0.0;
    for (uint64_t total = 0;; steps *= 2) {
        double begin = seconds_now();
        launch(&work, steps);
        CHECK(cuCtxSynchronize());
        took = seconds_now() - begin;
        total += steps;
        if (took > 0.2) {
            int correct = took_steps(work.state, ELEMENTS, total);
            printf("{\"steps\": %.0f, \"verified\": %s}\n", steps * options->seconds / took,
                   correct ? "true" : "false");
            return correct ? 0 : 1;
        }
    }
}

// How many launches completed within the time, each of them proved by the result.
static int honest(const struct options *options) {
    struct work work = open_work(options->kernel);
    int ahead = options->sync ? 1 : options->ahead;
    static CUevent done[AHEAD_MAX];
    for (int i = 0; i < ahead; ++i)
        CHECK(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
    // What a first launch costs is not what is measured.
    launch(&work, 1);
    CHECK(cuCtxSynchronize());
    await_start(options);
    double begin = seconds_now(), end = begin + options->seconds, last = begin, gap = 0.0;
    uint64_t stamped = *work.device_ns, device_ns = 0;
    long launched = 0, completed = 0, in_time = 0;
    while (last < end) {
        while (launched - completed < ahead) {
            launch(&work, options->steps);
            CHECK(cuEventRecord(done[launched % ahead], NULL));
            ++launched;
        }
        if (options->sync)
            CHECK(cuCtxSynchronize());
        else
            CHECK(cuEventSynchronize(done[completed % ahead]));
        double now = seconds_now();
        gap = fmax(gap, fmin(now, end) - last);
        last = now;
        while (completed < launched) {
            CUresult result = cuEventQuery(done[completed % ahead]);
            if (result == CUDA_ERROR_NOT_READY)
                break;
            CHECK(result);
            ++completed;
        }
        if (now <= end)
            in_time = completed, device_ns = *work.device_ns - stamped;
    }
    CHECK(cuCtxSynchronize());
    int correct = took_steps(work.state, ELEMENTS, 1 + (uint64_t)launched * options->steps);
    printf("{\"completed\": %ld, \"launches\": %ld, \"seconds\": %.6f, \"longest_gap\": %.6f, "
           "\"device_seconds\": %.6f, \"verified\": %s}\n",
           in_time, launched, options->seconds, gap, 1e-9 * (double)device_ns,
           correct ? "true" : "false");
    return correct ? 0 : 1;
}

// What the processes of an attack tell the one that starts and kills them.
struct shared {
    volatile uint32_t launched;
    volatile uint32_t steps;
    uint64_t rounds, errors;
};

static struct shared *shared;

// A process of an attack that dies with the one that started it.
static pid_t begin_process(const struct options *options, int number) {
    pid_t parent = getpid(), child = fork();
    if (child != 0)
        return child;
    if (options->names) {
        char name[32];
        snprintf(name, sizeof name, "attack-%d-%d", (int)parent, number);
        setenv("WEFT_VGPU", name, 1);
    }
    if (options->users != 0) {
        uid_t user = (uid_t)(options->users + number);
        if (setgid(user) != 0 || setuid(user) != 0) {
            perror("adversary: --users needs root");
            _exit(2);
        }
    }
    // After the change of users, which would undo it.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    return 0;
}

// Waits for the start; the moment at which the attack ends. It takes nothing from whoever prepares.
static double begin_attack(const struct options *options) {
    await_start(options);
    return seconds_now() + options->seconds;
}

static int report(int correct) {
    printf("{\"rounds\": %llu, \"steps\": %u, \"errors\": %llu, \"verified\": %s}\n",
           (unsigned long long)__atomic_load_n(&shared->rounds, __ATOMIC_RELAXED), shared->steps,
           (unsigned long long)__atomic_load_n(&shared->errors, __ATOMIC_RELAXED),
           correct ? "true" : "false");
    return correct ? 0 : 1;
}

// Launches and shows what has come of it until it is killed, or leaves.
static void dying(const struct options *options, int leaves) {
    struct work work = open_work(options->kernel);
    for (int i = 0; i < options->ahead; ++i)
        launch(&work, options->steps);
    shared->launched = 1;
    double end = seconds_now() + options->fraction * options->length;
    uint32_t seen = 0;
    while (!leaves || seconds_now() < end) {
        uint32_t now = *work.count;
        __atomic_fetch_add(&shared->steps, now - seen, __ATOMIC_RELAXED);
        seen = now;
        nap(0.001);
    }
    CUcontext context;
    CHECK(cuCtxGetCurrent(&context));
    CUdevice device;
    CHECK(cuCtxGetDevice(&device));
    cuDevicePrimaryCtxReset(device);
    exit(0);
}

static int killed(const struct options *options, int leaves) {
    double end = begin_attack(options);
    for (int round = 0; seconds_now() < end; ++round) {
        shared->launched = 0;
        pid_t child = begin_process(options, round);
        if (child == 0)
            dying(options, leaves);
        while (!shared->launched && seconds_now() < end && waitpid(child, NULL, WNOHANG) == 0)
            nap(0.0005);
        double left = end - seconds_now(), life = options->fraction * options->length;
        nap(life < left ? life : left);
        if (!leaves)
            kill(child, SIGKILL);
        else
            nap(0.005);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        shared->rounds += 1;
    }
    return report(1);
}

// One round of each attack by sessions that stay.
typedef void round_of(const struct options *, struct work *, unsigned *seed);

static void load_and_unload(const char *text) {
    CUmodule module;
    CHECK(cuModuleLoadData(&module, text));
    CHECK(cuModuleUnload(module));
}

// A text of so many kernels, each worth compiling.
static const char *large_module(int kernels) {
    enum { LINES = 60, LINE_BYTES = 64 };
    static char *text;
    if (text != NULL)
        return text;
    char *at = text = malloc((size_t)(kernels + 1) * (LINES + 8) * LINE_BYTES);
    at += sprintf(at, ".version 7.0\n.target sm_75\n.address_size 64\n");
    for (int kernel = 0; kernel < kernels; ++kernel) {
        at += sprintf(at, ".visible .entry k%d(.param .u64 p)\n{\n.reg .b32 %%r<8>;\n", kernel);
        for (int line = 0; line < LINES; ++line)
            at += sprintf(at, "mad.lo.u32 %%r%d, %%r%d, %d, %d;\n", line % 8, (line + 1) % 8,
                          line + 3, kernel);
        at += sprintf(at, "ret;\n}\n");
    }
    return text;
}

static void storm_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)seed;
    if (options->launch)
        launch(work, options->steps);
    else
        CHECK(cuMemsetD8Async(work->state, 1, 1, NULL));
    load_and_unload(options->launch ? large_module(options->kernels) : adversary_ptx);
}

// Kernels that do nothing, by the thousand: what they take is their launch.
static void graph_round(const struct options *options, struct work *work, unsigned *seed) {
    enum { GRAPHS = 3 };
    static CUgraphExec graph;
    static CUstream stream;
    static CUevent done[GRAPHS];
    (void)seed;
    if (graph == NULL) {
        CUgraph captured;
        uint32_t steps = 0;
        void *arguments[] = {&work->state, &steps, &work->finished};
        CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        for (int i = 0; i < options->kernels; ++i)
            CHECK(cuLaunchKernel(work->kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        CHECK(cuStreamEndCapture(stream, &captured));
        CHECK(cuGraphInstantiateWithFlags(&graph, captured, 0));
        for (int i = 0; i < GRAPHS; ++i)
            CHECK(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
    }
    static int next;
    CHECK(cuEventSynchronize(done[next]));
    CHECK(cuGraphLaunch(graph, stream));
    CHECK(cuEventRecord(done[next], stream));
    next = (next + 1) % GRAPHS;
}

static void tiny_round(const struct options *options, struct work *work, unsigned *seed) {
    enum { PART = 4 << 20 };
    static CUdeviceptr memory;
    if (options->parts > 0 && memory == 0)
        CHECK(cuMemAlloc(&memory, (size_t)options->parts * PART));
    for (int i = 0; i < options->parts; ++i)
        launch_on(work, memory + (size_t)i * PART, options->steps);
    launch(work, options->steps);
    CHECK(cuCtxSynchronize());
    nap(options->pause > 0.0 ? options->pause : 0.001 + 0.002 * rand_r(seed) / RAND_MAX);
}

static void modules_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)work, (void)seed;
    load_and_unload(large_module(options->kernels));
}

// What is answered outside of turns.
static void calls_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)seed;
    size_t free, total;
    CUdeviceptr memory;
    if (options->launch)
        launch(work, options->steps);
    CHECK(cuMemGetInfo(&free, &total));
    CHECK(cuMemAlloc(&memory, 4096));
    CHECK(cuMemFree(memory));
}

static void fills_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)work, (void)seed;
    static CUdeviceptr memory;
    if (memory == 0)
        CHECK(cuMemAlloc(&memory, options->rows * options->pitch + 2));
    CHECK(cuMemsetD2D8(memory, options->pitch, 7, 1, options->rows));
    CHECK(cuCtxSynchronize());
    if (options->pitch > 1) {
        CHECK(cuMemFree(memory));
        memory = 0;
    }
}

static void copies_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)work, (void)seed;
    static CUdeviceptr memory;
    if (memory == 0)
        CHECK(cuMemAlloc(&memory, options->rows * options->pitch + 2));
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory, .srcPitch = options->pitch,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory + 1, .dstPitch = options->pitch,
        .WidthInBytes = 1, .Height = options->rows,
    };
    CHECK(cuMemcpy2DUnaligned(&copy));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree(memory));
    memory = 0;
}

// To the device and back, all of it.
static void copy_both_ways(const struct options *options, void *host) {
    static CUdeviceptr memory;
    if (memory == 0)
        CHECK(cuMemAlloc(&memory, options->rows));
    CHECK(cuMemcpyHtoD(memory, host, options->rows));
    CHECK(cuMemcpyDtoH(host, memory, options->rows));
}

// Staging is the worker's processor time and the device's or nobody's.
static void pageable_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)work, (void)seed;
    static void *host;
    if (host == NULL) {
        host = malloc(options->rows);
        if (host == NULL)
            exit(2);
        memset(host, 1, options->rows);
    }
    copy_both_ways(options, host);
}

// Nothing is staged: the worker alone copies.
static void pinned_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)work, (void)seed;
    static void *host;
    if (host == NULL) {
        CHECK(cuMemHostAlloc(&host, options->rows, 0));
        memset(host, 1, options->rows);
    }
    copy_both_ways(options, host);
}

static void memory_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)work, (void)seed;
    static unsigned char *here, *there;
    if (here == NULL) {
        here = malloc(options->rows);
        there = malloc(options->rows);
        if (here == NULL || there == NULL)
            exit(2);
        memset(here, 1, options->rows);
    }
    memcpy(there, here, options->rows);
    memcpy(here, there, options->rows);
}

// Short kernels teach what they take; then a queue of them turns long all at once.
static void grow_round(const struct options *options, struct work *work, unsigned *seed) {
    (void)seed;
    static CUfunction varying;
    if (varying == NULL)
        CHECK(cuModuleGetFunction(&varying, work->module, "varying"));
    volatile uint32_t *steps = work->count + 8;
    CUdeviceptr state = work->state, finished = work->finished, where = work->finished + 32;
    void *arguments[] = {&state, &where, &finished};
    *steps = 1;
    for (int i = 0; i < options->ahead; ++i)
        CHECK(cuLaunchKernel(varying, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
    CHECK(cuCtxSynchronize());
    for (int i = 0; i < options->ahead; ++i)
        CHECK(cuLaunchKernel(varying, 1, 1, 1, ELEMENTS, 1, 1, 0, NULL, arguments, NULL));
    *steps = options->steps;
    CHECK(cuCtxSynchronize());
}

// Sessions that each repeat a round until the end; one that fails begins anew.
static int sessions(const struct options *options, round_of *round) {
    double end = begin_attack(options);
    pid_t children[SESSIONS_MAX] = {0};
    while (seconds_now() < end) {
        for (int i = 0; i < options->sessions; ++i) {
            if (children[i] != 0) {
                if (waitpid(children[i], NULL, WNOHANG) == 0)
                    continue;
                shared->errors += 1;
            }
            children[i] = begin_process(options, i);
            if (children[i] != 0)
                continue;
            freopen("/dev/null", "w", stderr);
            struct work work = {0};
            if (round != memory_round)
                work = open_work(options->kernel);
            shared->launched = 1;
            for (unsigned seed = (unsigned)i;;) {
                round(options, &work, &seed);
                __atomic_fetch_add(&shared->rounds, 1, __ATOMIC_RELAXED);
            }
        }
        nap(0.01);
    }
    for (int i = 0; i < options->sessions; ++i) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    return report(shared->launched);
}

static int attaches(const struct options *options) {
    double end = begin_attack(options), begin = end - options->seconds;
    for (long started = 0; seconds_now() < end; ++started) {
        nap(begin + (double)started / options->rate - seconds_now());
        if (begin_process(options, (int)started) == 0) {
            freopen("/dev/null", "w", stderr);
            CUdevice device;
            open_device(&device);
            __atomic_fetch_add(&shared->rounds, 1, __ATOMIC_RELAXED);
            _exit(0);
        }
        // Not more at once than a careful attacker would have.
        for (int status, alive = 1; alive && started >= options->sessions;) {
            alive = waitpid(-1, &status, WNOHANG) == 0;
            shared->errors += !alive && status != 0;
            if (alive)
                nap(0.0005);
        }
    }
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    while (wait(NULL) > 0) {
    }
    return report(shared->rounds > 0);
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    // Before there is any other process or thread, so that all have it.
    if (options.nice != 0 && setpriority(PRIO_PROCESS, 0, options.nice) != 0) {
        perror("adversary: --nice");
        return 2;
    }
    if (options.everywhere) {
        cpu_set_t all;
        memset(&all, 0xff, sizeof all);
        if (sched_setaffinity(0, sizeof all, &all) != 0) {
            perror("adversary: --everywhere");
            return 2;
        }
    }
    // A group of its own, so that an attack ends without ending who measures it.
    setpgid(0, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    if (strcmp(options.what, "calibrate") == 0)
        return calibrate(&options);
    if (strcmp(options.what, "honest") == 0)
        return honest(&options);
    if (strcmp(options.what, "kill") == 0)
        return killed(&options, 0);
    if (strcmp(options.what, "leave") == 0)
        return killed(&options, 1);
    if (strcmp(options.what, "attaches") == 0)
        return attaches(&options);
    static const struct {
        const char *what;
        round_of *round;
    } rounds[] = {{"storm", storm_round},     {"tiny", tiny_round}, {"fills", fills_round},
                  {"modules", modules_round}, {"grow", grow_round},
                  {"graph", graph_round},     {"copies", copies_round},
                  {"pageable", pageable_round}, {"pinned", pinned_round},
                  {"memory", memory_round},     {"calls", calls_round}};
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; ++i)
        if (strcmp(options.what, rounds[i].what) == 0)
            return sessions(&options, rounds[i].round);
    fprintf(stderr, "adversary: there is no attack '%s'\n", options.what);
    return 2;
}
