//! The software GPU as a [`Device`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weft_ring::Cell;

use super::engine::cx::{Cx, LaunchState};
use super::engine::handler::Level;
use super::engine::launch::{Execution, LaunchPlan, Progress};
use super::info::{SHARED_BYTES_OPTIN, SHARED_GRANULE_BYTES, THREADS_MAX, device_info};
use super::memory::{Copied, Copying, Filling, FrameStore, Memory, MemoryConfig, Translation};
use super::model::PacedModel;
use super::module::{self, Loaded};
use super::pieces::{Until, in_pieces, plain_fault};
use super::timing::{Launches, Paced, Spells};
use crate::clock;
use crate::page::{DevicePage, Kept};
use crate::{
    BackendConfig, Completion, Destination, Device, DeviceError, DeviceInfo, Driven, FaultKind,
    Fill, Import, Launch, LoadError, LoadedModule, LocalFrames, MemoryUse, ModuleId, Op, OpId,
    Outcome, QueueId, VirtualMemory,
};

/// Bytes of the workspace that a grid's barrier uses.
const GRID_WORKSPACE_BYTES: u64 = 8;
/// Operations that may wait behind each other.
const QUEUE_MAX: usize = 4096;
/// How soon to look again whether the turn came, in ns.
const TURN_POLL_NS: u64 = 20_000;

/// A yield that takes less found nobody who wants the processor, in ns.
const ALONE_NS: u64 = 5_000;

/// Which time the device keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clock {
    /// Operations take the time they take.
    Real,
    /// Operations take the time the model says; kernels really execute meanwhile.
    Paced(PacedModel),
}

/// What a software device is made of.
#[derive(Debug)]
pub struct SoftConfig {
    /// Its memory.
    pub memory: MemoryConfig,
    /// Memory that it reports, in bytes.
    pub memory_bytes: u64,
    /// Its clock.
    pub clock: Clock,
    /// The page shared with other workers, and this worker's number there.
    pub page: Option<(DevicePage, u32)>,
}

/// A session's view of the software GPU.
#[derive(Debug)]
pub struct SoftDevice {
    info: DeviceInfo,
    cx: Box<Cx>,
    level: Level,
    clock: Clock,
    page: Option<(DevicePage, u32)>,
    /// In what units a block's shared memory is handed out, in bytes.
    shared_granule: u32,
    /// Whether this worker queues at, or holds, the turnstile.
    queued: bool,
    modules: BTreeMap<ModuleId, Loaded>,
    next_module: u32,
    next_op: u64,
    next_grid: u64,
    pending: VecDeque<Pending>,
    current: Option<Current>,
    /// Executed operations in order, and how each kept to its model; each is complete when its end
    /// is due.
    finished: VecDeque<(Completion, Kept)>,
    /// Where the workspace of grids lies, once one was needed.
    workspace: Option<u64>,
    /// Where it is to go.
    moving: Option<Moving>,
    /// Where it was before its last move, until the next one.
    left: Option<FrameStore>,
    /// End of the timeline of a paced device without a page.
    timeline_end_ns: u64,
    /// When the slots that it asked for last are written, where that time is modelled.
    resident_ns: u64,
    /// What launches take.
    launches: Launches,
}

/// A device that the session's memory was copied to.
#[derive(Debug)]
struct Moving {
    copied: Copied,
    clock: Clock,
    page: DevicePage,
}

#[derive(Debug)]
struct Pending {
    id: OpId,
    op: Op,
    /// Its place on the timeline of a paced device, and the block it stops before.
    paced: Option<Paced>,
    /// After how long it stops on the real clock, in ns.
    max_ns: Option<u64>,
}

#[derive(Debug)]
struct Current {
    id: OpId,
    work: Work,
    start_ns: u64,
    /// When it stops, to go on later.
    stop_at: Option<u64>,
    /// Of a copy or a fill: bytes moved so far.
    moved: u64,
    paced: Option<Paced>,
    spells: Spells,
}

/// What is known of an operation at its end.
#[derive(Debug, Clone, Copy)]
struct Ended {
    op: OpId,
    began_ns: u64,
    paced: Option<Paced>,
    spells: Spells,
}

impl Ended {
    /// Of an operation that never executed.
    fn unexecuted(op: OpId, paced: Option<Paced>) -> Self {
        let spells = Spells::new(paced.is_some());
        Self { op, began_ns: clock::now_ns(), paced, spells }
    }
}

