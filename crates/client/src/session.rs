//! A session with one vGPU: what is sent to its worker, and what the worker says unasked.
//!
//! Nothing here knows an application's handles or a driver API's rules ([`crate::Client`] does), so
//! a process holds as many sessions as it has devices.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use weft_ring::{ArenaRef, Block, ClientSide, Loss, Patience};
use weft_wire::codec::{Field, decode_all};
use weft_wire::command::COMMAND_BYTES_MAX;
use weft_wire::handshake::Welcome;
use weft_wire::{Command, Status, container, id, progress};

use crate::attach::{Established, Lifeline};
use crate::device_range::DeviceRange;
use crate::host_function::HostFunctions;
use crate::ipc::Imports;
use crate::ipc_event::EventPages;
use crate::launch::LaunchLimits;
use crate::pinned::PinnedHeap;
use crate::primary::Primary;
use crate::transport::{Answer, Transport};
use crate::virtual_memory::Apart;

/// Bytes of kernels' output that one answer brings at most.
const OUTPUT_PIECE: usize = 4096;

/// Answers to most commands fit into this many bytes.
const SMALL_ANSWER: usize = 64;

/// Attributes that the welcome says by itself.
const CAPABILITY_MAJOR: u32 = 75;
const CAPABILITY_MINOR: u32 = 76;
/// Those of a PCI address.
const PCI_BUS: u32 = 33;
const PCI_DEVICE: u32 = 34;
const PCI_DOMAIN: u32 = 50;

/// A session with a vGPU.
#[derive(Debug)]
pub(crate) struct Session {
    /// Which of the process's devices it is.
    pub(crate) ordinal: u8,
    pub(crate) side: Arc<ClientSide>,
    transport: Arc<dyn Transport>,
    pub(crate) welcome: Welcome,
    attributes: BTreeMap<u32, i32>,
    pub(crate) launch_limits: LaunchLimits,
    pub(crate) primary: Mutex<Primary>,
    pub(crate) pinned: PinnedHeap,
    pub(crate) imports: Mutex<Imports>,
    pub(crate) apart: Mutex<Apart>,
    pub(crate) event_pages: Mutex<EventPages>,
    pub(crate) counters: Counters,
    pub(crate) host_functions: HostFunctions,
    refused_seen: AtomicU64,
    /// The status of what broke the session; 0 while nothing did.
    broken: AtomicI32,
    printed_seen: AtomicU64,
    lifeline: Arc<Lifeline>,
    device_range: DeviceRange,
}

