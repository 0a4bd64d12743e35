//! Whether a task is what its kernel, the devices and its accelerator take. Pure.

use weft_client::Client;
use weft_tasks::protocol::{ARGUMENTS_MAX, Argument, RefusalCode, Submission};
use weft_wire::Status;

use super::module::{Kernel, Module};
use crate::config::ByteSize;

/// Buffers begin at multiples of this in a device's memory, in bytes.
const ALIGNMENT: u64 = 512;

/// Bytes of a device address.
const POINTER_BYTES: usize = 8;

/// What every device of the pool takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

impl Limits {
    /// Of one device.
    pub(super) fn of(client: &Client) -> Result<Self, Status> {
        // `CUdevice_attribute` numbers.
        let limit =
            |number| Ok(u32::try_from(client.device_attribute(number, 0)?).unwrap_or(u32::MAX));
        Ok(Self {
            threads: limit(1)?,
            block: [limit(2)?, limit(3)?, limit(4)?],
            grid: [limit(5)?, limit(6)?, limit(7)?],
            shared_bytes: limit(8)?,
        })
    }

    /// What both take.
    pub(super) fn and(self, other: Self) -> Self {
        let least = |a: [u32; 3], b: [u32; 3]| [0, 1, 2].map(|at| a[at].min(b[at]));
        Self {
            grid: least(self.grid, other.grid),
            block: least(self.block, other.block),
            threads: self.threads.min(other.threads),
            shared_bytes: self.shared_bytes.min(other.shared_bytes),
        }
    }
}

/// A buffer of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Buffer {
    /// Where its address goes in the parameter block, in bytes.
    pub(super) parameter: usize,
    /// Where it lies in the task's device memory, in bytes.
    pub(super) place: u64,
    /// How long it is.
    pub(super) bytes: usize,
    /// Where its contents lie in the task's memory file.
    pub(super) input: Option<usize>,
    /// Where its contents go in the task's memory file.
    pub(super) output: Option<usize>,
}

/// A task that may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// The parameter block, with zeros for addresses.
    pub(super) params: Vec<u8>,
    pub(super) buffers: Vec<Buffer>,
    /// Device memory of all buffers, in bytes.
    pub(super) device_bytes: u64,
    /// Thread blocks.
    pub(super) blocks: u64,
}

/// Why a task may not run.
pub(super) type Refusal = (RefusalCode, String);

/// The kernel of that name, if it can be a task.
pub(super) fn kernel<'a>(module: &'a Module, name: &str) -> Result<&'a Kernel, Refusal> {
    let kernel = named(module, name)?;
    match kernel.stateful() {
        Some(why) => Err((RefusalCode::Kernel, why)),
        None => Ok(kernel),
    }
}

fn named<'a>(module: &'a Module, name: &str) -> Result<&'a Kernel, Refusal> {
    module.kernels.get(name).ok_or_else(|| {
        let mut names: Vec<&str> = module.kernels.keys().map(String::as_str).take(16).collect();
        if module.kernels.len() > names.len() {
            names.push("…");
        }
        let names = names.join(", ");
        let shown: String = name.chars().take(128).collect();
        (RefusalCode::Kernel, format!("the module has no kernel `{shown}`; it has {names}"))
    })
}

/// Looks at a task whose memory file has `file_bytes`, of an accelerator with `quota` bytes of
/// device memory.
pub(super) fn validate(
    kernel: &Kernel,
    task: &Submission,
    file_bytes: u64,
    limits: &Limits,
    quota: u64,
) -> Result<Plan, Refusal> {
    check_shape(kernel, task, limits)?;
    let (given, taken) = (task.arguments.len(), kernel.parameters.len());
    if given != taken || given > ARGUMENTS_MAX {
        return Err((
            RefusalCode::Arguments,
            format!("kernel `{}` takes {taken} arguments, and {given} are given", kernel.name),
        ));
    }
    let mut plan = Plan {
        params: vec![0; kernel.param_bytes],
        buffers: Vec::new(),
        device_bytes: 0,
        blocks: task.grid.iter().fold(1, |all, size| all.saturating_mul(u64::from(*size))),
    };
    for (place, argument) in task.arguments.iter().enumerate() {
        add_argument(&mut plan, kernel, place, argument, file_bytes)?;
    }
    if plan.device_bytes > quota {
        return Err((
            RefusalCode::TooLarge,
            format!(
                "the task's buffers take {} of device memory, and the accelerator has {} on each \
                 device; make them smaller, or have the accelerator given more (`weft set --memory`)",
                ByteSize(plan.device_bytes),
                ByteSize(quota)
            ),
        ));
    }
    Ok(plan)
}

fn check_shape(kernel: &Kernel, task: &Submission, limits: &Limits) -> Result<(), Refusal> {
    let Submission { grid, block, shared_bytes, .. } = *task;
    let wrong = |message: String| Err((RefusalCode::Shape, message));
    let fits = |size: [u32; 3], most: [u32; 3]| {
        size.iter().zip(most).all(|(size, most)| (1..=most).contains(size))
    };
    if !fits(grid, limits.grid) {
        let most = limits.grid;
        return wrong(format!("a grid of {grid:?} is out of range; 1 to {most:?} thread blocks"));
    }
    if !fits(block, limits.block) {
        let most = limits.block;
        return wrong(format!("a block of {block:?} is out of range; 1 to {most:?} threads"));
    }
    let threads = block.iter().fold(1u64, |all, size| all.saturating_mul(u64::from(*size)));
    let most = limits.threads.min(kernel.threads_max);
    if threads > u64::from(most) {
        let name = &kernel.name;
        return wrong(format!(
            "a block of {block:?} has {threads} threads, and kernel `{name}` takes {most} at most"
        ));
    }
    if let Some(required) = kernel.required_block.filter(|required| *required != block) {
        let name = &kernel.name;
        return wrong(format!("kernel `{name}` must be launched with a block of {required:?}"));
    }
    let most = limits.shared_bytes.saturating_sub(kernel.shared_bytes);
    if shared_bytes > most {
        return wrong(format!(
            "{shared_bytes} bytes of dynamic shared memory are out of range; kernel `{}` may have \
             {most}",
            kernel.name
        ));
    }
    Ok(())
}

