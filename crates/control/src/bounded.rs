//! A listener with a bound: so many connections at once, of which those that say least give way.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep};

/// Connections at once: half of the descriptors that a process has if nobody says otherwise.
pub const CONNECTIONS_MAX: usize = 512;

/// A connection on which nothing comes or goes is closed: longer than a request may take.
pub const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// One on which nothing has ever come is closed after this time.
const FIRST_LIMIT: Duration = Duration::from_secs(10);

/// Out of descriptors, for a while.
const PAUSE: Duration = Duration::from_millis(10);

/// A listener with room for so many at once. When there is none, one of the address that has most
/// is closed for a newcomer: one that has said nothing yet, else one that has had its answer, else
/// any, and of those the one that has been silent longest.
#[derive(Debug)]
pub struct Bounded {
    listener: TcpListener,
    places: Arc<Places>,
    room: usize,
    idle: Duration,
}

/// In the order in which they give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    SaidNothing,
    HadItsAnswer,
    Asks,
}

#[derive(Debug)]
struct Place {
    from: IpAddr,
    phase: Phase,
    since: Instant,
    /// The connection is closed when this is dropped.
    _holds: oneshot::Sender<()>,
}

/// The connections there are, by number.
#[derive(Debug, Default)]
struct Places {
    all: Mutex<BTreeMap<u64, Place>>,
    next: AtomicU64,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Place>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a newcomer; its number, and what ends when it must go.
    fn take(&self, from: IpAddr, room: usize) -> (u64, oneshot::Receiver<()>) {
        let mut places = self.lock();
        if places.len() >= room {
            let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
            for place in places.values() {
                *of_address.entry(place.from).or_default() += 1;
            }
            let most = of_address.values().copied().max();
            let in_crowd = |place: &Place| of_address.get(&place.from).copied() == most;
            let crowd = places.iter().filter(|(_, place)| in_crowd(place));
            let first = crowd.min_by_key(|(_, place)| (place.phase, place.since));
            if let Some(number) = first.map(|(number, _)| *number) {
                places.remove(&number);
            }
        }
        let (holds, held) = oneshot::channel();
        // One that gave way keeps its number until it has ended.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let since = Instant::now();
        places.insert(number, Place { from, phase: Phase::SaidNothing, since, _holds: holds });
        (number, held)
    }

    fn note(&self, number: u64, phase: Phase) {
        if let Some(place) = self.lock().get_mut(&number) {
            (place.phase, place.since) = (phase, Instant::now());
        }
    }
}

impl Bounded {
    /// With so many places.
    #[must_use]
    pub fn new(listener: TcpListener, connections: usize, idle: Duration) -> Self {
        Self { listener, places: Arc::default(), room: connections.max(1), idle }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // What has come on those that were taken last is read before another gets a place of
        // theirs: their tasks look once, and once more when the system has told what there is.
        for _ in 0..2 {
            yield_now().await;
        }
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let (number, held) = self.places.take(address.ip(), self.room);
                    let timer = Box::pin(sleep(self.idle.min(FIRST_LIMIT)));
                    let (places, idle) = (Arc::clone(&self.places), self.idle);
                    let is_greeting = false;
                    let connection =
                        Connection { stream, timer, idle, held, places, number, is_greeting };
                    return (connection, address);
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that has a place.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    timer: Pin<Box<Sleep>>,
    idle: Duration,
    held: oneshot::Receiver<()>,
    places: Arc<Places>,
    number: u64,
    is_greeting: bool,
}

impl Connection {
    /// What comes and goes from here on is a greeting, by which nothing is said yet, or is not.
    pub(crate) fn set_greeting(&mut self, is_greeting: bool) {
        self.is_greeting = is_greeting;
    }

    /// What came of reading or writing; an error if nothing has for too long, or the place went to
    /// another.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
        phase: Phase,
    ) -> Poll<io::Result<T>> {
        if Pin::new(&mut self.held).poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match polled {
            Poll::Ready(done) if self.is_greeting => match self.timer.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Ready(done),
            },
            Poll::Ready(done) => {
                let end = Instant::now() + self.idle;
                self.timer.as_mut().reset(end);
                self.places.note(self.number, phase);
                Poll::Ready(done)
            }
            Poll::Pending => match self.timer.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.places.lock().remove(&self.number);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(context, polled, Phase::Asks)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, polled, Phase::HadItsAnswer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
