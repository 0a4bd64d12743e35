//! Running a task in a session: buffers there, the kernel or pieces of it, buffers back.

use std::collections::VecDeque;
use std::time::Instant;

use weft_client::{Event, Function, Launch, Stream};
use weft_ptx::slice::{Piece, PieceKernel};
use weft_ring::{Loss, MapError};
use weft_wire::Status;

use super::device::Attached;
use super::messages::Run;
use super::task::{Progress, Task};
use super::{Runner, lock};

/// Bytes that are copied at once between a tenant's memory and a session's.
const CHUNK_BYTES: usize = 4 << 20;

/// Thread blocks of the first piece of a kernel that nothing is known of.
const FIRST_BLOCKS: u32 = 16;

/// A piece is at most so many times as long as the one before.
const GROWTH: u32 = 8;

/// Pieces in flight: while one runs the next waits, so that the device does not.
const IN_FLIGHT: usize = 2;

/// How a run ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The kernel is done; what its buffers hold.
    Done { output: Vec<u8>, used_ns: u64 },
    /// It was told to stop.
    Stopped { progress: Progress, used_ns: u64 },
}

/// Why a run broke off.
#[derive(Debug)]
pub(super) enum Broken {
    /// The session is over, in words. It may be the task's doing.
    Session(String),
    /// The node took the session away, in words: for another task's sake, or with its device.
    Withdrawn(String),
    /// The task's own error.
    Task {
        status: Status,
        /// The session can do nothing more.
        poisoned: bool,
        log: String,
    },
}

/// Runs a task from where it stopped; by pieces if its kernel takes longer than that of the run.
pub(super) fn execute(
    runner: &Runner,
    attached: &Attached,
    task: &Task,
    (run, whole_ns_max): (Run, u64),
) -> Result<Ended, Broken> {
    let execution = Execution { runner, attached, task, run, whole_ns_max };
    execution.go().map_err(|status| execution.broken(status))
}

/// Writes a task's outputs to its memory file.
pub(super) fn hand_over(task: &Task, output: &[u8]) -> Result<(), MapError> {
    let Some(memory) = &task.memory else { return Ok(()) };
    for buffer in &task.plan.buffers {
        let place = usize::try_from(buffer.place).unwrap_or(usize::MAX);
        let bytes = output.get(place..).and_then(|rest| rest.get(..buffer.bytes));
        if let (Some(at), Some(bytes)) = (buffer.output, bytes)
            && !bytes.is_empty()
        {
            memory.span(at, bytes.len())?.write_from(bytes)?;
        }
    }
    Ok(())
}

struct Execution<'a> {
    runner: &'a Runner,
    attached: &'a Attached,
    task: &'a Task,
    run: Run,
    whole_ns_max: u64,
}

/// An error, with what a compiler says of it.
struct Trouble {
    status: Status,
    log: String,
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self { status, log: String::new() }
    }
}

impl From<weft_client::LoadFailure> for Trouble {
    fn from(failure: weft_client::LoadFailure) -> Self {
        Self { status: failure.status, log: failure.log }
    }
}

