//! A task before it is submitted.

use std::borrow::Cow;
use std::sync::Arc;

use weft_ring::{Access, MemoryFile, SharedMemory};

use crate::accelerator::Module;
use crate::element::{Element, bytes_of};
use crate::error::TaskError;
use crate::protocol::{ALIGNMENT, Argument, Submission};

/// An argument with its bytes.
#[derive(Debug, Clone)]
enum Given<'a> {
    Scalar(Vec<u8>),
    Buffer { input: Option<Cow<'a, [u8]>>, bytes: usize, returns: bool },
}

/// A kernel launch with everything it needs. Arguments are given in the kernel's order.
#[derive(Debug, Clone)]
pub struct Task<'a> {
    pub(crate) module: Module,
    kernel: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    estimate_ns: u64,
    arguments: Vec<Given<'a>>,
}

impl<'a> Task<'a> {
    /// A launch of one block of one thread, without arguments.
    #[must_use]
    pub fn new(module: &Module, kernel: &str) -> Self {
        Self {
            module: module.clone(),
            kernel: kernel.to_owned(),
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            estimate_ns: 0,
            arguments: Vec::new(),
        }
    }

    /// Thread blocks in x, y, z.
    #[must_use]
    pub fn grid(self, grid: [u32; 3]) -> Self {
        Self { grid, ..self }
    }

    /// Threads per block in x, y, z.
    #[must_use]
    pub fn block(self, block: [u32; 3]) -> Self {
        Self { block, ..self }
    }

    /// Dynamic shared memory in bytes.
    #[must_use]
    pub fn shared_bytes(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// How long it should take, in ns: what the node goes by until the kernel has been measured.
    #[must_use]
    pub fn estimate_ns(self, estimate_ns: u64) -> Self {
        Self { estimate_ns, ..self }
    }

    /// A number.
    #[must_use]
    pub fn scalar<T: Element>(self, number: T) -> Self {
        self.scalar_bytes(&bytes_of(&[number]))
    }

    /// A parameter that is no pointer, as it lies in memory.
    #[must_use]
    pub fn scalar_bytes(self, bytes: &[u8]) -> Self {
        self.with(Given::Scalar(bytes.to_vec()))
    }

    /// A buffer that the kernel reads. What it writes there is lost.
    #[must_use]
    pub fn input<T: Element>(self, numbers: &[T]) -> Self {
        let bytes = bytes_of(numbers);
        let len = bytes.len();
        self.with(Given::Buffer { input: Some(bytes.into()), bytes: len, returns: false })
    }

    /// The same of bytes, which are copied when the task is submitted.
    #[must_use]
    pub fn input_bytes(self, bytes: &'a [u8]) -> Self {
        let len = bytes.len();
        self.with(Given::Buffer { input: Some(bytes.into()), bytes: len, returns: false })
    }

    /// A buffer of so many numbers that the kernel writes; zeros before.
    #[must_use]
    pub fn output<T: Element>(self, count: usize) -> Self {
        self.output_bytes(count.saturating_mul(T::BYTES))
    }

    /// The same of so many bytes.
    #[must_use]
    pub fn output_bytes(self, bytes: usize) -> Self {
        self.with(Given::Buffer { input: None, bytes, returns: true })
    }

    /// A buffer that the kernel reads and changes.
    #[must_use]
    pub fn in_out<T: Element>(self, numbers: &[T]) -> Self {
        let bytes = bytes_of(numbers);
        let len = bytes.len();
        self.with(Given::Buffer { input: Some(bytes.into()), bytes: len, returns: true })
    }

    /// The same of bytes, which are copied when the task is submitted.
    #[must_use]
    pub fn in_out_bytes(self, bytes: &'a [u8]) -> Self {
        let len = bytes.len();
        self.with(Given::Buffer { input: Some(bytes.into()), bytes: len, returns: true })
    }

    fn with(mut self, argument: Given<'a>) -> Self {
        self.arguments.push(argument);
        self
    }

    /// The message of the task numbered so, and its memory with the inputs in it.
    pub(crate) fn prepare(&self, number: u64) -> Result<Prepared, TaskError> {
        let mut end = 0u64;
        let mut place = |bytes: usize| {
            let at = end;
            end = end.saturating_add(bytes as u64).saturating_add(ALIGNMENT - 1);
            end = end / ALIGNMENT * ALIGNMENT;
            at
        };
        let mut outputs = Vec::new();
        let argument = |given: &Given<'_>| match given {
            Given::Scalar(bytes) => Argument::Scalar(bytes.clone()),
            Given::Buffer { input, bytes, returns } => {
                let input = input.as_ref().map(|_| place(*bytes));
                let output = returns.then(|| place(*bytes));
                outputs.extend(output.map(|at| (at, *bytes)));
                Argument::Buffer { bytes: *bytes as u64, input, output }
            }
        };
        let arguments: Vec<Argument> = self.arguments.iter().map(argument).collect();
        let submission = Submission {
            task: number,
            module: self.module.number(),
            kernel: self.kernel.clone(),
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            arguments,
            memory_bytes: end,
            estimate_ns: self.estimate_ns,
        };
        let memory = (end > 0).then(|| self.memory(&submission)).transpose()?;
        Ok(Prepared { submission, memory, outputs })
    }

    fn memory(&self, submission: &Submission) -> Result<Memory, TaskError> {
        let len = usize::try_from(submission.memory_bytes)
            .map_err(|_| TaskError::Memory("its size has no number".to_owned()))?;
        let file = MemoryFile::create("weft-task", len)?;
        let mapping = file.map(Access::ReadWrite)?;
        for (given, argument) in self.arguments.iter().zip(&submission.arguments) {
            if let (Given::Buffer { input: Some(bytes), .. }, Argument::Buffer { input, .. }) =
                (given, argument)
                && let Some(at) = input.filter(|_| !bytes.is_empty())
            {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                mapping.span(at, bytes.len())?.write_from(bytes)?;
            }
        }
        Ok(Memory { file, mapping })
    }
}

/// A task's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) file: MemoryFile,
    pub(crate) mapping: Arc<SharedMemory>,
}

/// A task as it is sent.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) submission: Submission,
    pub(crate) memory: Option<Memory>,
    /// Where its outputs lie: offset, bytes.
    pub(crate) outputs: Vec<(u64, usize)>,
}
