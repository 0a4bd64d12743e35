// The unit of work of a tenant that competes for the device: each launch advances every element
// of a linear congruential generator by one step, so that the host can tell from the result alone
// how many launches really ran. The paced device gives each kernel the time in its name.
__device__ void step(unsigned int *state) {
    unsigned int i = blockDim.x * blockIdx.x + threadIdx.x;
    state[i] = state[i] * 1664525u + 1013904223u;
}

extern "C" __global__ void step_21us(unsigned int *state) { step(state); }
extern "C" __global__ void step_46us(unsigned int *state) { step(state); }
extern "C" __global__ void step_51us(unsigned int *state) { step(state); }
extern "C" __global__ void step_102us(unsigned int *state) { step(state); }
extern "C" __global__ void step_133us(unsigned int *state) { step(state); }
extern "C" __global__ void step_172us(unsigned int *state) { step(state); }
extern "C" __global__ void step_207us(unsigned int *state) { step(state); }
extern "C" __global__ void step_285us(unsigned int *state) { step(state); }
extern "C" __global__ void step_377us(unsigned int *state) { step(state); }
extern "C" __global__ void step_391us(unsigned int *state) { step(state); }
extern "C" __global__ void step_803us(unsigned int *state) { step(state); }
extern "C" __global__ void step_1605us(unsigned int *state) { step(state); }
extern "C" __global__ void step_300000us(unsigned int *state) { step(state); }

// A long kernel, as long as its grid: each block advances its own element by one step and counts
// itself in memory that the host sees. The paced device gives it 100 µs per block.
extern "C" __global__ void blocks_100us(unsigned int *state, unsigned int *finished) {
    if (threadIdx.x == 0) {
        state[blockIdx.x] = state[blockIdx.x] * 1664525u + 1013904223u;
        atomicAdd_system(finished, 1);
    }
}

// For a device that takes its own time: so many steps in one launch.
extern "C" __global__ void steps(unsigned int *state, unsigned int count) {
    unsigned int i = blockDim.x * blockIdx.x + threadIdx.x;
    unsigned int x = state[i];
    for (unsigned int n = 0; n < count; ++n)
        x = x * 1664525u + 1013904223u;
    state[i] = x;
}

// The long kernel for such a device. Blocks are counted behind the last element; the host's memory
// hears of every 64th and of a launch's last one, because all blocks would wait for it otherwise.
extern "C" __global__ void blocks_steps(unsigned int *state, unsigned int *finished,
                                        unsigned int count) {
    if (threadIdx.x == 0) {
        unsigned int x = state[blockIdx.x];
        for (unsigned int n = 0; n < count; ++n)
            x = x * 1664525u + 1013904223u;
        state[blockIdx.x] = x;
        unsigned int done = atomicAdd(&state[gridDim.x], 1) + 1;
        if (done % 64 == 0 || done % gridDim.x == 0)
            atomicMax_system(finished, done);
    }
}