impl Execution<'_> {
    fn broken(&self, trouble: Trouble) -> Broken {
        let Trouble { status, log } = trouble;
        match self.attached.client.loss() {
            Some(loss @ (Loss::DeviceWithdrawn | Loss::DeviceFailed)) => {
                Broken::Withdrawn(format!("{loss:?}"))
            }
            Some(loss @ (Loss::Worker | Loss::NodeStopped | Loss::VgpuRemoved)) => {
                Broken::Session(format!("{loss:?}"))
            }
            None if status == Status::DEVICE_UNAVAILABLE => {
                Broken::Session("its worker is gone".to_owned())
            }
            None => Broken::Task { status, poisoned: status.is_sticky(), log },
        }
    }

    fn go(&self) -> Result<Ended, Trouble> {
        let client = &self.attached.client;
        client.context_set_current(self.attached.context)?;
        self.attached.modules.sweep(client, |number| self.runner.has_module(number));
        let module = self.attached.modules.find(client, &self.task.module)?;
        let region = self.region()?;
        let first = self.fill(region)?;
        let params = self.params(region);
        let (begin, end) = (client.event_create(0)?, client.event_create(0)?);
        client.event_record(begin, Stream::NULL)?;
        let next = match self.piece(first) {
            Some(piece) => {
                let function = client.module_function(module, &piece.name)?;
                self.pieces(function, piece, &params, first)?
            }
            None => {
                let function = client.module_function(module, &self.task.kernel)?;
                self.whole(function, &params)?
            }
        };
        client.event_record(end, Stream::NULL)?;
        client.stream_synchronize(Stream::NULL)?;
        let used_ns = nanoseconds(client.event_elapsed(begin, end)?);
        client.event_destroy(begin)?;
        client.event_destroy(end)?;
        let memory = self.read(region)?;
        if next < self.task.plan.blocks {
            return Ok(Ended::Stopped { progress: Progress { next, memory }, used_ns });
        }
        Ok(Ended::Done { output: memory, used_ns })
    }

    /// Device memory for the task's buffers.
    fn region(&self) -> Result<u64, Status> {
        let client = &self.attached.client;
        let bytes = self.task.plan.device_bytes;
        let mut region = lock(&self.attached.region);
        if region.1 < bytes {
            let (old, _) = std::mem::take(&mut *region);
            client.mem_free(old)?;
            *region = (client.mem_alloc(bytes)?, bytes);
        }
        Ok(region.0)
    }

    /// Brings the buffers there; the first thread block to run.
    fn fill(&self, region: u64) -> Result<u64, Status> {
        let client = &self.attached.client;
        let progress = self.task.state().progress.take();
        if let Some(progress) = progress {
            if !progress.memory.is_empty() {
                client.copy_htod(region, &progress.memory)?;
            }
            return Ok(progress.next);
        }
        let mut chunk = Vec::new();
        for buffer in self.task.plan.buffers.iter().filter(|buffer| buffer.bytes > 0) {
            let target = region + buffer.place;
            let (Some(input), Some(memory)) = (buffer.input, &self.task.memory) else {
                let words = (buffer.bytes as u64).div_ceil(4);
                client.fill_linear(target, 4, 0, words, Stream::NULL)?;
                continue;
            };
            for at in (0..buffer.bytes).step_by(CHUNK_BYTES) {
                chunk.resize(CHUNK_BYTES.min(buffer.bytes - at), 0);
                let span = memory.span(input + at, chunk.len());
                span.and_then(|span| span.read_into(&mut chunk))
                    .map_err(|_| Status::INVALID_VALUE)?;
                client.copy_htod(target + at as u64, &chunk)?;
            }
        }
        Ok(0)
    }

    /// The parameter block.
    fn params(&self, region: u64) -> Vec<u8> {
        let mut params = self.task.plan.params.clone();
        for buffer in &self.task.plan.buffers {
            let address = (region + buffer.place).to_le_bytes();
            if let Some(target) = params.get_mut(buffer.parameter..buffer.parameter + 8) {
                target.copy_from_slice(&address);
            }
        }
        params
    }

    fn read(&self, region: u64) -> Result<Vec<u8>, Status> {
        let bytes = usize::try_from(self.task.plan.device_bytes).unwrap_or(usize::MAX);
        let mut memory = vec![0; bytes];
        if bytes > 0 {
            self.attached.client.copy_dtoh(&mut memory, region)?;
        }
        Ok(memory)
    }

    /// The kernel's copy that runs pieces, if the task may have to stop for others, or did: what is
    /// left of a kernel can only be run by pieces. One that was never run may take any time.
    fn piece(&self, first: u64) -> Option<&PieceKernel> {
        let kernel = self.task.kernel();
        let estimate_ns = kernel.times.estimate_ns(self.run.device, self.task.plan.blocks);
        let wanted = first > 0 || !(1..=self.whole_ns_max).contains(&estimate_ns);
        kernel.piece.as_ref().ok().filter(|_| wanted)
    }

    fn launch(&self, function: Function, grid: [u32; 3], params: &[u8]) -> Result<(), Status> {
        let client = &self.attached.client;
        let target = client.function(function)?;
        let Task { block, shared_bytes, .. } = *self.task;
        let launch = Launch { grid, block, shared_bytes, cooperative: false };
        client.launch(function, &target, &launch, Stream::NULL, params)
    }

    fn whole(&self, function: Function, params: &[u8]) -> Result<u64, Status> {
        let client = &self.attached.client;
        // What was filled is not the kernel's time.
        client.stream_synchronize(Stream::NULL)?;
        let began = Instant::now();
        self.launch(function, self.task.grid, params)?;
        client.stream_synchronize(Stream::NULL)?;
        let blocks = self.task.plan.blocks;
        self.note(blocks, elapsed_ns(began));
        Ok(blocks)
    }

    /// Runs pieces from the block `first` on until all are done or the task is to stop; the first
    /// block that did not run.
    fn pieces(
        &self,
        function: Function,
        piece: &PieceKernel,
        params: &[u8],
        first: u64,
    ) -> Result<u64, Status> {
        let client = &self.attached.client;
        let events = [client.event_create(0)?, client.event_create(0)?];
        client.stream_synchronize(Stream::NULL)?;
        let mut flights: VecDeque<(Event, u32)> = VecDeque::new();
        let (mut next, mut last, mut sent) = (first, 0, 0);
        let mut since = Instant::now();
        loop {
            while next < self.task.plan.blocks && flights.len() < self.depth() {
                let in_flight: u64 = flights.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
                let begins_ns = crate::daemon::now_ns().saturating_add(self.blocks_ns(in_flight));
                let Some(left_ns) = self.task.left_ns(self.run, begins_ns) else { break };
                let left = u32::try_from(self.task.plan.blocks - next).unwrap_or(u32::MAX);
                let Some(blocks) = self.size(left_ns).blocks(last) else { break };
                let blocks = blocks.min(left);
                let part = Piece { grid: self.task.grid, first: next, blocks };
                self.launch(function, part.launch_grid(), &piece.parameters(params, &part))?;
                let event = events[sent % events.len()];
                client.event_record(event, Stream::NULL)?;
                flights.push_back((event, blocks));
                (next, last, sent) = (next + u64::from(blocks), blocks, sent + 1);
            }
            let Some((event, blocks)) = flights.pop_front() else { break };
            client.event_synchronize(event)?;
            self.note(blocks.into(), elapsed_ns(since));
            since = Instant::now();
        }
        for event in events {
            client.event_destroy(event)?;
        }
        Ok(next)
    }

    /// What so many blocks should take on this device, in ns; 0 if nothing is known.
    fn blocks_ns(&self, blocks: u64) -> u64 {
        self.task.kernel().times.estimate_ns(self.run.device, blocks)
    }

    fn note(&self, blocks: u64, took_ns: u64) {
        self.task.kernel().times.note(self.run.device, blocks, took_ns);
    }

    /// Pieces in flight: one until it is known what they take.
    fn depth(&self) -> usize {
        if self.blocks_ns(1000) == 0 { 1 } else { IN_FLIGHT }
    }

    fn size(&self, left_ns: u64) -> PieceSize {
        PieceSize {
            thousand_ns: self.blocks_ns(1000),
            slice_ns: self.runner.begin.slice_ns,
            left_ns,
        }
    }
}

