//! A journal on request: what happens in some seconds, in one file.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::Daemon;
use super::driver::Order;
use super::recorder::{self, Chunk};
use crate::admin::Recording;

/// Longest recording.
const SECONDS_MAX: u32 = 600;

/// Largest recording: some 20 million records.
const BYTES_MAX: u64 = 256 << 20;

/// Recordings so far: each has a name, and 0 is the configured journal's.
static RECORDINGS: AtomicU64 = AtomicU64::new(1);

impl Daemon {
    /// Records for some time, in a file that `caller` may read.
    pub(crate) fn record(&self, seconds: u32, caller: u32) -> anyhow::Result<Recording> {
        ensure!((1..=SECONDS_MAX).contains(&seconds), "a recording takes 1 to {SECONDS_MAX} s");
        let id = RECORDINGS.fetch_add(1, Ordering::Relaxed);
        let path = self.config.sockets.runtime_dir.join(format!("recording-{id}.weftj"));
        let mut options = File::options();
        options.create(true).write(true).truncate(true).mode(0o600);
        let mut file =
            options.open(&path).with_context(|| format!("cannot create {}", path.display()))?;
        if caller != rustix::process::geteuid().as_raw() {
            std::os::unix::fs::fchown(&file, Some(caller), None)
                .with_context(|| format!("cannot give {} to user {caller}", path.display()))?;
        }
        let (chunks, received) = recorder::queue();
        self.driver.send(Order::Record { id, chunks });
        let until = Instant::now() + Duration::from_secs(seconds.into());
        let cut = take(&received, &mut file, until, || {
            self.driver.send(Order::StopRecording { id });
        })?;
        let registry = &self.tables().registry;
        let vgpus = registry.iter().map(|vgpu| (vgpu.key, vgpu.name.clone())).collect();
        Ok(Recording { path: path.display().to_string(), vgpus, cut })
    }
}

/// Writes chunks until the recorder is gone, which `stop` asks for at the end of the time. Whether
/// something is missing.
fn take(
    chunks: &Receiver<Chunk>,
    file: &mut File,
    until: Instant,
    stop: impl Fn(),
) -> std::io::Result<bool> {
    let (mut bytes, mut gap, mut stopped) = (0, false, false);
    loop {
        let left = match stopped {
            // The recorder goes as soon as it hears of it.
            true => Duration::from_secs(5),
            false => until.saturating_duration_since(Instant::now()),
        };
        match chunks.recv_timeout(left) {
            Ok(chunk) => {
                let is_first = bytes == 0;
                gap |= chunk.begins.is_some() && !is_first;
                bytes += chunk.bytes.len() as u64;
                // After a gap another journal begins: this one ends there.
                if !gap {
                    file.write_all(&chunk.bytes)?;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(gap),
            Err(RecvTimeoutError::Timeout) if stopped => return Ok(true),
            Err(RecvTimeoutError::Timeout) => {
                stop();
                stopped = true;
            }
        }
        if (gap || bytes > BYTES_MAX) && !stopped {
            gap = true;
            stop();
            stopped = true;
        }
    }
}
