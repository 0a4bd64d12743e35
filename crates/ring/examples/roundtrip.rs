//! What crossing the ring costs, between two processes: `cargo run --release --example roundtrip`.

use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weft_ring::{Access, ClientOptions, ClientSide, MemoryFile, SPIN, Segment, WorkerSide, peer};

const CALLS: usize = 200_000;
const SUBMISSIONS: usize = 2_000_000;
/// Submissions between two synchronous calls: they fit into a lane.
const BATCH: usize = 400;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return work();
    }
    let (own, theirs) = peer::pair()?;
    let mut child =
        Command::new(std::env::current_exe()?).arg("worker").stdin(Stdio::from(theirs)).spawn()?;
    let file = Segment::create(1 << 20)?;
    peer::send(&own, b"segment", &[file.as_fd()])?;
    let segment = Segment::open(file.map(Access::ReadWrite)?)?;
    let client = ClientSide::open(segment, ClientOptions::default(), Box::new(|| true))?;
    let mut out = std::io::stdout();
    for len in [16, 56, 128, 512] {
        let mut times = round_trips(&client, len)?;
        times.sort_unstable();
        let at = |per_mille: usize| times[times.len() * per_mille / 1000];
        writeln!(out, "call {len:>3} B: p50 {:?}, p99 {:?}", at(500), at(990))?;
        writeln!(out, "submit {len:>3} B: {:?} each", submissions(&client, len)?)?;
    }
    client.segment().declare_worker_lost()?;
    client.segment().doorbell()?.wake();
    child.wait()?;
    Ok(())
}

fn round_trips(client: &ClientSide, len: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    let (command, mut answer) = (vec![1; len], [0; 64]);
    (0..CALLS)
        .map(|_| {
            let start = Instant::now();
            client.call(&command, &mut answer)?;
            Ok(start.elapsed())
        })
        .collect()
}

/// The client's own time per submission, while the lane has room.
fn submissions(client: &ClientSide, len: usize) -> Result<Duration, Box<dyn Error>> {
    let (command, mut answer) = (vec![2; len], [0; 64]);
    let batch = BATCH.min(BATCH * 56 / len.max(56));
    let mut spent = Duration::ZERO;
    let mut sent = 0;
    while sent < SUBMISSIONS {
        let start = Instant::now();
        for _ in 0..batch {
            client.submit(&command)?;
        }
        spent += start.elapsed();
        sent += batch;
        client.call(&command, &mut answer)?;
    }
    Ok(spent / u32::try_from(sent)?)
}

fn work() -> Result<(), Box<dyn Error>> {
    let message = peer::receive(std::io::stdin(), 64)?.ok_or("no segment")?;
    let file = message.descriptors.into_iter().next().ok_or("no segment")?;
    let memory = MemoryFile::received(file)?.map(Access::ReadWrite)?;
    let mut worker = WorkerSide::open(Segment::open(memory)?)?;
    loop {
        let Some(record) = worker.take()? else {
            if worker.segment().is_worker_lost()? || peer::has_hung_up(std::io::stdin()) {
                return Ok(());
            }
            worker.wait(SPIN, Some(Duration::from_millis(50)), || None::<()>).ok();
            continue;
        };
        if let Some(answer) = record.answer {
            worker.complete(answer, 0, &[0; 16])?;
        }
    }
}
