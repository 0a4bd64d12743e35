//! Shared memory: moves bytes between a client and its worker and knows no messages.
//!
//! The daemon creates a session's [`Segment`] in a sealed memory file and passes it to both sides.
//! Any thread of the client submits commands through its own lane; the worker takes them in the
//! order of their tickets and answers synchronous ones in any order. While both sides are busy
//! nothing enters the kernel: each polls for a bounded time and only then sleeps on a flag
//! ([`wait`]).
//!
//! ```
//! use weft_ring::{ClientOptions, ClientSide, Segment, WorkerSide};
//!
//! // The daemon creates the memory; each side maps it.
//! let file = Segment::create(1 << 20)?;
//! let for_client = Segment::open(file.map(weft_ring::Access::ReadWrite)?)?;
//! let for_worker = Segment::open(file.map(weft_ring::Access::ReadWrite)?)?;
//!
//! let worker = std::thread::spawn(move || {
//!     let mut worker = WorkerSide::open(for_worker).unwrap();
//!     let mut executed = Vec::new();
//!     loop {
//!         let Some(record) = worker.take().unwrap() else {
//!             worker.wait(weft_ring::SPIN, None, || None::<()>).unwrap();
//!             continue;
//!         };
//!         executed.push(record.bytes.to_vec());
//!         if let Some(answer) = record.answer {
//!             worker.complete(answer, 0, b"done").unwrap();
//!             return executed;
//!         }
//!     }
//! });
//!
//! let client = ClientSide::open(for_client, ClientOptions::default(), Box::new(|| true))?;
//! client.submit(b"launch")?;
//! let mut bytes = [0; 16];
//! let answer = client.call(b"synchronise", &mut bytes)?;
//! assert_eq!((answer.status, &bytes[..answer.len]), (0, &b"done"[..]));
//! assert_eq!(worker.join().unwrap(), [&b"launch"[..], b"synchronise"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`duty`] and [`lending`] are how threads of a relay share their work: here because loom models
//! them with what they wait for.
//!
//! All `unsafe` code that touches shared memory lies here. Words that both sides touch are atomics
//! ([`Cells`]); bulk bytes are copied in and out of [`SharedSpan`]s. A hostile peer can write
//! anything at any time: the worker then sees a [`Violation`] or garbage bytes in its private copy,
//! nothing else.

#[cfg(not(target_os = "linux"))]
compile_error!("weft-ring needs Linux: memory files, seals and futexes");

mod answer;
mod cells;
pub mod duty;
mod lane;
mod lanes;
pub mod lending;
mod lock;
#[cfg(all(loom, test))]
mod models;
mod sync;
pub mod wait;
mod wait_page;

#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
pub mod bell;
#[cfg(not(loom))]
mod callers;
#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod map;
#[cfg(not(any(loom, miri)))]
mod overlay;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
pub mod peer;
#[cfg(not(loom))]
pub mod place;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
pub mod priority;
#[cfg(not(loom))]
mod processors;
#[cfg(not(loom))]
mod ranges;
#[cfg(not(loom))]
pub mod relay;
#[cfg(not(loom))]
mod segment;
mod serial;
#[cfg(not(loom))]
mod span;
mod streaming;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
mod window;
#[cfg(not(loom))]
mod worker;

pub use answer::{ANSWER_SLOTS, Answer, AnswerTooLong, MAX_ANSWER};
pub use cells::{Cell, Cells};
pub use lane::{AnswerTo, LANE_SLOTS, MAX_COMMAND, Violation};
pub use lanes::Record;
pub use lock::{PARTICIPANTS, Standing, TURNSTILE_BYTES, Turnstile};
pub use sync::{AtomicU32, AtomicU64, Ordering, fence};
pub use wait::{Patience, SPIN, Unready, WakeFlag};
pub use wait_page::WaitPage;

#[cfg(not(loom))]
pub use sys::processor;
#[cfg(not(loom))]
pub use {
    arena::{Arena, ArenaError, ArenaRef, Block, WorkerArena},
    bell::Bell,
    callers::{Callers, Waking},
    cells::{ReadCells, Word},
    client::{CallError, ClientOptions, ClientSide},
    fork::ForkGuard,
    map::{Access, MapError, MemoryFile, PAGE, Reservation, SharedMemory},
    relay::{RelayIn, RelayOut},
    segment::{
        ARENA_BLOCKS, ARENA_BYTES, LANES, LAYOUT_VERSION, Loss, NOTICE_WORDS, PROGRESS_WORDS,
        Segment, SegmentError,
    },
    span::SharedSpan,
    window::Window,
    worker::{Replies, Wake, WorkerSide},
};

#[cfg(not(any(loom, miri)))]
pub use overlay::{Overlay, OverlayError};