impl Current {
    const fn ended(&self) -> Ended {
        let Self { id: op, start_ns: began_ns, paced, spells, .. } = *self;
        Ended { op, began_ns, paced, spells }
    }
}

#[derive(Debug)]
enum Work {
    Kernel(Box<Execution>),
    Copy(Box<Copying>),
    Fill(Box<Filling>),
}

impl SoftDevice {
    /// A device of its parts.
    #[must_use]
    pub fn new(config: SoftConfig) -> Self {
        let is_exact = config.memory.exact_bounds;
        Self {
            info: device_info(config.memory_bytes),
            shared_granule: if is_exact { 1 } else { SHARED_GRANULE_BYTES },
            cx: Box::new(Cx::new(Memory::new(config.memory))),
            level: Level::detect(),
            clock: config.clock,
            page: config.page,
            queued: false,
            modules: BTreeMap::new(),
            next_module: 1,
            next_op: 1,
            next_grid: 1,
            pending: VecDeque::new(),
            current: None,
            finished: VecDeque::new(),
            workspace: None,
            moving: None,
            left: None,
            timeline_end_ns: 0,
            resident_ns: 0,
            launches: Launches::default(),
        }
    }

    /// A device that this process has to itself: `bytes` of memory at device addresses from `base`.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when the system gives no memory.
    pub fn local(bytes: u64, base: u64, len: u64, clock: Clock) -> Result<Self, DeviceError> {
        let memory = MemoryConfig {
            store: FrameStore::local(bytes)?,
            source: Box::new(LocalFrames::new(bytes)),
            base,
            len,
            window: None,
            exact_bounds: false,
        };
        Ok(Self::new(SoftConfig { memory, memory_bytes: bytes, clock, page: None }))
    }

    /// Charges what launching an operation takes to nobody: a negative control.
    pub(super) fn make_launches_free(&mut self) {
        self.launches.make_free();
    }

    fn module(&self, id: ModuleId) -> Option<&Loaded> {
        self.modules.get(&id)
    }

    fn kernel_name(&self, launch: &Launch) -> Option<&str> {
        let module = self.module(launch.module)?;
        module.functions.get(launch.function as usize).map(|f| f.name.as_str())
    }

