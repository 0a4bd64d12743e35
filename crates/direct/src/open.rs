//! What a node daemon does for a tenant who attaches, without the daemon.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use weft_device::{Device, DeviceError, PAGE};
use weft_exec::{Limits, Session, Shared};
use weft_ring::{
    ARENA_BLOCKS, ARENA_BYTES, Access, MapError, MemoryFile, Segment, SegmentError, SharedMemory,
    WorkerSide,
};
use weft_wire::handshake::{Attribute, Hello, HelloBody, Welcome};

use crate::device::{DirectSpecError, or_default};
use crate::direct::Direct;

/// Pinned memory granted at most.
const WINDOW_BYTES_MAX: u64 = 64 << 30;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device is not understood.
    #[error(transparent)]
    Spec(#[from] DirectSpecError),
    /// Shared memory could not be had.
    #[error("no shared memory: {0}")]
    Memory(#[from] MapError),
    /// The segment could not be had.
    #[error("no segment: {0}")]
    Segment(#[from] SegmentError),
    /// The device could not be set up.
    #[error("no device: {0}")]
    Device(#[from] DeviceError),
    /// No thread could be had.
    #[error("no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The file on which the device is to keep its totals cannot be used.
    #[error("WEFT_DIRECT_PAGE={}: {source}", .file.display())]
    Page {
        /// Its path.
        file: PathBuf,
        /// What is wrong with it.
        #[source]
        source: MapError,
    },
    /// The hello makes no sense.
    #[error("the client's hello makes no sense: {0}")]
    Hello(&'static str),
}

/// A session and what its client gets of it.
#[derive(Debug)]
pub struct Opened<D> {
    /// The session.
    pub direct: Direct<D>,
    /// What the vGPU is.
    pub welcome: Welcome,
    /// The segment's memory file.
    pub segment: OwnedFd,
    /// The pinned window's.
    pub pinned: OwnedFd,
}

/// What a device is built from.
#[derive(Debug)]
pub struct Ground {
    /// First device address.
    pub device_base: u64,
    /// Bytes of device addresses.
    pub device_bytes: u64,
    /// Memory asked for, in bytes; 0 for the default.
    pub memory_bytes: u64,
    /// Address that the pinned window has for the program.
    pub pinned_base: u64,
    /// The pinned window, and behind it what managed memory may have.
    pub pinned: Arc<SharedMemory>,
    /// Bytes that it may have.
    pub managed_bytes: u64,
}

/// Opens a session for a client on the device that `build` makes.
///
/// # Errors
/// [`OpenError`].
pub fn open<D, B>(hello: &Hello, build: B) -> Result<Opened<D>, OpenError>
where
    D: Device + Send + 'static,
    B: FnOnce(Ground) -> Result<D, OpenError>,
{
    let body = &hello.body;
    check(body)?;
    let segment_file = Segment::create(ARENA_BYTES)?;
    let segment = Segment::open(segment_file.map(Access::ReadWrite)?)?;
    let memory_bytes = or_default(body.memory_bytes);
    let window_bytes = body.pinned_bytes.min(WINDOW_BYTES_MAX);
    let managed_bytes = memory_bytes.min(window_bytes / 2) / PAGE * PAGE;
    let window_bytes = usize::try_from(window_bytes);
    let window_bytes =
        window_bytes.map_err(|_| OpenError::Hello("the pinned window is too large"))?;
    let pinned_file = MemoryFile::create("weft-pinned", window_bytes)?;
    // The client maps the window at the address that it reserved; this is a second view of it.
    let pinned = pinned_file.map(Access::ReadWrite)?;
    let device = build(Ground {
        device_base: body.device_base,
        device_bytes: body.device_bytes,
        memory_bytes: body.memory_bytes,
        pinned_base: body.pinned_base,
        pinned: Arc::clone(&pinned),
        managed_bytes,
    })?;
    // A device without managed memory of its own has a longer window.
    let managed_bytes = if device.info().capabilities.managed { managed_bytes } else { 0 };
    let welcome = welcome(&device, pinned.len() as u64, managed_bytes);
    let shared = shared(&segment, &pinned, body.pinned_base)?;
    let side = WorkerSide::open(segment)?;
    let direct = Direct::new(Session::new(device, shared, Limits::default()), side)?;
    Ok(Opened { direct, welcome, segment: segment_file.into(), pinned: pinned_file.into() })
}

fn check(body: &HelloBody) -> Result<(), OpenError> {
    if body.device_bytes == 0 || body.pinned_bytes == 0 {
        return Err(OpenError::Hello("an address range is empty"));
    }
    let ends = [
        body.device_base.checked_add(body.device_bytes),
        body.pinned_base.checked_add(body.pinned_bytes),
    ];
    if ends.contains(&None) {
        return Err(OpenError::Hello("an address range wraps around"));
    }
    Ok(())
}

fn shared(
    segment: &Segment,
    pinned: &Arc<SharedMemory>,
    pinned_base: u64,
) -> Result<Shared, OpenError> {
    let memory = segment.memory();
    let arena_offset = Segment::size(0);
    let arena = memory.span(arena_offset, memory.len().saturating_sub(arena_offset))?;
    Ok(Shared::new(arena, ARENA_BLOCKS, pinned.span(0, pinned.len())?, pinned_base))
}

fn welcome(device: &impl Device, window_bytes: u64, managed_bytes: u64) -> Welcome {
    let info = device.info();
    let (capability_major, capability_minor) = info.compute_capability;
    let attribute = |(number, value): (&u32, &i32)| Attribute { number: *number, value: *value };
    Welcome {
        session: 1,
        vgpu: "direct".to_owned(),
        device_name: info.name.clone(),
        uuid: info.uuid,
        capability_major,
        capability_minor,
        memory_bytes: device.memory_use().total,
        pinned_bytes: window_bytes - managed_bytes,
        managed_bytes,
        attributes: info.attributes.iter().map(attribute).collect(),
        placement: None,
    }
}
