//! What the network and the TLS library do alone on this host, or in a machine: the baselines of
//! `weft bench`. Nothing of the relay is used here but its keys.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ring::signature::Ed25519KeyPair;
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use crate::tls::{Identity, client_config};

/// Bytes of an echoed message: about a command and an answer.
const MESSAGE: usize = 64;
/// Messages before counting, and counted.
const WARM: usize = 2000;
const ECHOES: usize = 20_000;
/// Bytes of a bulk transfer, those of one where processors are interpreted, and how often it is
/// done.
const BULK: usize = 256 << 20;
const BULK_INTERPRETED: usize = 16 << 20;
const REPEATS: usize = 5;
/// Bytes that are handed to the library at once.
const CHUNK: usize = 64 << 10;

/// The figures.
#[derive(Debug)]
pub struct Figures {
    /// Round trip of a message over TCP between two threads that block, in µs.
    pub echo_us_p50: f64,
    /// Bytes that TCP moves from one thread to another, in GB/s.
    pub tcp_gb_per_s: f64,
    /// What TLS moves.
    pub tls: Option<Tls>,
}

/// What the TLS library moves from one thread to another.
#[derive(Debug)]
pub struct Tls {
    /// Of the same 64 KiB again and again, which stay in the processors' caches, in GB/s.
    pub gb_per_s: f64,
    /// How many processors that keeps busy.
    pub processors: f64,
    /// From 256 MiB of memory to others, in GB/s.
    pub memory_gb_per_s: f64,
}

/// Measures; TCP alone and with less, if it is `plain`.
///
/// # Errors
/// The system's or TLS's.
pub fn run(plain: bool) -> Result<Figures> {
    Ok(Figures {
        echo_us_p50: echo()?,
        tcp_gb_per_s: tcp(if plain { BULK_INTERPRETED } else { BULK })?,
        tls: if plain { None } else { Some(tls()?) },
    })
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn echo() -> Result<f64> {
    let (mut one, mut other) = pair()?;
    let echoing = thread::spawn(move || {
        let mut message = [0; MESSAGE];
        while other.read_exact(&mut message).is_ok() && other.write_all(&message).is_ok() {}
    });
    let mut times = Vec::with_capacity(ECHOES);
    let mut message = [7; MESSAGE];
    for number in 0..WARM + ECHOES {
        message.fill(u8::try_from(number % 251)?);
        let (sent, began) = (message, Instant::now());
        one.write_all(&message)?;
        one.read_exact(&mut message)?;
        if number >= WARM {
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        ensure!(message == sent, "the echo is another message");
    }
    drop(one);
    echoing.join().map_err(|_| anyhow::anyhow!("the echo ended"))?;
    Ok(median(times))
}

fn tcp(bytes: usize) -> Result<f64> {
    let (one, other) = pair()?;
    bulk(one, other, bytes, CHUNK)
}

fn tls() -> Result<Tls> {
    let (began, had) = (Instant::now(), processor_time());
    let gb_per_s = tls_bulk(CHUNK)?;
    let processors = (processor_time() - had).as_secs_f64() / began.elapsed().as_secs_f64();
    Ok(Tls { gb_per_s, processors, memory_gb_per_s: tls_bulk(BULK)? })
}

/// What all threads of this process have had.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn tls_bulk(span: usize) -> Result<f64> {
    let made = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new());
    let made = made.map_err(|_| anyhow::anyhow!("no key could be made"))?;
    let identity = Identity::from_pkcs8(made.as_ref())?;
    let (one, other) = pair()?;
    let server = ServerConnection::new(identity.server_config()?)?;
    let client = client_config(identity.digest(), false)?;
    let client = ClientConnection::new(client, ServerName::try_from("weft").context("a name")?)?;
    bulk(StreamOwned::new(client, one), StreamOwned::new(server, other), BULK, span)
}

/// The rate at which so many bytes go from one to the other, out of and into a memory of `span`
/// bytes that is gone through again and again; both multiples of [`CHUNK`].
fn bulk(
    mut one: impl Read + Write,
    mut other: impl Read + Write + Send + 'static,
    bytes: usize,
    span: usize,
) -> Result<f64> {
    let receiving = thread::spawn(move || -> Result<()> {
        let mut memory = vec![1; span];
        for _ in 0..REPEATS {
            let mut at = 0;
            while at < bytes {
                let (start, room) = (at % span, CHUNK - at % CHUNK);
                let part = memory.get_mut(start..start + room).unwrap_or_default();
                let count = other.read(part)?;
                ensure!(count > 0, "the transfer ended early");
                at += count;
            }
            other.write_all(&[1])?;
            other.flush()?;
        }
        Ok(())
    });
    let memory = vec![5; span];
    let mut rates = Vec::new();
    for _ in 0..REPEATS {
        let began = Instant::now();
        for chunk in memory.chunks(CHUNK).cycle().take(bytes / CHUNK) {
            one.write_all(chunk)?;
        }
        one.flush()?;
        one.read_exact(&mut [0])?;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        rates.push(bytes as f64 / began.elapsed().as_secs_f64() / 1e9);
    }
    receiving.join().map_err(|_| anyhow::anyhow!("the receiver ended"))??;
    Ok(median(rates))
}
