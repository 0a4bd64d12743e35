//! Several tenants of one driver that has less memory than they, which ask for room in their turns
//! and give some back between them. Whoever keeps the account here is the node's core; its limit is
//! its own, the driver's is the driver's.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use weft_sched::VgpuKey;
use weft_sched::memory::{Lending, Room as Answer, Wish};

use super::swap_tests::{DRIVER_BYTES, SLOTS, Tenant};
use super::tests::open_with;
use super::{CHUNK_BYTES, CudaDevice};
use crate::{Device, DeviceError, FrameRun, FrameSource, LocalFrames, MemoryUse, Room, RoomWanted};

const TENANTS: u32 = 4;
const TURNS: usize = 5;
/// Longest wait for anything; only a broken account reaches it.
const DEADLINE: Duration = Duration::from_secs(120);

pub(super) fn all() {
    // Less than the driver has, and more: then it is the driver that says so.
    for capacity in [DRIVER_BYTES - (8 << 20), 2 * DRIVER_BYTES] {
        all_find_their_memory_in_each_turn(capacity);
    }
    what_was_never_used_takes_nothing();
    a_module_gives_its_sessions_other_memory_first();
    what_the_driver_keeps_stays_in_the_account();
    a_save_that_fails_is_tried_again();
    more_than_there_is_is_refused();
}

/// Who has how much.
#[derive(Debug)]
struct Bank {
    lending: Mutex<Lending>,
    changed: Condvar,
}

impl Bank {
    fn new(capacity: u64) -> Arc<Self> {
        let lending = Mutex::new(Lending::new(capacity, u64::MAX));
        Arc::new(Self { lending, changed: Condvar::new() })
    }

    /// A tenant of the driver that this has an account of.
    fn open(self: &Arc<Self>, session: u32) -> CudaDevice {
        self.lending.lock().unwrap().begin(0, session, VgpuKey(session), 0);
        let frames = LocalFrames::new(DRIVER_BYTES);
        let account = Account { bank: Arc::clone(self), session, frames };
        open_with(Box::new(account), DRIVER_BYTES, CHUNK_BYTES, true)
    }

    fn owes(&self, session: u32) -> u64 {
        self.lending.lock().unwrap().owes(session)
    }
}

#[derive(Debug)]
struct Account {
    bank: Arc<Bank>,
    session: u32,
    frames: LocalFrames,
}

impl FrameSource for Account {
    fn take(&mut self, frames: u64) -> Result<Vec<FrameRun>, DeviceError> {
        self.frames.take(frames)
    }

    fn give_back(&mut self, runs: &[FrameRun]) {
        self.frames.give_back(runs);
    }

    fn usage(&self) -> MemoryUse {
        self.frames.usage()
    }

    fn room(&self, wanted: &RoomWanted) -> Room {
        let mut lending = self.bank.lending.lock().unwrap();
        let RoomWanted { bytes, fixed_bytes, missing_bytes, loads, .. } = *wanted;
        let wish = Wish { total: bytes, fixed: fixed_bytes, missing: missing_bytes, gives: loads };
        lending.ask(self.session, wish);
        let deadline = Instant::now() + DEADLINE;
        loop {
            match lending.look(0, self.session, wanted.stands) {
                Answer::Granted => return Room::Granted,
                Answer::Save { bytes } => return Room::Save { bytes },
                Answer::Refused => return Room::Refused,
                Answer::Waits => {}
            }
            assert!(Instant::now() < deadline, "{lending:?}");
            lending = self.bank.changed.wait_timeout(lending, DEADLINE / 1_000).unwrap().0;
        }
    }

    fn holds(&self, bytes: u64, fixed_bytes: u64) {
        self.bank.lending.lock().unwrap().holds(self.session, bytes, fixed_bytes);
        self.bank.changed.notify_all();
    }
}