    /// Checks what the trait leaves to the backend.
    fn check_launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        let refuse = |why: &str| Err(DeviceError::LaunchResources(why.to_owned()));
        let Some(module) = self.module(launch.module) else { return refuse("no such module") };
        let Some(info) = module.functions.get(launch.function as usize) else {
            return refuse("no such kernel");
        };
        let threads = launch.block.iter().try_fold(1u32, |n, d| n.checked_mul(*d));
        if threads.is_none_or(|n| n == 0 || n > info.max_threads.min(THREADS_MAX)) {
            return refuse("threads per block");
        }
        let blocks = launch.grid.iter().try_fold(1u64, |n, d| n.checked_mul(u64::from(*d)));
        if blocks.is_none_or(|n| n == 0) {
            return refuse("blocks");
        }
        let shared = info.shared_bytes.next_multiple_of(16).checked_add(launch.shared_bytes);
        if shared.is_none_or(|n| n > SHARED_BYTES_OPTIN) {
            return refuse("shared memory");
        }
        Ok(())
    }

    /// Reserves an operation's place on the timeline of a paced device.
    fn pace(&mut self, op: &Op, max_ns: Option<u64>) -> Option<Paced> {
        let Clock::Paced(model) = &self.clock else { return None };
        let now = clock::now_ns();
        let (ns, until_block) = match op {
            Op::Launch(launch) => {
                let name = self.kernel_name(launch).unwrap_or_default();
                let total = blocks(launch);
                let first = launch.first_block.min(total);
                let within = |max_ns| model.blocks_within(name, first, total, max_ns);
                let count = max_ns.map_or(total - first, within);
                (model.blocks_ns(name, first, count, total), first + count)
            }
            Op::Copy { shape, .. } => (
                model.copy_ns(shape.width.saturating_mul(shape.height).saturating_mul(shape.depth)),
                0,
            ),
            Op::Fill(fill) => (model.copy_ns(fill_bytes(fill)), 0),
        };
        let (start_ns, end_ns) = self.reserve(now, ns);
        Some(Paced { start_ns, end_ns, until_block })
    }

    /// The next so many nanoseconds of the timeline.
    fn reserve(&mut self, now: u64, ns: u64) -> (u64, u64) {
        match &self.page {
            Some((page, _)) => page.reserve(now, ns),
            None => {
                let start = self.timeline_end_ns.max(now);
                self.timeline_end_ns = start.saturating_add(ns);
                (start, self.timeline_end_ns)
            }
        }
    }

    /// The same as [`Self::make_resident`] on a paced device: the timeline has the switch before
    /// the operation.
    fn pace_switch(&mut self, op: &Op) {
        if self.clock != Clock::Real {
            let wait_ns = self.cx.mem.make_resident(op);
            self.reserve(clock::now_ns(), wait_ns);
        }
    }

    /// Makes the next pending operation the current one, if it is its turn.
    fn begin(&mut self) -> Option<Driven> {
        let first = self.pending.front()?;
        if first.paced.is_none()
            && let Some((page, me)) = &self.page
        {
            if !self.queued {
                page.enter(*me);
                self.queued = true;
            }
            if !page.is_my_turn(*me) {
                // Somebody else executes meanwhile.
                self.launches.forget();
                return Some(Driven::WaitUntil(make_way(page)));
            }
        }
        if let Some(waits) = self.make_resident() {
            return Some(waits);
        }
        let pending = self.pending.pop_front()?;
        let mut start_ns = clock::now_ns();
        if pending.paced.is_none() {
            start_ns = self.launches.begin(start_ns);
        }
        // Where times are the model's, so are the places where operations stop.
        let max_ns = pending.max_ns.filter(|_| pending.paced.is_none());
        let stop_at = max_ns.map(|ns| start_ns.saturating_add(ns));
        let work = match pending.op {
            Op::Launch(launch) => match self.execution(&launch) {
                Some(execution) => Work::Kernel(Box::new(execution)),
                None => {
                    let fault = plain_fault(FaultKind::Device, "the module was unloaded");
                    self.current = None;
                    self.finish(
                        Ended::unexecuted(pending.id, pending.paced),
                        Outcome::Fault(fault),
                    );
                    return Some(Driven::Busy);
                }
            },
            Op::Copy { dst, src, shape } => Work::Copy(Box::new(Copying::new(dst, src, shape))),
            Op::Fill(fill) => Work::Fill(Box::new(Filling::new(fill))),
        };
        let (id, paced) = (pending.id, pending.paced);
        self.current = Some(Current {
            id,
            work,
            start_ns,
            stop_at,
            moved: 0,
            paced,
            spells: Spells::new(paced.is_some()),
        });
        None
    }

    /// Before an operation, when the device is this session's: has the vGPU's slots written if
    /// others have had them since. What that takes is no time of the operation's.
    fn make_resident(&mut self) -> Option<Driven> {
        let now = clock::now_ns();
        if self.resident_ns <= now {
            let wait_ns =
                self.pending.front().map_or(0, |next| self.cx.mem.make_resident(&next.op));
            if wait_ns == 0 {
                return None;
            }
            self.resident_ns = clock::now_ns().saturating_add(wait_ns);
        }
        Some(Driven::WaitUntil(self.resident_ns))
    }

    /// What the current operation met and had not in a slot is brought in its own time, where that
    /// is modelled: nobody else uses the device meanwhile.
    fn wait_for_slots(&mut self) {
        match (self.cx.mem.take_owed_ns(), &self.clock) {
            (0, _) => {}
            (owed_ns, Clock::Real) => self.launches.processor.sleep(owed_ns),
            (owed_ns, Clock::Paced(_)) => {
                self.reserve(clock::now_ns(), owed_ns);
            }
        }
    }

    fn execution(&mut self, launch: &Launch) -> Option<Execution> {
        let needs_workspace = self.module(launch.module)?.program.uses_grid_workspace;
        let grid_workspace = if needs_workspace { self.grid_workspace() } else { 0 };
        let module = self.modules.get(&launch.module)?;
        let info = module.functions.get(launch.function as usize)?;
        let dynamic_shared = launch.shared_bytes;
        // What follows the static part is aligned as a kernel may expect.
        let aligned = if dynamic_shared > 0 { 16 } else { 1 };
        let static_shared = info.shared_bytes.next_multiple_of(aligned);
        let grid_id = self.next_grid;
        self.next_grid += 1;
        let mut params = launch.params.clone();
        params.resize(info.param_bytes as usize, 0);
        let state = LaunchState {
            grid: launch.grid,
            block_dim: launch.block,
            block: [0; 3],
            params,
            dynamic_shared,
            static_shared,
            total_shared: (static_shared + dynamic_shared).next_multiple_of(self.shared_granule),
            grid_id,
            grid_workspace,
            serial: grid_id,
        };
        Some(Execution::new(LaunchPlan {
            program: Arc::clone(&module.program),
            kernel: launch.function,
            state,
            first_block: launch.first_block,
        }))
    }

    /// The address of 8 bytes of zeros, for a barrier of the grid; 0 if there is no memory.
    /// Launches run one after the other, so they share it.
    fn grid_workspace(&mut self) -> u64 {
        if self.workspace.is_none() {
            self.workspace = self.cx.mem.alloc(GRID_WORKSPACE_BYTES).ok();
        }
        let cleared = |address: &u64| self.cx.mem.write(*address, &[0; 8]).is_ok();
        self.workspace.filter(cleared).unwrap_or(0)
    }

    /// Works on the current operation until `deadline`.
    fn work(&mut self, deadline: u64) -> Driven {
        let Some(mut current) = self.current.take() else { return Driven::Idle };
        self.cx.tlb.keep(self.cx.mem.stamp());
        if let Some((page, _)) = &self.page {
            page.show_executor();
        }
        let since = current.spells.begin(&mut self.launches.processor);
        let until = Until { deadline, stop_at: current.stop_at };
        let ended = match &mut current.work {
            Work::Kernel(execution) => {
                let (paced, stop_at) = (current.paced, current.stop_at);
                let stop = |next: u64| match paced {
                    Some(paced) => next >= paced.until_block,
                    None => stop_at.is_some_and(|at| clock::now_ns() >= at),
                };
                match execution.drive(&mut self.cx, deadline, stop) {
                    Progress::Done => Some(Outcome::Done),
                    Progress::Stopped(reached) => Some(Outcome::Partial { reached }),
                    Progress::Fault(fault) => Some(Outcome::Fault(fault)),
                    Progress::Running => None,
                    Progress::Asleep(until) => {
                        current.spells.end(since, &mut self.launches.processor);
                        current.spells.sleep(&mut self.launches.processor);
                        self.current = Some(current);
                        return Driven::WaitUntil(until);
                    }
                }
            }
            Work::Copy(copying) => {
                let all = copying.bytes();
                in_pieces(until, all, &mut current.moved, || self.cx.mem.copy_piece(copying))
            }
            Work::Fill(filling) => {
                let all = filling.bytes();
                in_pieces(until, all, &mut current.moved, || self.cx.mem.fill_piece(filling))
            }
        };
        self.wait_for_slots();
        current.spells.end(since, &mut self.launches.processor);
        match ended {
            Some(outcome) => {
                self.finish(current.ended(), outcome);
            }
            None => self.current = Some(current),
        }
        Driven::Busy
    }

    /// What remains when everything has been executed.
    fn due(&self) -> Driven {
        match self.finished.front() {
            None => Driven::Idle,
            Some((first, _)) if first.end_ns > clock::now_ns() => Driven::WaitUntil(first.end_ns),
            Some(_) => Driven::Busy,
        }
    }

    /// Ends an operation that began at `began_ns` on the real clock, or has a place on the
    /// timeline.
    fn finish(&mut self, ended: Ended, outcome: Outcome) {
        let Ended { op, began_ns, paced, spells } = ended;
        let (executed_ns, lost_ns) = (spells.executed_ns(), spells.lost_ns());
        let now = clock::now_ns();
        let (start_ns, end_ns) = match paced {
            Some(paced) => (paced.start_ns, paced.end_ns),
            // The end is what others wait for; the spell before it is as long as it executed.
            None => (began_ns.saturating_add(lost_ns).min(now), now),
        };
        let kept = paced.map_or(Kept::InTime, |paced| paced.kept(now, executed_ns));
        // Whoever is behind it waits for as long as it really takes, which it pays for.
        let end_ns = if kept == Kept::Overran {
            end_ns.max(start_ns + executed_ns.saturating_sub(lost_ns))
        } else {
            end_ns
        };
        if self.queued
            && let Some((page, me)) = &self.page
        {
            page.leave(*me);
            self.queued = false;
        }
        self.finished.push_back((Completion { op, outcome, start_ns, end_ns }, kept));
        if !self.pending.is_empty() {
            self.launches_since(Some(now));
        }
    }
}

