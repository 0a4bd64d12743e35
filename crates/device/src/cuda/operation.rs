//! Operations in flight: each between two timing events on its queue's stream, or behind another
//! and before one. Several short ones of a queue may have one event behind all: an event with a
//! time costs the device some two microseconds (`bench/programs/completions.c`).

use std::ffi::{c_int, c_uint, c_void};

use weft_ptx::slice::{Piece, PieceKernel};

use super::CudaDevice;
use super::driver::{
    Address, Code, Copy2d, Handle, MEMORY_DEVICE, MEMORY_HOST, NOT_READY, OUT_OF_MEMORY, SUCCESS,
};
use super::rates::KernelKey;
use super::timeline::monotonic_ns;
use crate::{
    Completion, CopyShape, DeviceError, Endpoint, Fault, FaultKind, Fill, Launch, Op, OpId,
    Outcome, Place, QueueId,
};

/// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`, `CU_LAUNCH_PARAM_END`
const PARAM_BUFFER_POINTER: usize = 1;
const PARAM_BUFFER_SIZE: usize = 2;
const PARAM_END: usize = 0;

/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES`
const INVALID_VALUE: Code = 1;
const OUT_OF_RESOURCES: Code = 701;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

/// Slices that are not one behind the other are a call of the driver each, so one operation has no
/// more of them.
const SLICES_MAX: u64 = 16_384;

/// What of a launch runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    key: KernelKey,
    count: u64,
    /// Blocks that the device executes at a time.
    wave: u64,
    /// The first block of what is left.
    next: Option<u64>,
}

/// An operation that the device has and has not reported.
#[derive(Debug)]
pub(super) struct InFlight {
    id: OpId,
    queue: QueueId,
    /// Nothing if it was behind another: it began when that ended.
    begin: Option<Handle>,
    /// Nothing if its end is told with that of the next one.
    end: Option<Handle>,
    kernel: String,
    /// Of a launch: what of it runs.
    blocks: Option<Blocks>,
    /// Keeps host bytes alive that the device may still read or write.
    _op: Op,
}

/// How the end of an operation is told.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// By itself; after about `max_ns` it stops.
    Told { max_ns: Option<u64> },
    /// With that of the next one.
    Open,
}

/// The events before and behind an operation, and what of a launch runs.
type Enqueued = (Option<Handle>, Option<Handle>, Option<Blocks>);

impl CudaDevice {
    /// Puts one operation on its queue's stream. A kernel may fault before the next call returns;
    /// then its operation completes with the fault.
    pub(super) fn submit(&mut self, queue: QueueId, op: Op, end: End) -> Result<OpId, DeviceError> {
        let id = OpId(self.next);
        self.next += 1;
        let asked_ns = monotonic_ns();
        match self.enqueue(queue, &op, end) {
            Ok((begin, end, blocks)) => {
                let kernel = self.name_of(&op);
                if self.in_flight.is_empty() {
                    self.front_since_ns = asked_ns;
                }
                let flying = InFlight { id, queue, begin, end, kernel, blocks, _op: op };
                self.in_flight.push_back(flying);
            }
            Err(DeviceError::Lost(_)) if fault_kind(self.failed.get()) != FaultKind::Device => {
                let (name, code) = (self.name_of(&op), self.failed.get());
                // What is in flight is charged when it is collected.
                let alone = self.in_flight.is_empty();
                let since_ns = if alone { asked_ns } else { monotonic_ns() };
                let completion = self.faulted(id, name, code, since_ns);
                self.finished.push_back(completion);
            }
            Err(error) => return Err(error),
        }
        Ok(id)
    }

    fn enqueue(&mut self, queue: QueueId, op: &Op, end: End) -> Result<Enqueued, DeviceError> {
        self.make_current()?;
        if self.in_flight.is_empty() {
            self.timeline.refresh(&self.driver);
        }
        let max_ns = match end {
            End::Told { max_ns } => max_ns,
            End::Open => None,
        };
        let is_apart = self.in_flight.back().is_some_and(|last| last.queue != queue);
        if max_ns.is_some() || is_apart {
            self.tell_open()?;
        }
        let stream = self.stream(queue)?;
        let end = if matches!(end, End::Open) { None } else { Some(self.event()?) };
        let follows = max_ns.is_none() && self.is_working(queue);
        let begin = if follows { None } else { Some(self.event()?) };
        let started = self.between((begin, end), stream, op, max_ns);
        if started.is_err() {
            self.free_events.extend(begin.into_iter().chain(end));
        }
        Ok((begin, end, started?))
    }

    /// Whether what was started last is this queue's and has not ended.
    fn is_working(&self, queue: QueueId) -> bool {
        let last = self.in_flight.back().filter(|last| last.queue == queue);
        last.is_some_and(|last| match last.end {
            None => true,
            // SAFETY: the event was recorded in this context and is destroyed with it.
            Some(end) => unsafe { (self.driver.event_query)(end) == NOT_READY },
        })
    }

    /// Sees to it that the end of what was started last is told.
    pub(super) fn tell_open(&mut self) -> Result<(), DeviceError> {
        let Some(queue) = self.in_flight.back().filter(|last| last.end.is_none()) else {
            return Ok(());
        };
        let queue = queue.queue;
        self.make_current()?;
        let (stream, end) = (self.stream(queue)?, self.event()?);
        if let Err(error) = self.record(end, stream) {
            self.free_events.push(end);
            return Err(error);
        }
        if let Some(last) = self.in_flight.back_mut() {
            last.end = Some(end);
        }
        Ok(())
    }

    /// Puts an operation between two events, or behind or before something else.
    fn between(
        &self,
        (begin, end): (Option<Handle>, Option<Handle>),
        stream: Handle,
        op: &Op,
        max_ns: Option<u64>,
    ) -> Result<Option<Blocks>, DeviceError> {
        if let Some(begin) = begin {
            self.record(begin, stream)?;
        }
        let mut blocks = None;
        match op {
            Op::Launch(launch) => blocks = Some(self.launch(launch, stream, max_ns)?),
            Op::Copy { dst, src, shape } => self.copy(dst, src, *shape, stream)?,
            Op::Fill(fill) => self.fill(fill, stream)?,
        }
        if let Some(end) = end {
            self.record(end, stream)?;
        }
        Ok(blocks)
    }

    /// What a fault report calls the operation.
    fn name_of(&self, op: &Op) -> String {
        match op {
            Op::Launch(launch) => self
                .modules
                .get(&launch.module)
                .and_then(|module| module.kernel_name(launch.function))
                .unwrap_or("an unknown kernel")
                .to_owned(),
            Op::Copy { .. } => "copy".to_owned(),
            Op::Fill(_) => "fill".to_owned(),
        }
    }

    pub(super) fn make_current(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives as long as `self`.
        let code = unsafe { (self.driver.context_make_current)(self.context) };
        self.done("cuCtxSetCurrent", code)
    }

    fn record(&self, event: Handle, stream: Handle) -> Result<(), DeviceError> {
        // SAFETY: event and stream were created in this context and not destroyed.
        let code = unsafe { (self.driver.event_record)(event, stream) };
        self.done("cuEventRecord", code)
    }

    /// Launches all of a kernel, or the piece of it that its time limit leaves room for.
    fn launch(
        &self,
        launch: &Launch,
        stream: Handle,
        max_ns: Option<u64>,
    ) -> Result<Blocks, DeviceError> {
        let module = self.modules.get(&launch.module);
        let Some(kernel) = module.and_then(|module| module.kernel(launch.function)) else {
            return Err(DeviceError::LaunchResources("no such kernel".to_owned()));
        };
        let total = blocks_of(launch);
        let key = (launch.module, launch.function);
        let whole = |wave| {
            let mut params = launch.params.clone();
            self.launch_grid(kernel, launch.grid, launch, &mut params, stream)?;
            Ok(Blocks { key, count: total, wave, next: None })
        };
        let Some((handle, copy, wave)) = self.pieces_of(launch) else { return whole(total) };
        let left = total.saturating_sub(launch.first_block);
        let fit = max_ns.map_or(left, |max_ns| self.rates.blocks_within(key, max_ns, wave));
        let blocks = u32::try_from(fit.min(left)).unwrap_or(u32::MAX);
        let blocks = blocks.clamp(1, Piece::BLOCKS_MAX);
        if launch.first_block == 0 && u64::from(blocks) == total {
            return whole(wave);
        }
        let piece = Piece { grid: launch.grid, first: launch.first_block, blocks };
        let mut params = copy.parameters(&launch.params, &piece);
        let grid = piece.launch_grid();
        match self.launch_grid(handle, grid, launch, &mut params, stream) {
            // The piece needs a little more than the kernel.
            Err(DeviceError::LaunchResources(_)) if launch.first_block == 0 => whole(wave),
            other => {
                let end = launch.first_block + u64::from(blocks);
                let next = (end < total).then_some(end);
                other.map(|()| Blocks { key, count: blocks.into(), wave, next })
            }
        }
    }

    /// What runs pieces of a launch, and how many blocks the device executes at a time; nothing if
    /// it is not to be cut.
    pub(super) fn pieces_of(&self, launch: &Launch) -> Option<(Handle, &PieceKernel, u64)> {
        let (handle, copy) = self.modules.get(&launch.module)?.piece(launch.function)?;
        let threads = launch.block.iter().map(|n| u64::from(*n)).product();
        let shape = ((launch.module, launch.function), threads, launch.shared_bytes);
        let ask = || self.ask_wave(*handle, threads, launch.shared_bytes);
        let known = self.waves.borrow_mut().of(shape, ask);
        // A piece that has run already is to be followed by the others, whatever the driver says.
        let is_begun = launch.first_block > 0;
        let wave = known.or_else(|| is_begun.then_some(1))?;
        (is_begun || blocks_of(launch) > wave).then_some((*handle, copy, wave))
    }

    /// Nothing where the driver does not say: shared memory beyond the usual must be opted in to.
    fn ask_wave(&self, kernel: Handle, threads: u64, shared_bytes: u32) -> Option<u64> {
        let threads = c_int::try_from(threads).ok()?;
        let bytes = usize::try_from(shared_bytes).ok()?;
        let ask = || {
            let mut each: c_int = 0;
            // SAFETY: a valid place for an int and a function of a loaded module.
            let code = unsafe { (self.driver.occupancy)(&raw mut each, kernel, threads, bytes) };
            let each = u64::from(each.unsigned_abs());
            (code == SUCCESS && each > 0).then(|| self.multiprocessors.saturating_mul(each))
        };
        let opt_in = || self.opt_in(kernel, shared_bytes) == SUCCESS;
        ask().or_else(|| opt_in().then(ask).flatten())
    }

    /// Lets a kernel have so much dynamic shared memory, in bytes.
    fn opt_in(&self, kernel: Handle, shared_bytes: u32) -> Code {
        let bytes = c_int::try_from(shared_bytes).unwrap_or(c_int::MAX);
        // SAFETY: a function of a loaded module.
        unsafe { (self.driver.function_set_attribute)(kernel, MAX_DYNAMIC_SHARED_BYTES, bytes) }
    }

    /// Launches a grid. Dynamic shared memory beyond the usual 48 KiB must be opted in to, once for
    /// each kernel: the driver refuses the launch until then.
    fn launch_grid(
        &self,
        kernel: Handle,
        grid: [u32; 3],
        launch: &Launch,
        params: &mut [u8],
        stream: Handle,
    ) -> Result<(), DeviceError> {
        let mut code = self.call_launch(kernel, grid, launch, params, stream);
        if code == INVALID_VALUE
            && launch.shared_bytes > 0
            && self.opt_in(kernel, launch.shared_bytes) == SUCCESS
        {
            code = self.call_launch(kernel, grid, launch, params, stream);
        }
        match code {
            INVALID_VALUE | OUT_OF_MEMORY | OUT_OF_RESOURCES => {
                Err(DeviceError::LaunchResources(self.driver.name_of(code)))
            }
            other => self.done("cuLaunchKernel", other),
        }
    }

    fn call_launch(
        &self,
        kernel: Handle,
        [gx, gy, gz]: [u32; 3],
        launch: &Launch,
        params: &mut [u8],
        stream: Handle,
    ) -> Code {
        let mut size = params.len();
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(PARAM_BUFFER_POINTER),
            params.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(PARAM_BUFFER_SIZE),
            (&raw mut size).cast(),
            std::ptr::without_provenance_mut(PARAM_END),
        ];
        let [bx, by, bz] = launch.block;
        // SAFETY: a function of a loaded module and a live stream; `extra` names a buffer of
        // `size` bytes, which the driver copies during the call.
        unsafe {
            (self.driver.launch)(
                kernel,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                launch.shared_bytes,
                stream,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        }
    }

    fn copy(
        &self,
        dst: &Endpoint,
        src: &Endpoint,
        shape: CopyShape,
        stream: Handle,
    ) -> Result<(), DeviceError> {
        let plan = Rows::of(dst, src, shape);
        if plan.height == 1 && plan.depth == 1 {
            let (to, from) = (linear(&dst.place), linear(&src.place));
            // SAFETY: the caller checked device ranges and keeps host spans alive in `InFlight`;
            // addresses are unified on every 64-bit system.
            let code = unsafe { (self.driver.copy_linear)(to, from, length(plan.width)?, stream) };
            return self.done("cuMemcpyAsync", code);
        }
        if plan.depth > SLICES_MAX {
            let what = format!("a copy of {} slices; at most {SLICES_MAX}", plan.depth);
            return Err(DeviceError::Refused(what));
        }
        for slice in 0..plan.depth {
            let copied = self.copy_slice(dst, src, &plan, slice, stream);
            if copied.is_err() {
                // Nothing is in flight of an operation that was not started.
                // SAFETY: the stream is live.
                let _ = unsafe { (self.driver.stream_synchronize)(stream) };
                return copied;
            }
        }
        Ok(())
    }

    fn copy_slice(
        &self,
        dst: &Endpoint,
        src: &Endpoint,
        plan: &Rows,
        slice: u64,
        stream: Handle,
    ) -> Result<(), DeviceError> {
        let (src_type, src_host, src_device) = side(&src.place, slice * src.slice);
        let (dst_type, dst_host, dst_device) = side(&dst.place, slice * dst.slice);
        let width = length(plan.width)?;
        let copy = Copy2d {
            src_x_bytes: 0,
            src_y: 0,
            src_type,
            src_host: src_host.cast_const(),
            src_device,
            src_array: std::ptr::null_mut(),
            src_pitch: length(src.pitch)?.max(width),
            dst_x_bytes: 0,
            dst_y: 0,
            dst_type,
            dst_host,
            dst_device,
            dst_array: std::ptr::null_mut(),
            dst_pitch: length(dst.pitch)?.max(width),
            width_bytes: width,
            height: length(plan.height)?,
        };
        // SAFETY: the caller checked device ranges and keeps host spans alive: in `InFlight`, or
        // until `copy` has waited for the slices before one that failed.
        let code = unsafe { (self.driver.copy_2d)(&raw const copy, stream) };
        self.done("cuMemcpy2DAsync", code)
    }

    fn fill(&self, fill: &Fill, stream: Handle) -> Result<(), DeviceError> {
        let (width, height) = (length(fill.width)?, length(fill.height)?);
        let pitch = length(fill.pitch)?.max(width * usize::from(fill.element));
        let at = fill.address;
        let [low, high, _, _] = fill.value.to_le_bytes();
        let half = u16::from_le_bytes([low, high]);
        let one_row = height == 1;
        let code = match fill.element {
            // SAFETY: the caller checked the range; the stream is live.
            1 if one_row => unsafe { (self.driver.fill_linear)(at, low, width, stream) },
            // SAFETY: as above.
            1 => unsafe { (self.driver.fill_8)(at, pitch, low, width, height, stream) },
            // SAFETY: as above.
            2 if one_row => unsafe { (self.driver.fill_linear_16)(at, half, width, stream) },
            // SAFETY: as above.
            2 => unsafe { (self.driver.fill_16)(at, pitch, half, width, height, stream) },
            // SAFETY: as above.
            _ if one_row => unsafe { (self.driver.fill_linear_32)(at, fill.value, width, stream) },
            // SAFETY: as above.
            _ => unsafe { (self.driver.fill_32)(at, pitch, fill.value, width, height, stream) },
        };
        self.done("cuMemsetAsync", code)
    }

    /// Moves operations that have ended to `finished`, in the order they were started.
    pub(super) fn collect(&mut self) {
        while let Some(end) = self.front_end() {
            let code = match end {
                // SAFETY: the event was recorded in this context and is destroyed with it.
                Some(end) => unsafe { (self.driver.event_query)(end) },
                // The driver records nothing any more.
                None => self.failed.get(),
            };
            if code == NOT_READY || (end.is_none() && !is_final(code)) {
                return;
            }
            let since_ns = self.front_since_ns.max(self.last_end_ns);
            let together = self.in_flight.iter().take_while(|flying| flying.end != end).count();
            let together = (together + 1).min(self.in_flight.len());
            let ended: Vec<InFlight> = self.in_flight.drain(..together).collect();
            self.front_since_ns = monotonic_ns();
            match end.filter(|_| code == SUCCESS) {
                Some(end) => self.completed(&ended, end),
                None => self.ended_by_fault(&ended, code, since_ns),
            }
        }
    }

    /// The event that tells the end of the oldest operation, maybe with others; `Some(None)` if
    /// none was recorded yet.
    fn front_end(&self) -> Option<Option<Handle>> {
        self.in_flight.front()?;
        Some(self.in_flight.iter().find_map(|flying| flying.end))
    }

    /// Operations of one queue ended, the last of them with an event.
    fn completed(&mut self, ended: &[InFlight], end: Handle) {
        let Some(first) = ended.first() else { return };
        let begin_ns = first.begin.map_or(0, |begin| self.timeline.at_ns(&self.driver, begin));
        let ended_ns = self.timeline.at_ns(&self.driver, end);
        let end_ns = ended_ns.max(self.last_end_ns);
        // Operations of several queues overlap; each is charged for what it adds.
        let start_ns = begin_ns.clamp(self.last_end_ns, end_ns);
        self.last_end_ns = end_ns;
        if let Some(page) = &self.page {
            page.occupy(start_ns, end_ns);
        }
        let free = self.timeline.advance(end, ended_ns);
        self.free_events.extend(first.begin.into_iter().chain([free]));
        let (took_ns, count) = (end_ns - start_ns, ended.len() as u64);
        for (index, flown) in (0..).zip(ended) {
            let mut outcome = Outcome::Done;
            if let Some(Blocks { key, count: blocks, wave, next }) = flown.blocks {
                // What it took, also where others hid it.
                if flown.begin.is_some() && count == 1 {
                    self.rates.learn(key, (blocks, wave), ended_ns.saturating_sub(begin_ns));
                }
                if let Some(reached) = next {
                    outcome = Outcome::Partial { reached };
                }
            }
            let part_ns = |parts: u64| start_ns + took_ns * parts / count;
            let (start_ns, end_ns) = (part_ns(index), part_ns(index + 1));
            self.finished.push_back(Completion { op: flown.id, outcome, start_ns, end_ns });
        }
    }

    /// Operations of which the first was the oldest since `since_ns` of the host's clock ended by a
    /// fault: of one of them, and nobody says of which.
    fn ended_by_fault(&mut self, ended: &[InFlight], code: Code, mut since_ns: u64) {
        let mut names: Vec<&str> = Vec::new();
        for flown in ended {
            if !names.contains(&flown.kernel.as_str()) {
                names.push(&flown.kernel);
            }
        }
        let kernel = names.join(" or ");
        for flown in ended {
            let completion = self.faulted(flown.id, kernel.clone(), code, since_ns);
            since_ns = completion.end_ns;
            self.free_events.extend(flown.begin.into_iter().chain(flown.end));
            self.finished.push_back(completion);
        }
    }

    /// A fault after work since `since_ns`, which is charged: the driver keeps no timestamps then.
    fn faulted(&mut self, op: OpId, kernel: String, code: Code, since_ns: u64) -> Completion {
        let name = self.driver.name_of(code);
        self.lost.get_or_insert_with(|| name.clone());
        let completion = fault_completion(op, fault_kind(code), kernel, name, since_ns);
        self.last_end_ns = self.last_end_ns.max(completion.end_ns);
        if let Some(page) = &self.page {
            page.occupy(completion.start_ns, completion.end_ns);
        }
        completion
    }

    /// The oldest operation runs longer than it may and cannot be stopped: everything in flight
    /// ends as a fault, and the process is expected to end, which takes the context along.
    pub(super) fn give_up(&mut self) {
        self.lost = Some("a kernel ran into its time limit".to_owned());
        self.stuck = true;
        let mut kind = FaultKind::Timeout;
        let mut since_ns = self.front_since_ns.max(self.last_end_ns);
        if let Some(page) = &self.page {
            page.occupy(since_ns, monotonic_ns());
        }
        for ended in std::mem::take(&mut self.in_flight) {
            let (kernel, detail) = (ended.kernel, "aborted".to_owned());
            self.finished.push_back(fault_completion(ended.id, kind, kernel, detail, since_ns));
            (kind, since_ns) = (FaultKind::Device, monotonic_ns());
        }
    }
}

/// Blocks of a launch's grid.
fn blocks_of(launch: &Launch) -> u64 {
    launch.grid.iter().map(|n| u64::from(*n)).product()
}

/// The driver does not say which thread or address; what it says is the detail.
fn fault_completion(
    op: OpId,
    kind: FaultKind,
    kernel: String,
    detail: String,
    start_ns: u64,
) -> Completion {
    let end_ns = monotonic_ns();
    let fault =
        Fault { kind, kernel, block: [0; 3], thread: [0; 3], address: None, line: 0, detail };
    let outcome = Outcome::Fault(Box::new(fault));
    Completion { op, outcome, start_ns: start_ns.min(end_ns), end_ns }
}

/// A copy's rows, taken together where they lie one behind the other on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rows {
    width: u64,
    height: u64,
    depth: u64,
}

impl Rows {
    fn of(dst: &Endpoint, src: &Endpoint, shape: CopyShape) -> Self {
        let CopyShape { mut width, mut height, mut depth } = shape;
        let both = |is: &dyn Fn(&Endpoint) -> bool| is(dst) && is(src);
        if depth == 1 || both(&|end| Some(end.slice) == end.pitch.checked_mul(height)) {
            height = height.saturating_mul(depth);
            depth = 1;
        }
        if depth == 1 && (height == 1 || both(&|end| end.pitch == width)) {
            width = width.saturating_mul(height);
            height = 1;
        }
        Self { width, height, depth }
    }
}

/// An address in the space that host and devices share.
fn linear(place: &Place) -> Address {
    let (_, host, device) = side(place, 0);
    if host.is_null() { device } else { host.expose_provenance() as u64 }
}

/// One side of a copy as `CUDA_MEMCPY2D` wants it: memory type, host pointer, device pointer.
fn side(place: &Place, offset: u64) -> (c_uint, *mut c_void, u64) {
    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
    match place {
        Place::Device(address) => (MEMORY_DEVICE, std::ptr::null_mut(), address + offset),
        Place::Host(span) => (MEMORY_HOST, span.as_ptr().wrapping_add(skip).cast(), 0),
        Place::Inline(bytes) => {
            (MEMORY_HOST, bytes.as_ptr().wrapping_add(skip).cast_mut().cast(), 0)
        }
    }
}

fn length(value: u64) -> Result<usize, DeviceError> {
    usize::try_from(value).map_err(|_| DeviceError::BadRange { address: 0, bytes: value })
}

/// Whether a result code says that the context is of no more use. After the others the driver is as
/// it was.
pub(super) fn is_final(code: Code) -> bool {
    // Deinitialised, no or another context, uncorrectable memory, a failed link between devices,
    // what kernels do, an unknown error.
    matches!(code, 4 | 46 | 201 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 999)
}

/// What a result code says about the kernel that caused it.
fn fault_kind(code: Code) -> FaultKind {
    match code {
        700 => FaultKind::IllegalAddress,
        702 => FaultKind::Timeout,
        710 => FaultKind::Assert,
        714 => FaultKind::StackOverflow,
        715 => FaultKind::IllegalInstruction,
        716 => FaultKind::MisalignedAddress,
        717 => FaultKind::InvalidAddressSpace,
        718 => FaultKind::InvalidPc,
        719 => FaultKind::Trap,
        _ => FaultKind::Device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side_of(pitch: u64, slice: u64) -> Endpoint {
        Endpoint { place: Place::Device(0), pitch, slice }
    }

    #[test]
    fn rows_that_follow_each_other_are_one() {
        let shape = |width, height, depth| CopyShape { width, height, depth };
        let of = |dst: &Endpoint, src: &Endpoint, from| {
            let Rows { width, height, depth } = Rows::of(dst, src, from);
            (width, height, depth)
        };
        let (packed, padded) = (side_of(8, 32), side_of(16, 64));
        assert_eq!(of(&packed, &packed, shape(8, 4, 3)), (96, 1, 1));
        assert_eq!(of(&padded, &padded, shape(8, 4, 3)), (8, 12, 1));
        assert_eq!(of(&packed, &padded, shape(8, 4, 1)), (8, 4, 1));
        assert_eq!(of(&packed, &side_of(8, 40), shape(8, 4, 3)), (8, 4, 3));
        // A linear copy's pitch means nothing.
        assert_eq!(of(&side_of(0, 0), &padded, shape(1 << 40, 1, 1)), (1 << 40, 1, 1));
    }
}