fn all_find_their_memory_in_each_turn(capacity: u64) {
    let (bank, turn) = (Bank::new(capacity), Mutex::new(()));
    let left = Mutex::new(TENANTS as usize * TURNS);
    let saved = Mutex::new(0);
    std::thread::scope(|scope| {
        for session in 0..TENANTS {
            let (bank, turn, left, saved) = (&bank, &turn, &left, &saved);
            scope.spawn(move || {
                let mut one = Tenant::of(bank.open(session));
                let deadline = Instant::now() + DEADLINE;
                let mut turns = 0;
                while *left.lock().unwrap() > 0 {
                    assert!(Instant::now() < deadline, "tenant {session}: {turns} turns");
                    let owed = bank.owes(session);
                    if owed > 0 {
                        let bytes = one.device.swapping().unwrap().save_some(owed).unwrap();
                        assert!(bytes >= owed, "{bytes} of {owed}");
                        *saved.lock().unwrap() += bytes;
                    }
                    if let (true, Ok(_turn)) = (turns < TURNS, turn.try_lock()) {
                        one.turn(usize::try_from(session).unwrap());
                        turns += 1;
                        *left.lock().unwrap() -= 1;
                    }
                    std::thread::yield_now();
                }
                // All of it is the others' again, who may still look.
                drop(one);
                bank.lending.lock().unwrap().end(session);
            });
        }
    });
    let saved = saved.into_inner().unwrap();
    let lacks = u64::from(TENANTS) * SLOTS as u64 * CHUNK_BYTES - DRIVER_BYTES;
    assert!(saved >= lacks, "{saved} bytes were saved, and {lacks} had no room at once");
    eprintln!("{capacity}: {saved} bytes saved in {} turns", TENANTS as usize * TURNS);
}

/// Memory comes with the first operation, and not before; a word of it is zero until then.
fn what_was_never_used_takes_nothing() {
    let bank = Bank::new(DRIVER_BYTES);
    let (mut first, mut second) = (bank.open(0), bank.open(1));
    let bytes = DRIVER_BYTES - CHUNK_BYTES;
    let [one, other] = [&mut first, &mut second].map(|device| device.alloc(bytes).unwrap());
    assert_eq!(bank.lending.lock().unwrap().held_total(), 0);
    assert_eq!(first.read_word(one + 8, true), Ok(0));
    first.write_word(one + 8, 7, true).unwrap();
    assert_eq!(first.read_word(one + 8, true), Ok(7));
    assert_eq!(second.read_word(other, false), Ok(0));
    assert_eq!(bank.lending.lock().unwrap().held_total(), 0);
    // Who thinks that it has something there is told that it has not.
    bank.lending.lock().unwrap().holds(0, bytes, 0);
    assert_eq!(first.swapping().unwrap().save_some(bytes), Ok(0));
    assert_eq!(bank.lending.lock().unwrap().held(0), 0);
    // Who is to save what it has not comes later, and does not ask again at once.
    bank.lending.lock().unwrap().holds(0, bytes, 0);
    bank.lending.lock().unwrap().ask(1, Wish { total: bytes, ..Wish::default() });
    assert_eq!(bank.lending.lock().unwrap().look(0, 1, true), Answer::Waits);
    assert!(bank.owes(0) > 0);
    let fill = crate::Fill { address: one, pitch: 64, width: 64, height: 1, element: 1, value: 3 };
    let later = first.start(crate::QueueId(1), crate::Op::Fill(fill), None);
    assert_eq!((later, bank.lending.lock().unwrap().held(0)), (Err(DeviceError::QueueFull), 0));
    bank.lending.lock().unwrap().cancel(1);
    first.free(one).unwrap();
    let again = first.alloc(bytes).unwrap();
    assert_eq!(first.read_word(again + 8, true), Ok(0), "nobody finds what another left");
}

/// Variables of a module are the driver's: they stay, and what they need the session's own memory
/// gives, since no operation of it begins.
fn a_module_gives_its_sessions_other_memory_first() {
    let bank = Bank::new(32 << 20);
    let (mut first, mut second) = (bank.open(0), bank.open(1));
    for (device, bytes) in [(&mut first, 16 << 20), (&mut second, 16 << 20)] {
        let address = device.alloc(bytes).unwrap();
        crate::conformance::upload(device, address, vec![7; 16 << 20]);
    }
    let text = ".version 7.0\n.target sm_75\n.address_size 64\n\
        .global .align 4 .b8 table[4194304];\n.entry none() { ret; }\n";
    let loaded = first.load(&[text.as_bytes()]).unwrap();
    let held = |session| bank.lending.lock().unwrap().held(session);
    assert_eq!((held(0), held(1)), (16 << 20, 16 << 20));
    let there: u64 = first.swapping().unwrap().parts().iter().map(|used| used.resident_bytes).sum();
    assert_eq!(there, 12 << 20, "it gave four of its own");
    first.unload(loaded.id);
    assert_eq!(held(0), 12 << 20);
}