fn add_argument(
    plan: &mut Plan,
    kernel: &Kernel,
    place: usize,
    argument: &Argument,
    file_bytes: u64,
) -> Result<(), Refusal> {
    let parameter = kernel.parameters[place];
    let wrong = |message: String| {
        let message = format!("argument {place} of kernel `{}` {message}", kernel.name);
        Err((RefusalCode::Arguments, message))
    };
    match argument {
        Argument::Scalar(bytes) => {
            if bytes.len() != parameter.bytes {
                let (given, taken) = (bytes.len(), parameter.bytes);
                return wrong(format!("has {taken} bytes, and {given} are given"));
            }
            let end = parameter.offset + parameter.bytes;
            let Some(target) = plan.params.get_mut(parameter.offset..end) else {
                return wrong("lies outside of its parameters".to_owned());
            };
            target.copy_from_slice(bytes);
        }
        Argument::Buffer { bytes, input, output } => {
            if parameter.bytes != POINTER_BYTES {
                let taken = parameter.bytes;
                return wrong(format!("has {taken} bytes and is no pointer: a buffer is given"));
            }
            let inside = |at: Option<u64>| {
                at.is_none_or(|at| at.checked_add(*bytes).is_some_and(|end| end <= file_bytes))
            };
            if !inside(*input) || !inside(*output) {
                return wrong("is a buffer outside of the memory that came along".to_owned());
            }
            let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            plan.buffers.push(Buffer {
                parameter: parameter.offset,
                place: plan.device_bytes,
                bytes: index(*bytes),
                input: input.map(index),
                output: output.map(index),
            });
            let room = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
            plan.device_bytes = plan.device_bytes.saturating_add(room);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weft_tasks::protocol::Request;

    use super::super::module::{BlockTimes, Parameter};
    use super::*;

    const QUOTA: u64 = 1 << 20;

    /// A kernel of two pointers and two numbers.
    fn kernel() -> Kernel {
        let sizes = [(0, 8), (8, 8), (16, 4), (20, 4)];
        Kernel {
            name: "saxpy".to_owned(),
            parameters: sizes.map(|(offset, bytes)| Parameter { offset, bytes }).into(),
            param_bytes: 24,
            threads_max: 1024,
            shared_bytes: 0,
            required_block: None,
            piece: Err(String::new()),
            writes: None,
            times: BlockTimes::default(),
        }
    }

    /// What is accepted lies within the memory that came along, the parameters and the quota.
    fn judge(said: &[u8]) -> Option<Result<Plan, Refusal>> {
        let Ok(Request::Submit(task)) = serde_json::from_slice(said) else { return None };
        let (kernel, file_bytes) = (kernel(), task.memory_bytes);
        let limits = Limits {
            grid: [1 << 20, 65_535, 65_535],
            block: [1024, 1024, 64],
            threads: 1024,
            shared_bytes: 48 << 10,
        };
        let judged = validate(&kernel, &task, file_bytes, &limits, QUOTA);
        if let Ok(plan) = &judged {
            assert!(plan.device_bytes <= QUOTA && plan.params.len() == kernel.param_bytes);
            assert!(plan.blocks >= 1, "{plan:?}");
            for buffer in &plan.buffers {
                assert!(buffer.parameter + POINTER_BYTES <= kernel.param_bytes, "{buffer:?}");
                let ends = [buffer.input, buffer.output].into_iter().flatten();
                let mut ends = ends.map(|at| (at + buffer.bytes) as u64);
                assert!(ends.all(|end| end <= file_bytes), "{buffer:?}");
                assert!(buffer.place + buffer.bytes as u64 <= plan.device_bytes, "{buffer:?}");
            }
        }
        Some(judged)
    }

    /// The corpus of the fuzz target `task_messages`, and each of its messages but for a bit.
    #[test]
    fn whatever_a_tenant_submits_stays_within_its_bounds() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/task_messages");
        let (mut accepted, mut refused) = (0, 0);
        for entry in std::fs::read_dir(corpus).unwrap() {
            let said = std::fs::read(entry.unwrap().path()).unwrap();
            for bit in 0..8 * said.len() {
                let mut wrong = said.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                match judge(&wrong) {
                    Some(Ok(_)) => accepted += 1,
                    Some(Err(_)) => refused += 1,
                    None => {}
                }
            }
        }
        assert!(accepted > 100 && refused > 10, "{accepted} accepted, {refused} refused");
        let large = u64::MAX - 255;
        for (bytes, input) in [(large, 0), (4096, large), (8193, 0), (4096, 4097)] {
            let said = format!(
                r#"{{"op":"submit","task":1,"module":1,"kernel":"saxpy","grid":[1,1,1],
                "block":[1,1,1],"shared_bytes":0,"memory_bytes":8192,"estimate_ns":0,"arguments":[
                {{"buffer":{{"bytes":16}}}},{{"buffer":{{"bytes":{bytes},"input":{input}}}}},
                {{"scalar":[0,0,0,0]}},{{"scalar":[0,0,0,0]}}]}}"#
            );
            let judged = judge(said.as_bytes()).unwrap();
            assert!(matches!(judged, Err((RefusalCode::Arguments, _))), "{judged:?}");
        }
    }
}
