//! A way to a gateway that takes longer than it does: every byte is passed on so much later, and as
//! many are on their way at once as before. For benchmarks and tests.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// What is read at once.
const CHUNK: usize = 16 << 10;

/// As much as this is on its way in each direction: four times what a session may have there.
const CHUNKS_MAX: usize = (16 << 20) / CHUNK;

/// Bytes, and when they are due.
type Late = (Instant, Vec<u8>);

/// Listens on loopback and passes on what comes, both ways, so much later, until the process ends;
/// returns where.
///
/// # Errors
/// The system's, when there is nowhere to listen.
pub fn to(gateway: String, by: Duration) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for near in listener.incoming() {
            // Whoever came finds out when the connection is closed without a word.
            let _ = near.and_then(|near| relay(&near, &TcpStream::connect(&gateway)?, by));
        }
    });
    Ok(address)
}

fn relay(near: &TcpStream, far: &TcpStream, by: Duration) -> std::io::Result<()> {
    for stream in [near, far] {
        stream.set_nodelay(true)?;
    }
    for (from, to) in [(near, far), (far, near)] {
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let (sender, late) = sync_channel(CHUNKS_MAX);
        thread::spawn(move || pass_on(&late, to));
        thread::spawn(move || take(from, by, &sender));
    }
    Ok(())
}

fn take(mut from: TcpStream, by: Duration, sender: &SyncSender<Late>) {
    let mut bytes = [0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let read = bytes.get(..count).unwrap_or_default();
        if sender.send((Instant::now() + by, read.to_vec())).is_err() {
            return;
        }
    }
}

fn pass_on(late: &Receiver<Late>, mut to: TcpStream) {
    while let Ok((due, bytes)) = late.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
    // The other end has gone.
    let _ = to.shutdown(Shutdown::Both);
}
