//! A hostile tenant's commands against a session on the software device.
//!
//! An input is a list of records. A record's first byte says what it is: a command (its length in
//! two bytes, then its bytes), bytes for the arena (offset, length, bytes), or a turn of the
//! worker's loop. The fuzz target `exec_commands` and the replay of its corpus both call
//! [`attack`].
#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a harness may panic, and it is included elsewhere"
)]

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use weft_device::soft::{Clock, SoftDevice};
use weft_exec::{
    Accepted, Caller, Cut, Finished, Limits, Output, Session, Shared, Started, Violation,
};
use weft_ring::SharedMemory;
use weft_wire::command::Block;
use weft_wire::id::{ContextId, EventId, ModuleId, StreamId};
use weft_wire::{Command, Status, progress};

pub const ARENA_BYTES: usize = 1 << 16;
pub const ARENA_BLOCKS: u32 = 256;
/// Where a tenant's pinned window claims to be.
pub const PINNED_BASE: u64 = 1 << 44;
/// First device address.
pub const DEVICE_BASE: u64 = 1 << 40;
const DEVICE_BYTES: u64 = 16 << 20;

pub const CONTEXT: ContextId = ContextId { index: 0, generation: 1 };
pub const MODULE: ModuleId = ModuleId { index: 0, generation: 1 };

/// Kinds of records.
pub const COMMAND: u8 = 0;
pub const ARENA: u8 = 1;
pub const TURN: u8 = 2;

pub const PTX: &[u8] = br#"
.version 6.4
.target sm_75
.address_size 64
.global .u32 counter;
.visible .entry touch(.param .u64 at, .param .u64 value)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [value];
    st.global.u64 [%rd1], %rd2;
    ret;
}
.visible .entry spin()
{
LOOP:
    bra LOOP;
}
"#;

#[derive(Default)]
struct Tenant {
    waiting: BTreeSet<u64>,
}

impl Output for Tenant {
    fn reply(&mut self, caller: Caller, _status: Status, body: &[u8]) {
        assert!(self.waiting.remove(&caller.0), "caller {} was answered twice", caller.0);
        assert!(body.len() <= 4096, "an answer of {} bytes", body.len());
    }
    fn progress(&mut self, word: u32, _value: u64) {
        assert!(word < progress::WORDS);
    }
    fn notice(&mut self, _word: u32, _value: u64) {}
    fn release(&mut self, word: u32) {
        assert!(word < ARENA_BLOCKS);
    }
    fn finished(&mut self, finished: &Finished) {
        assert!(finished.start_ns <= finished.end_ns);
    }
}

struct Attack {
    session: Session<SoftDevice>,
    tenant: Tenant,
    shared: Shared,
    calls: u64,
}

impl Attack {
    fn new() -> Self {
        let device = SoftDevice::local(DEVICE_BYTES, DEVICE_BASE, 1 << 30, Clock::Real).unwrap();
        let arena = SharedMemory::anonymous(ARENA_BYTES).unwrap();
        let pinned = SharedMemory::anonymous(1 << 16).unwrap();
        let (all, window) = (arena.span(0, arena.len()), pinned.span(0, pinned.len()));
        let shared = Shared::new(all.unwrap(), ARENA_BLOCKS, window.unwrap(), PINNED_BASE);
        let limits = Limits {
            stream_depth: 64,
            depth: 256,
            waits: 64,
            kernel_ns: NonZeroU64::new(2_000_000),
            ..Limits::default()
        };
        let session = Session::new(device, shared.clone(), limits);
        Self { session, tenant: Tenant::default(), shared, calls: 0 }
    }

    fn offer(&mut self, command: &Command<'_>) -> Result<Accepted, Violation> {
        self.calls += 1;
        let caller = command.is_sync().then_some(Caller(self.calls));
        if caller.is_some() {
            self.tenant.waiting.insert(self.calls);
        }
        let accepted = self.session.accept(command, caller, &mut self.tenant)?;
        if accepted == Accepted::Full {
            self.tenant.waiting.remove(&self.calls);
        }
        Ok(accepted)
    }

    fn set_up(&mut self) {
        self.shared.arena.write_from(PTX).unwrap();
        let images = vec![Block { offset: 0, bytes: PTX.len() as u64, release: 0 }];
        let answer = Block { offset: 4096, bytes: 4096, release: 1 };
        let load = Command::ModuleLoad { context: CONTEXT, module: MODULE, images, answer };
        let create = |index| Command::StreamCreate {
            context: CONTEXT,
            stream: StreamId { index, generation: 1 },
            blocking: index == 1,
            priority: 0,
        };
        let event =
            Command::EventCreate { context: CONTEXT, event: EventId { index: 0, generation: 1 } };
        let alloc = Command::MemAlloc { context: CONTEXT, bytes: 8192 };
        let context = Command::ContextCreate { context: CONTEXT };
        for command in [context, load, create(1), create(2), event, alloc] {
            assert_eq!(self.offer(&command), Ok(Accepted::Taken), "{command:?}");
        }
        assert!(self.tenant.waiting.is_empty());
    }

    fn turn(&mut self, how: u8) {
        let limit = (how & 1 == 1).then(|| 1000 * u64::from(how));
        let limit = limit.map(|most| Cut { after_ns: most, after_bytes: most });
        for _ in 0..how % 8 {
            match self.session.start_next(limit, true, &mut self.tenant) {
                Started::Flying | Started::Open | Started::Dropped => {}
                Started::NotNow => break,
            }
        }
        self.session.drive(u64::from(how) * 1000, &mut self.tenant);
    }
}

/// Takes `count` bytes off the front; as many as there are.
fn take<'a>(data: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, rest) = data.split_at(count.min(data.len()));
    *data = rest;
    head
}

fn number(data: &mut &[u8]) -> usize {
    take(data, 2).iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Plays an input. Panics when the session does what it must not.
pub fn attack(mut data: &[u8]) {
    let mut attack = Attack::new();
    attack.set_up();
    while let [kind, rest @ ..] = data {
        data = rest;
        match kind % 3 {
            COMMAND => {
                let length = number(&mut data);
                let bytes = take(&mut data, length);
                let Ok(command) = Command::decode(bytes) else { continue };
                if attack.offer(&command).is_err() {
                    return;
                }
            }
            ARENA => {
                let (offset, length) = (number(&mut data), number(&mut data));
                let bytes = take(&mut data, length);
                // What lies outside is not there to be written.
                let _ = attack.shared.arena.write_at(offset, bytes);
            }
            _ => attack.turn(take(&mut data, 1).first().copied().unwrap_or(0)),
        }
    }
}