/// A driver that refuses, as [`super::driver::Driver::module_unload`].
unsafe extern "C" fn refuses(_module: super::driver::Handle) -> super::driver::Code {
    INVALID_VALUE
}

/// As [`super::driver::Driver::copy_out`].
unsafe extern "C" fn copies_nothing(
    _to: *mut std::ffi::c_void,
    _from: super::driver::Address,
    _bytes: usize,
) -> super::driver::Code {
    INVALID_VALUE
}

/// `CUDA_ERROR_INVALID_VALUE`
const INVALID_VALUE: super::driver::Code = 1;

fn what_the_driver_keeps_stays_in_the_account() {
    let bank = Bank::new(32 << 20);
    let mut device = bank.open(0);
    let text = ".version 7.0\n.target sm_75\n.address_size 64\n\
        .global .align 4 .b8 table[4194304];\n.entry none() { ret; }\n";
    let [first, second] = [(); 2].map(|()| device.load(&[text.as_bytes()]).unwrap().id);
    let account = || {
        let lending = bank.lending.lock().unwrap();
        (lending.held(0), lending.fixed(0))
    };
    assert_eq!(account(), (8 << 20, 8 << 20));
    let unload = std::mem::replace(&mut device.driver.module_unload, refuses);
    device.unload(first);
    device.driver.module_unload = unload;
    device.unload(second);
    assert_eq!(account(), (4 << 20, 4 << 20), "the driver has the first one's yet");
}

/// Who asks for room and cannot save what it owes comes later; no operation of it fails for that.
fn a_save_that_fails_is_tried_again() {
    let bank = Bank::new(32 << 20);
    let (mut first, second) = (bank.open(0), bank.open(1));
    let address = first.alloc(16 << 20).unwrap();
    crate::conformance::upload(&mut first, address, vec![7; 16 << 20]);
    // It needs more, and owes some of what it has.
    let other = first.alloc(4 << 20).unwrap();
    bank.lending.lock().unwrap().ask(1, Wish { total: 24 << 20, ..Wish::default() });
    assert_eq!(bank.lending.lock().unwrap().look(0, 1, true), Answer::Waits);
    let fill = |address| {
        let fill = crate::Fill { address, pitch: 64, width: 64, height: 1, element: 1, value: 3 };
        crate::Op::Fill(fill)
    };
    let copy_out = std::mem::replace(&mut first.driver.copy_out, copies_nothing);
    let later = first.start(crate::QueueId(1), fill(other), None);
    assert_eq!(later, Err(DeviceError::QueueFull));
    assert_eq!((bank.owes(0), bank.lending.lock().unwrap().held(0)), (8 << 20, 16 << 20));
    first.driver.copy_out = copy_out;
    assert_eq!(first.swapping().unwrap().save_some(8 << 20), Ok(8 << 20));
    assert_eq!(bank.lending.lock().unwrap().look(0, 1, true), Answer::Granted);
    drop(second);
    bank.lending.lock().unwrap().end(1);
    let done = crate::conformance::run(&mut first, fill(other)).outcome;
    assert_eq!(done, crate::Outcome::Done);
    let found = crate::conformance::download(&mut first, address, 16 << 20);
    assert!(found.iter().all(|byte| *byte == 7));
}

fn more_than_there_is_is_refused() {
    let bank = Bank::new(8 << 20);
    let mut one = bank.open(0);
    let address = one.alloc(16 << 20).unwrap();
    let fill = crate::Fill { address, pitch: 64, width: 64, height: 1, element: 1, value: 0 };
    let refused = one.start(crate::QueueId(1), crate::Op::Fill(fill), None);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
}
