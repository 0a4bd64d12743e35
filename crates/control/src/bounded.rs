//! A listener with a bound: so many connections at once, and none that nothing is said on.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at once. More wait to be taken, as long as the system lets them.
pub const CONNECTIONS_MAX: usize = 1_024;

/// A connection on which nothing comes or goes is closed: longer than a request may take.
pub const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// Out of descriptors, for a while.
const PAUSE: Duration = Duration::from_millis(10);

/// A listener that takes no more than so many at once.
#[derive(Debug)]
pub struct Bounded {
    listener: TcpListener,
    room: Arc<Semaphore>,
    idle: Duration,
}

impl Bounded {
    /// With so many places.
    #[must_use]
    pub fn new(listener: TcpListener, connections: usize, idle: Duration) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(connections)), idle }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.room).acquire_owned().await else { continue };
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let timer = Box::pin(sleep(self.idle));
                    let idle = self.idle;
                    return (Connection { stream, timer, idle, _place: place }, address);
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
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// What came of reading or writing; an error if nothing has for too long.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match polled {
            Poll::Ready(done) => {
                let end = Instant::now() + self.idle;
                self.timer.as_mut().reset(end);
                Poll::Ready(done)
            }
            Poll::Pending => match self.timer.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(context, polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
