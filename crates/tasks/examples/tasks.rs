//! Saxpy and a matrix product on a virtual accelerator, synchronous and as futures, with the
//! results checked: `cargo run -p weft-tasks --example tasks -- ACCELERATOR`.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]
#![expect(clippy::cast_precision_loss, reason = "small whole numbers")]

use std::error::Error;

use weft_tasks::{Accelerator, Module, Pending, Task, TaskError};

const KERNELS: &[u8] = include_bytes!("../../../examples/tasks/kernels.ptx");

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: tasks ACCELERATOR")?;
    let accelerator = Accelerator::open(&name)?;
    let module = accelerator.load(KERNELS)?;

    // Synchronous: submit, wait, read.
    let (x, y): (Vec<f32>, Vec<f32>) = (0..1000u16).map(|i| (f32::from(i), 1.0)).unzip();
    let done = accelerator.run(&saxpy(&module, 2.0, &x, &y))?;
    let right = done.output::<f32>(0).iter().zip(&x).all(|(got, x)| *got == 2.0 * x + 1.0);
    check(right, "saxpy")?;
    println!("saxpy: {} ns on {}", done.used_ns(), done.device());

    // Futures: all are submitted before the first one is waited for.
    let n = 48u32;
    let identity: Vec<f32> = (0..n * n).map(|i| f32::from(u8::from(i / n == i % n))).collect();
    let submit = |round: u32| {
        let a: Vec<f32> = (0..n * n).map(|i| ((i * 7 + round) % 13) as f32).collect();
        Ok((accelerator.submit(&matmul(&module, &a, &identity, n))?, a))
    };
    let pending: Vec<(Pending, Vec<f32>)> = (0..8).map(submit).collect::<Result<_, TaskError>>()?;
    for (pending, a) in pending {
        check(pending.wait()?.output::<f32>(0) == a, "matmul")?;
    }
    println!("matmul: 8 products by the identity");

    // What cannot run is refused before it does.
    let wrong = Task::new(&module, "sakspy");
    match accelerator.submit(&wrong) {
        Err(TaskError::Refused { message, .. }) => println!("refused: {message}"),
        _ => return Err("an unknown kernel was not refused".into()),
    }
    println!("ok");
    Ok(())
}

fn saxpy<'a>(module: &Module, a: f32, x: &[f32], y: &[f32]) -> Task<'a> {
    let n = u32::try_from(x.len()).unwrap_or(u32::MAX);
    let task = Task::new(module, "saxpy").grid([n.div_ceil(256), 1, 1]).block([256, 1, 1]);
    task.in_out(y).input(x).scalar(a).scalar(n)
}

fn matmul<'a>(module: &Module, a: &[f32], b: &[f32], n: u32) -> Task<'a> {
    let blocks = n.div_ceil(16);
    let task = Task::new(module, "matmul").grid([blocks, blocks, 1]).block([16, 16, 1]);
    task.output::<f32>(a.len()).input(a).input(b).scalar(n)
}

fn check(right: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if right { Ok(()) } else { Err(format!("{what} computed something else").into()) }
}
