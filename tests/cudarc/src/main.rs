//! A program over cudarc: compiles CUDA C++ with NVRTC at run time and checks what it computes.

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::compile_ptx;

const SOURCE: &str = r#"
extern "C" __global__ void sin_kernel(float *out, const float *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = sinf(in[i]);
}

extern "C" __global__ void collatz(const unsigned long long *start, unsigned int *steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned long long value = start[i];
    unsigned int count = 0;
    while (value != 1) {
        value = value % 2 == 0 ? value / 2 : 3 * value + 1;
        ++count;
    }
    steps[i] = count;
}

extern "C" __global__ void dot(const double *a, const double *b, double *sum, int n) {
    extern __shared__ double partial[];
    double mine = 0.0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += a[i] * b[i];
    partial[threadIdx.x] = mine;
    __syncthreads();
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width)
            partial[threadIdx.x] += partial[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        atomicAdd(sum, partial[0]);
}
"#;

fn collatz(mut value: u64) -> u32 {
    let mut count = 0;
    while value != 1 {
        value = if value % 2 == 0 { value / 2 } else { 3 * value + 1 };
        count += 1;
    }
    count
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = CudaContext::new(0)?;
    println!("{}", context.name()?);
    let stream = context.new_stream()?;
    let module = context.load_module(compile_ptx(SOURCE)?)?;

    let n = 3000_i32;
    let input: Vec<f32> = (0..n).map(|i| i as f32 * 0.01 - 7.0).collect();
    let device_input = stream.clone_htod(&input)?;
    let mut output = stream.alloc_zeros::<f32>(input.len())?;
    let kernel = module.load_function("sin_kernel")?;
    let config = LaunchConfig::for_num_elems(n as u32);
    unsafe {
        stream.launch_builder(&kernel).arg(&mut output).arg(&device_input).arg(&n).launch(config)
    }?;
    for (got, x) in stream.clone_dtoh(&output)?.iter().zip(&input) {
        assert!((got - x.sin()).abs() < 2e-6, "sin({x}) is {got}");
    }

    let starts: Vec<u64> = (1..=n as u64).collect();
    let device_starts = stream.clone_htod(&starts)?;
    let mut steps = stream.alloc_zeros::<u32>(starts.len())?;
    let kernel = module.load_function("collatz")?;
    unsafe {
        stream.launch_builder(&kernel).arg(&device_starts).arg(&mut steps).arg(&n).launch(config)
    }?;
    for (got, start) in stream.clone_dtoh(&steps)?.iter().zip(&starts) {
        assert_eq!(*got, collatz(*start), "collatz({start})");
    }

    let a: Vec<f64> = (0..n).map(f64::from).collect();
    let device_a = stream.clone_htod(&a)?;
    let mut sum = stream.alloc_zeros::<f64>(1)?;
    let kernel = module.load_function("dot")?;
    let config =
        LaunchConfig { grid_dim: (4, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes: 128 * 8 };
    unsafe {
        stream
            .launch_builder(&kernel)
            .arg(&device_a)
            .arg(&device_a)
            .arg(&mut sum)
            .arg(&n)
            .launch(config)
    }?;
    let expected: f64 = a.iter().map(|x| x * x).sum();
    assert_eq!(stream.clone_dtoh(&sum)?, [expected]);

    let begin = stream.record_event(None)?;
    let other = context.new_stream()?;
    other.wait(&begin)?;
    other.synchronize()?;
    println!("cudarc PASSED");
    Ok(())
}
