//! The session goes to another device of its node, when the daemon says so: it stands still, copies
//! its memory, and goes on there with everything else as it was.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use weft_device::{Destination, Device, DeviceError, DevicePage, FrameRun, MovedRun, SwapError};
use weft_gate::ControlPage;
use weft_ring::{Access, MemoryFile};
use weft_turn::Abandoned;

use super::event_loop::{Ended, EventLoop};
use super::link::Handover;
use super::map;
use crate::link::{Ask, Descriptors, DeviceSpec, Passed, Reply};

/// What the other device's memory is made of.
const MEMORY: &[Passed] = &[Passed::DevicePage, Passed::Frames, Passed::Table, Passed::Physical];

/// What has no room on the device is tried again after this time.
const LATER_NS: u64 = 5_000_000;

/// A session that can save nothing of what it is to save asks the same again after this time, at
/// first and at most, and gives up after so long.
const VAIN_PAUSE_MIN: Duration = Duration::from_millis(5);
const VAIN_PAUSE_MAX: Duration = Duration::from_secs(1);
const VAIN_LIMIT: Duration = Duration::from_secs(60);

/// Whether the session is asked to go, and what changes when it does.
#[derive(Debug)]
pub(crate) struct Moving {
    handover: Handover,
    /// Says whose turn it is, for the other device's page.
    turns: ControlPage,
    /// The last request to stand still that was answered.
    answered: u64,
}

impl Moving {
    /// Of a session that stays for now.
    pub(crate) fn new(handover: Handover, turns: ControlPage) -> Self {
        Self { handover, turns, answered: 0 }
    }

    /// What becomes of work in flight when the worker dies.
    pub(crate) fn abandoned(&self) -> Abandoned {
        self.handover.lock().0.device.abandoned()
    }

    /// The next daemon finds the session there.
    fn arrive(&self, device: DeviceSpec, memory: Descriptors) -> u32 {
        let mut handover = self.handover.lock();
        let (start, files) = &mut *handover;
        for (what, fd) in memory.into_parts() {
            files.replace(what, fd);
        }
        start.device = device;
        start.device.key
    }
}

impl<D: Device> EventLoop<D> {
    /// Whether the daemon wants the session to stand still: nothing more is started.
    pub(super) fn is_to_pause(&self) -> bool {
        self.gate.page().pause_asked() != self.moving.answered
    }

    /// Stands still until the daemon says how it goes on. Nothing flies.
    ///
    /// # Errors
    /// [`Ended::Lost`].
    pub(super) fn pause(&mut self) -> Result<(), Ended> {
        self.moving.answered = self.gate.page().pause_asked();
        let works = self.has_work();
        self.give_way();
        let mut has_told = false;
        let (reply, fds) = loop {
            // What is over has been noticed by the caller.
            let Ok((reply, fds)) = self.link.ask_for_files(&Ask::Paused { works }) else {
                return Ok(());
            };
            let Reply::Save { bytes } = reply else { break (reply, fds) };
            // Asked for nothing it has said what it has, and is told what it is to stand still for.
            let tells = bytes == 0 && !std::mem::replace(&mut has_told, true);
            if self.save(bytes)? == 0 && !tells {
                // It goes on, and tries again when it is told to stand still once more; whoever
                // waits for its memory has it ended in time.
                return Ok(());
            }
        };
        let Reply::Move { device, frames, passed } = reply else { return Ok(()) };
        let copied = self.copy_to(&device, frames, &passed, fds);
        let failure = copied.as_ref().err().map(|error| format!("{error:#}"));
        let goes = self.link.ask(&Ask::Copied { failure }) == Ok(Reply::Switch);
        self.session.device_mut().end_move(goes);
        if let (true, Ok(memory)) = (goes, copied) {
            let device = self.moving.arrive(*device, memory);
            // A daemon that does not answer has died; the next one is told the same.
            let _ = self.link.ask(&Ask::Moved { device });
        }
        Ok(())
    }

    /// An operation cannot begin yet. If nothing flies, its session's memory has no room on the
    /// device: the turn is for others.
    pub(super) fn come_later(&mut self) {
        if !self.is_busy() {
            self.give_way();
            self.room_at_ns = Some(self.session.device().now_ns() + LATER_NS);
        }
    }

    /// Asks something that the daemon may want memory of the device for before: if that cannot be
    /// given for long, [`Reply::Exhausted`]; nothing if the session is over.
    pub(super) fn ask_saving(&mut self, ask: &Ask) -> Option<Reply> {
        let (mut vain_since, mut pause) = (None, VAIN_PAUSE_MIN);
        loop {
            let reply = self.link.ask(ask).ok()?;
            let Reply::Save { bytes } = reply else { return Some(reply) };
            if self.save(bytes).ok()? > 0 {
                (vain_since, pause) = (None, VAIN_PAUSE_MIN);
                continue;
            }
            if vain_since.get_or_insert_with(Instant::now).elapsed() >= VAIN_LIMIT {
                return Some(Reply::Exhausted);
            }
            thread::sleep(pause);
            pause = (2 * pause).min(VAIN_PAUSE_MAX);
        }
    }

    /// Gives so much of the device's memory to others, or all; the bytes that were given.
    fn save(&mut self, bytes: u64) -> Result<u64, Ended> {
        let Some(swapping) = self.session.device_mut().swapping() else { return Ok(0) };
        match swapping.save_some(bytes) {
            Ok(saved) => Ok(saved),
            Err(SwapError { error: DeviceError::Lost(reason), .. }) => {
                tracing::error!(reason, "a lost device gives its memory back with its worker");
                Err(Ended::Lost)
            }
            Err(error) => {
                tracing::error!(%error, bytes, "memory is not given back");
                Ok(0)
            }
        }
    }

    /// Copies the session's memory; what the next daemon needs of the other device.
    fn copy_to(
        &mut self,
        device: &DeviceSpec,
        frames: u64,
        passed: &[Passed],
        fds: Vec<OwnedFd>,
    ) -> anyhow::Result<Descriptors> {
        let mut files = Descriptors::received(passed, fds)?;
        let kept = files.copies(MEMORY)?;
        let page = DevicePage::open(&map(files.take(Passed::DevicePage)?, Access::ReadWrite)?)?;
        let turns = self.moving.turns.clone();
        let to = Destination {
            backend: device.backend.clone(),
            page: page.with_turns(move || turns.turn(), super::doubt_page),
            frames: MemoryFile::trusted(files.take(Passed::Frames)?)?,
            table: map(files.take(Passed::Table)?, Access::ReadOnly)?,
            physical: map(files.take(Passed::Physical)?, Access::ReadOnly)?,
            geometry: device.geometry,
            moved: moved_runs(files.take(Passed::Moved)?, frames)?,
        };
        self.session.device_mut().begin_move(to).context("copying its memory")?;
        Ok(kept)
    }
}

/// The list of frames that the daemon wrote.
fn moved_runs(file: OwnedFd, count: u64) -> anyhow::Result<Vec<MovedRun>> {
    let memory = map(file, Access::ReadOnly)?;
    let bytes = usize::try_from(count)?.checked_mul(24).context("so many runs")?;
    let bytes = memory.span(0, bytes)?.to_vec();
    let (words, []) = bytes.as_chunks::<8>() else { bail!("the list ends in the middle") };
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (runs, _) = words.as_chunks::<3>();
    let run = |[first, count, to]: &[u64; 3]| {
        let from = FrameRun { first: *first, count: *count };
        MovedRun { from, to: *to }
    };
    Ok(runs.iter().map(run).collect())
}
