// A kernel that is its own witness: it works until the device's clock says that as much has passed
// as the plan asks for, and enters into its book what that clock said at its beginning and at its
// end. Its time is data, so two launches that look alike to whoever launches them differ.
//
// The book: launches, the sum of end − begin in ns, and that sum of the first `SAMPLES` launches.
enum { SAMPLES = 5 };

static __device__ unsigned long long now() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

extern "C" __global__ void stamp(const unsigned int *plan_us, unsigned int entries,
                                 unsigned long long *book) {
    unsigned long long begin = now(), launch = book[0];
    unsigned long long wanted = 1000ull * plan_us[launch % entries], end;
    do
        end = now();
    while (end - begin < wanted);
    book[0] = launch + 1;
    book[1] += end - begin;
    if (launch < SAMPLES)
        book[2] += end - begin;
}