/// What says how long the next piece is.
#[derive(Debug, Clone, Copy)]
struct PieceSize {
    /// What a thousand blocks take, in ns; 0 if nothing is known.
    thousand_ns: u64,
    slice_ns: u64,
    /// From the time at which the piece should begin until the run is to stop, in ns.
    left_ns: u64,
}

impl PieceSize {
    /// How many blocks the next piece has after one of `last`, or the run's first after 0: all that
    /// are in flight end within a slice, and when the run is to stop. None if no further piece
    /// does, within the last slice; a run has one block at least, or long ones would never be
    /// executed.
    fn blocks(&self, last: u32) -> Option<u32> {
        let budget_ns = (self.slice_ns / IN_FLIGHT as u64).min(self.left_ns);
        let fit = match self.thousand_ns {
            0 => FIRST_BLOCKS.into(),
            ns => u128::from(budget_ns) * 1000 / u128::from(ns),
        };
        let fit = u32::try_from(fit).unwrap_or(u32::MAX);
        let is_too_long = self.thousand_ns > self.left_ns.saturating_mul(1000);
        if is_too_long && last > 0 && self.left_ns <= self.slice_ns {
            return None;
        }
        let fit = fit.clamp(1, Piece::BLOCKS_MAX);
        Some(if last == 0 { fit } else { fit.min(last.saturating_mul(GROWTH)) })
    }
}

fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of the API's")]
fn nanoseconds(milliseconds: f32) -> u64 {
    (f64::from(milliseconds.max(0.0)) * 1e6) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Of a run with blocks of so many ns and a slice of 5 ms.
    fn blocks(block_ns: u64, left_ns: u64, last: u32) -> Option<u32> {
        PieceSize { thousand_ns: 1000 * block_ns, slice_ns: 5 * MS, left_ns }.blocks(last)
    }

    #[test]
    fn a_run_that_is_to_stop_sends_nothing_that_ends_later() {
        let half_ms = MS / 2;
        assert_eq!(blocks(half_ms, u64::MAX, 5), Some(5), "half a slice");
        assert_eq!(blocks(half_ms, 2 * MS, 5), Some(4));
        assert_eq!(blocks(half_ms, half_ms - 1, 5), None);
        assert_eq!(blocks(3 * MS, 4 * MS, 1), Some(1));
    }

    #[test]
    fn long_blocks_run_one_by_one() {
        assert_eq!(blocks(20 * MS, u64::MAX, 1), Some(1));
        assert_eq!(blocks(20 * MS, 100 * MS, 1), Some(1));
        assert_eq!(blocks(20 * MS, 3 * MS, 1), None);
        // A run that began may have come for no more than one.
        assert_eq!(blocks(20 * MS, 3 * MS, 0), Some(1));
    }

    #[test]
    fn pieces_of_an_unknown_kernel_begin_small_and_grow() {
        assert_eq!(blocks(0, MS, 0), Some(FIRST_BLOCKS));
        assert_eq!(blocks(1_000, u64::MAX, FIRST_BLOCKS), Some(FIRST_BLOCKS * GROWTH));
    }
}