/// How many stream commands and event records were sent, by slot (see [`weft_wire::progress`]).
#[derive(Debug)]
pub(crate) struct Counters {
    streams: Box<[AtomicU64]>,
    /// In chunks that appear when their first event is recorded.
    events: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

/// Events of one chunk of counters.
const EVENT_CHUNK: usize = 4096;

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Counters {
    fn new() -> Self {
        let index = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
        let chunks = index(id::EVENTS_MAX).div_ceil(EVENT_CHUNK);
        Self {
            streams: zeros(index(progress::STREAM_WORDS)),
            events: (0..chunks).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Counts one more command of the stream's slot.
    #[inline]
    pub(crate) fn stream_command(&self, stream: id::StreamId) {
        if let Some(count) = usize::try_from(stream.index).ok().and_then(|i| self.streams.get(i)) {
            count.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn stream_commands(&self, stream: id::StreamId) -> u64 {
        let count = usize::try_from(stream.index).ok().and_then(|i| self.streams.get(i));
        count.map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// Numbers the next record of the event's slot.
    pub(crate) fn event_record(&self, event: id::EventId) -> u64 {
        let index = usize::try_from(event.index).unwrap_or(usize::MAX);
        let chunk = self.events.get(index / EVENT_CHUNK);
        let chunk = chunk.map(|chunk| chunk.get_or_init(|| zeros(EVENT_CHUNK)));
        let count = chunk.and_then(|chunk| chunk.get(index % EVENT_CHUNK));
        count.map_or(0, |count| count.fetch_add(1, Ordering::AcqRel) + 1)
    }
}

impl Session {
    /// A session that was established. Commands go through the segment's lanes unless another
    /// `transport` executes them.
    pub(crate) fn over(
        ordinal: u8,
        established: Established,
        transport: Option<Arc<dyn Transport>>,
    ) -> Arc<Self> {
        let Established { mut welcome, side, pinned, device, lifeline } = established;
        if welcome.placement.is_some() {
            // Whatever the node says: what is mapped here is a device's memory.
            welcome.refuse_registering();
        }
        let side = Arc::new(side);
        let transport = transport.unwrap_or_else(|| Arc::clone(&side) as Arc<dyn Transport>);
        let attributes: BTreeMap<u32, i32> =
            welcome.attributes.iter().map(|a| (a.number, a.value)).collect();
        let launch_limits =
            LaunchLimits::read(|number, otherwise| limit(&attributes, number, otherwise));
        Arc::new_cyclic(|this| Self {
            ordinal,
            side,
            transport,
            attributes,
            launch_limits,
            primary: Mutex::default(),
            pinned: PinnedHeap::new(&pinned, welcome.managed_bytes),
            imports: Mutex::default(),
            apart: Mutex::default(),
            event_pages: Mutex::default(),
            counters: Counters::new(),
            host_functions: HostFunctions::new(this.clone()),
            refused_seen: AtomicU64::new(0),
            broken: AtomicI32::new(0),
            printed_seen: AtomicU64::new(0),
            welcome,
            lifeline,
            device_range: DeviceRange::new(device),
        })
    }

    /// Whether this process is a fork of the one that attached. Costs one load.
    pub(crate) fn is_forked(&self) -> bool {
        self.side.is_forked()
    }

    /// Lets go of the session in a child made by `fork`; takes no lock that another thread of the
    /// parent may have held.
    pub(crate) fn leave_in_child(&self) {
        if self.is_forked() {
            self.lifeline.cut();
            self.leave_registered();
        }
    }

    /// An attribute of the vGPU, 0 if it has none of that number.
    pub(crate) fn attribute(&self, number: u32) -> i32 {
        let capability = |value: u32| i32::try_from(value).unwrap_or(0);
        match number {
            CAPABILITY_MAJOR => capability(self.welcome.capability_major),
            CAPABILITY_MINOR => capability(self.welcome.capability_minor),
            PCI_DOMAIN => self.pci_address().0,
            PCI_BUS => self.pci_address().1,
            PCI_DEVICE => self.pci_address().2,
            other => self.attributes.get(&other).copied().unwrap_or(0),
        }
    }

    /// Domain, bus and device of the PCI address. It is made up from the vGPU's identity: a vGPU
    /// sits on no bus, and programs take devices of one address for one device.
    pub(crate) fn pci_address(&self) -> (i32, i32, i32) {
        let [.., high, low, bus, device] = self.welcome.uuid;
        (i32::from(u16::from_be_bytes([high, low])), i32::from(bus), i32::from(device & 0x1f))
    }

    /// An attribute as a limit: `otherwise` where the vGPU does not state it.
    pub(crate) fn limit(&self, number: u32, otherwise: u32) -> u32 {
        limit(&self.attributes, number, otherwise)
    }

    /// Keeps the process's host memory away from new device memory, or gives that back.
    pub(crate) fn keep_range(&self, address: u64, bytes: u64) -> Result<(), Status> {
        self.device_range.keep(address, bytes).inspect_err(|_| {
            // The allocation fails whatever becomes of this.
            let _ = self.call(&Command::MemFree { address });
        })
    }

    /// Keeps it away from a module's variable; false if there is some already.
    pub(crate) fn keeps_global(&self, address: u64, bytes: u64) -> bool {
        self.device_range.keep(address, bytes).is_ok()
    }

    /// Brings asynchronous faults and refusals to the next call.
    #[inline]
    pub(crate) fn healthy(&self) -> Result<(), Status> {
        self.usable()?;
        let refused = self.notice(progress::NOTICE_REFUSED);
        if refused == self.refused_seen.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused_seen.store(refused, Ordering::Relaxed);
        self.call(&Command::Ping {})
    }

    /// Whether the session lives and no fault sticks.
    #[inline]
    pub(crate) fn usable(&self) -> Result<(), Status> {
        if self.side.is_forked() {
            return Err(Status::NOT_INITIALIZED);
        }
        self.faultless()?;
        if self.side.is_lost() {
            return Err(Status::DEVICE_UNAVAILABLE);
        }
        self.unbroken()
    }

    /// The fault that its worker told, which stays although the worker may have ended by it.
    #[inline]
    fn faultless(&self) -> Result<(), Status> {
        match self.notice(progress::NOTICE_FAULT) {
            0 => Ok(()),
            code => Err(Status::from_peer(i32::try_from(code).unwrap_or(-1))),
        }
    }

    /// Something that this process did at a place in a stream failed: what comes after it there
    /// would work with wrong data, so the session is over for its program, as after a fault.
    #[cold]
    pub(crate) fn break_down(&self, status: Status) {
        let _first =
            self.broken.compare_exchange(0, status.code(), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether nothing has broken it.
    #[inline]
    fn unbroken(&self) -> Result<(), Status> {
        match self.broken.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Status::from_peer(code)),
        }
    }

    /// Hands what kernels have printed to `write`, piece by piece. Costs one look at shared memory
    /// when nothing was printed. Works after a fault: what a kernel said before it matters most.
    pub(crate) fn take_output(&self, write: impl FnMut(&[u8])) {
        if self.side.is_forked() || self.side.is_lost() {
            return;
        }
        let printed = self.notice(progress::NOTICE_PRINTED);
        if self.printed_seen.swap(printed, Ordering::Relaxed) != printed {
            self.fetch_output(write);
        }
    }

    #[cold]
    fn fetch_output(&self, mut write: impl FnMut(&[u8])) {
        let mut body = [0; OUTPUT_PIECE];
        while let Ok(answer) = self.call_into(&Command::TakeOutput {}, &mut body) {
            match body.get(..answer.len) {
                Some(piece) if !piece.is_empty() && answer.status == Status::SUCCESS => {
                    write(piece);
                }
                _ => return,
            }
        }
    }

    fn notice(&self, word: u32) -> u64 {
        usize::try_from(word).ok().and_then(|word| self.side.notice(word)).unwrap_or(0)
    }

    /// A progress word. Never touched in a forked child, which does not have the segment.
    pub(crate) fn progress(&self, word: u32) -> Option<u64> {
        usize::try_from(word).ok().and_then(|word| self.side.progress(word))
    }

    /// Sends an asynchronous command.
    #[inline]
    pub(crate) fn submit(&self, command: &Command<'_>) -> Result<(), Status> {
        debug_assert!(!command.is_sync(), "{} is answered", command.name());
        let mut bytes = [0; COMMAND_BYTES_MAX];
        let length = command.encode(&mut bytes).map_err(|_| Status::INVALID_VALUE)?;
        let sent = self.transport.submit(bytes.get(..length).unwrap_or_default());
        sent.map_err(|status| self.lost_by(status))
    }

    /// Sends a synchronous command whose answer is only a status.
    pub(crate) fn call(&self, command: &Command<'_>) -> Result<(), Status> {
        self.call_into(command, &mut [])?.status.into_result()
    }

    /// Sends a synchronous command and decodes its answer.
    pub(crate) fn call_for<T: for<'a> Field<'a>>(
        &self,
        command: &Command<'_>,
    ) -> Result<T, Status> {
        let mut body = [0; SMALL_ANSWER];
        let answer = self.call_into(command, &mut body)?;
        answer.status.into_result()?;
        let body = body.get(..answer.len).ok_or(Status::UNKNOWN)?;
        decode_all(body).map_err(|_| Status::UNKNOWN)
    }

    /// Sends a synchronous command and copies its answer's body into `body`.
    pub(crate) fn call_into(
        &self,
        command: &Command<'_>,
        body: &mut [u8],
    ) -> Result<Answer, Status> {
        debug_assert!(command.is_sync(), "{} is not answered", command.name());
        let mut bytes = [0; COMMAND_BYTES_MAX];
        let length = command.encode(&mut bytes).map_err(|_| Status::INVALID_VALUE)?;
        let answer = self.transport.call(bytes.get(..length).unwrap_or_default(), body);
        let answer = answer.map_err(|status| self.lost_by(status))?;
        // Streams of a broken session drain: their host functions are asked for.
        if !matches!(command, Command::HostFunctionNext {}) {
            self.unbroken()?;
        }
        Ok(answer)
    }

    /// Why the session is over, if it is.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.side.segment().loss().ok().flatten()
    }

    /// What the application is told when a command could not be carried. One thread that finds
    /// the worker gone tells the others, who may be waiting or about to submit.
    #[cold]
    fn lost_by(&self, status: Status) -> Status {
        if status != Status::DEVICE_UNAVAILABLE {
            return status;
        }
        if !self.side.is_lost() {
            // It cannot fail for an opened segment, and the caller has its error already.
            let _told = self.side.segment().declare_worker_lost();
        }
        self.faultless().err().unwrap_or(status)
    }

    /// Blocks with the images, one each, or a single container of more than a command can name.
    pub(crate) fn image_blocks(&self, images: &[&[u8]]) -> Result<Vec<ArenaRef>, Status> {
        /// Twenty bytes per block leave room for this many beside the rest of the command.
        const BLOCKS_MAX: usize = 16;

        let packed;
        let packed: &[&[u8]] = if images.len() > BLOCKS_MAX {
            packed = container::pack(images.iter().copied());
            &[&packed]
        } else {
            images
        };
        let blocks = packed.iter().map(|image| self.block_with(image));
        let blocks = blocks.collect::<Result<Vec<_>, Status>>()?;
        Ok(blocks.into_iter().map(Block::hand_over).collect())
    }

    /// A block of the arena with these bytes.
    pub(crate) fn block_with(&self, bytes: &[u8]) -> Result<Block, Status> {
        let block = self.block(bytes.len())?;
        let copied = block.span().and_then(|span| span.write_from(bytes));
        copied.map(|()| block).map_err(|_| Status::UNKNOWN)
    }

    /// A block of the arena, waiting while it is full.
    pub(crate) fn block(&self, bytes: usize) -> Result<Block, Status> {
        let alive = || self.side.is_alive();
        let block = self.side.arena().alloc(bytes, &Patience::while_alive(&alive));
        block.map_err(|error| match error {
            weft_ring::ArenaError::TooLarge(_) | weft_ring::ArenaError::Full => {
                Status::OUT_OF_MEMORY
            }
            weft_ring::ArenaError::PeerLost => Status::DEVICE_UNAVAILABLE,
        })
    }
}

fn limit(attributes: &BTreeMap<u32, i32>, number: u32, otherwise: u32) -> u32 {
    let stated = attributes.get(&number).and_then(|value| u32::try_from(*value).ok());
    stated.filter(|limit| *limit > 0).unwrap_or(otherwise)
}