impl Device for SoftDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn memory_use(&self) -> MemoryUse {
        self.cx.mem.usage()
    }

    fn alloc(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.cx.mem.alloc(bytes)
    }

    fn free(&mut self, address: u64) -> Result<(), DeviceError> {
        self.cx.mem.free(address)
    }

    fn load(&mut self, images: &[&[u8]]) -> Result<LoadedModule, LoadError> {
        let loaded = module::load(images, &mut self.cx.mem, self.level)?;
        let id = ModuleId(self.next_module);
        self.next_module += 1;
        let module = LoadedModule {
            id,
            functions: loaded.functions.clone(),
            globals: loaded.globals.clone(),
        };
        self.modules.insert(id, loaded);
        Ok(module)
    }

    fn unload(&mut self, module: ModuleId) {
        if let Some(loaded) = self.modules.remove(&module) {
            loaded.unload(&mut self.cx.mem);
        }
    }

    fn start(&mut self, _: QueueId, op: Op, max_ns: Option<u64>) -> Result<OpId, DeviceError> {
        if self.pending.len() >= QUEUE_MAX {
            return Err(DeviceError::QueueFull);
        }
        if let Op::Launch(launch) = &op {
            self.check_launch(launch)?;
        }
        self.pace_switch(&op);
        let paced = self.pace(&op, max_ns);
        let id = OpId(self.next_op);
        self.next_op += 1;
        self.pending.push_back(Pending { id, op, paced, max_ns });
        Ok(id)
    }

    fn check_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.cx.mem.check_range(address, bytes)
    }

    fn read_word(&mut self, address: u64, wide: bool) -> Result<u64, DeviceError> {
        self.cx.mem.read_word(address, wide)
    }

    fn write_word(&mut self, address: u64, value: u64, wide: bool) -> Result<(), DeviceError> {
        self.cx.mem.write_word(address, value, wide)
    }

    fn virtual_memory(&mut self) -> Option<&mut dyn VirtualMemory> {
        Some(&mut self.cx.mem)
    }

    fn pin_host(&mut self, address: u64, bytes: u64) {
        self.cx.mem.pin_host(address, bytes);
    }

    fn unpin_host(&mut self, address: u64, _bytes: u64) {
        self.cx.mem.unpin_host(address);
    }

    fn map_host(&mut self, host: u64, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.cx.mem.map_host(host, address, bytes)
    }

    fn unmap_host(&mut self, host: u64) -> Result<(), DeviceError> {
        self.cx.mem.unmap_host(host)
    }

    fn manage(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.cx.mem.manage(address, bytes)
    }

    fn expect(&mut self, address: u64, bytes: u64) {
        self.cx.mem.expect(address, bytes);
    }

    fn shared_word(&mut self, address: u64) -> Result<Cell<AtomicU64>, DeviceError> {
        self.cx.mem.wide_word(address)
    }

    fn export(&mut self, address: u64) -> Result<[u8; 16], DeviceError> {
        self.cx.mem.export(address)
    }

    fn import(&mut self, key: [u8; 16]) -> Result<Import, DeviceError> {
        self.cx.mem.import(key)
    }

    fn begin_move(&mut self, to: Destination) -> Result<(), DeviceError> {
        let refused = |why: &str| DeviceError::Refused(why.to_owned());
        if self.current.is_some() || !self.pending.is_empty() || !self.finished.is_empty() {
            return Err(refused("something is in flight"));
        }
        let BackendConfig::Soft(backend) = &to.backend else {
            return Err(refused("the other device is of another kind"));
        };
        let Some((_, me)) = &self.page else { return Err(refused("it is nobody else's")) };
        let lost = |error: String| DeviceError::Lost(error);
        let table = Translation::open(&to.table, &to.physical, to.geometry, *me);
        let table = table.map_err(|error| lost(error.to_string()))?;
        self.left = None;
        let store = FrameStore::map(to.frames, Some(table))?;
        let copied = self.cx.mem.copy_to(store, &to.moved)?;
        let clock = backend.clock_of_device();
        self.moving = Some(Moving { copied, clock, page: to.page });
        Ok(())
    }

    fn end_move(&mut self, goes: bool) {
        let Some(Moving { copied, clock, page }) = self.moving.take().filter(|_| goes) else {
            return;
        };
        self.left = Some(self.cx.mem.go(copied));
        self.clock = clock;
        if let Some((own, _)) = &mut self.page {
            *own = page;
        }
    }

    fn occupied_ns(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.spells.occupied_ns())
    }

    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.cx.output)
    }

    fn executes_here(&self) -> bool {
        self.page.as_ref().is_some_and(|(page, _)| page.is_executed_here())
    }

    fn launches_since(&mut self, since_ns: Option<u64>) {
        match since_ns {
            Some(since_ns) if self.clock == Clock::Real => {
                self.launches.follow(since_ns);
            }
            Some(_) | None => self.launches.forget(),
        }
    }

    fn drive(&mut self, slice_ns: u64) -> Driven {
        if self.current.is_none() && self.pending.is_empty() {
            return self.due();
        }
        let deadline = clock::now_ns().saturating_add(slice_ns);
        loop {
            if self.current.is_none()
                && let Some(waits) = self.begin()
            {
                if waits == Driven::Busy {
                    continue;
                }
                return waits;
            }
            if self.current.is_none() {
                break;
            }
            if let Driven::WaitUntil(until) = self.work(deadline) {
                return Driven::WaitUntil(until);
            }
            if clock::now_ns() >= deadline {
                return Driven::Busy;
            }
        }
        self.due()
    }

    fn poll(&mut self) -> Option<Completion> {
        let (first, _) = self.finished.front()?;
        if first.end_ns > clock::now_ns() {
            return None;
        }
        let (completion, kept) = self.finished.pop_front()?;
        // Counted when it is reported: the daemon counts what a session did not live to report.
        if let Some((page, _)) = &self.page {
            page.count(completion.end_ns - completion.start_ns, kept);
        }
        Some(completion)
    }

    fn abort(&mut self, op: OpId) {
        let killed = || Outcome::Fault(plain_fault(FaultKind::Timeout, "killed at its time limit"));
        if let Some(current) = self.current.take_if(|c| c.id == op) {
            let mut outcome = killed();
            if let (Outcome::Fault(fault), Work::Kernel(execution)) = (&mut outcome, &current.work)
            {
                execution.describe(fault);
            }
            self.finish(current.ended(), outcome);
        } else if let Some(i) = self.pending.iter().position(|p| p.id == op)
            && let Some(pending) = self.pending.remove(i)
        {
            self.finish(Ended::unexecuted(pending.id, pending.paced), killed());
        }
    }

    fn estimate_ns(&self, op: &Op) -> Option<u64> {
        let Clock::Paced(model) = &self.clock else { return None };
        Some(match op {
            Op::Launch(launch) => {
                let total = blocks(launch);
                let first = launch.first_block.min(total);
                model.blocks_ns(self.kernel_name(launch)?, first, total - first, total)
            }
            Op::Copy { shape, .. } => {
                model.copy_ns(shape.width.saturating_mul(shape.height).saturating_mul(shape.depth))
            }
            Op::Fill(fill) => model.copy_ns(fill_bytes(fill)),
        })
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        if self.queued
            && let Some((page, me)) = &self.page
        {
            page.leave(*me);
        }
    }
}

/// Leaves the processor to who executes on the device, if that is this thread's: whoever polls
/// there keeps it from that. When to look again whether it is one's turn.
fn make_way(page: &DevicePage) -> u64 {
    let before_ns = clock::now_ns();
    if page.is_executed_here() {
        std::thread::yield_now();
        let after_ns = clock::now_ns();
        if after_ns.saturating_sub(before_ns) >= ALONE_NS {
            return after_ns;
        }
    }
    before_ns.saturating_add(TURN_POLL_NS)
}

fn blocks(launch: &Launch) -> u64 {
    launch.grid.iter().map(|n| u64::from(*n)).product()
}

fn fill_bytes(fill: &Fill) -> u64 {
    fill.width.saturating_mul(fill.height).saturating_mul(u64::from(fill.element))
}
