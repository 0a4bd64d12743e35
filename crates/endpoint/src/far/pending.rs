//! Connections that have not said what they want: bounded in number and time, without a thread.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{ServerConfig, ServerConnection};
use weft_wire::remote::{OPENING_BYTES_MAX, Opening};

use super::daemon::Daemon;
use crate::tls::{Channel, is_spoken};

/// After a connection that could not be accepted (no descriptor is left, say) the next one waits.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of ciphertext that are read of one connection before others have their turn.
const READ_BYTES: usize = 16 << 10;

/// A connection that has said what it wants.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) channel: Channel,
    pub(super) opening: Opening,
    /// Its host.
    pub(super) from: IpAddr,
}

/// All of them, in the order in which they came.
#[derive(Debug)]
pub(super) struct Pending {
    config: Arc<ServerConfig>,
    connections: Vec<Connection>,
    room: usize,
    patience: Duration,
}

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    tls: ServerConnection,
    from: IpAddr,
    came: Instant,
    said: Vec<u8>,
}

/// What a connection has come to.
enum Progress {
    /// It may say more.
    Waits,
    /// It has said what it wants.
    Said(Opening),
}

impl Pending {
    /// A table with room for so many, each of which has `patience` to say what it wants.
    pub(super) fn new(config: Arc<ServerConfig>, room: usize, patience: Duration) -> Self {
        Self { config, connections: Vec::new(), room: room.max(1), patience }
    }

    /// Lets newcomers in and listens to all, until some have said what they want; answers the
    /// daemon meanwhile.
    ///
    /// # Errors
    /// When the system has no way to wait any more.
    pub(super) fn wait(
        &mut self,
        listener: &TcpListener,
        daemon: &mut Daemon,
    ) -> Result<Vec<Arrival>> {
        loop {
            let ready = self.poll(listener, daemon)?;
            let is_asked = ready.get(1 + self.connections.len()) == Some(&true);
            let arrived = self.listen(&ready[1..]);
            if ready[0] {
                self.accept(listener);
            }
            if is_asked {
                daemon.answer();
            }
            let (now, patience) = (Instant::now(), self.patience);
            self.connections.retain(|one| now.saturating_duration_since(one.came) < patience);
            if !arrived.is_empty() {
                return Ok(arrived);
            }
        }
    }

    /// Whether the listener, each connection, and the daemon if it lives, have something.
    fn poll(&self, listener: &TcpListener, daemon: &Daemon) -> Result<Vec<bool>> {
        let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
        for one in &self.connections {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, one.tls.wants_write());
            polled.push(PollFd::new(&one.socket, flags));
        }
        polled.extend(daemon.asks().map(|asks| PollFd::new(asks, PollFlags::IN)));
        let first = self.connections.iter().map(|one| one.came).min();
        let limit = first.map(|came| {
            let left = (came + self.patience).saturating_duration_since(Instant::now());
            // A little later than that, or it would be looked at twice.
            Timespec::try_from(left + Duration::from_millis(1))
        });
        let limit = limit.transpose()?;
        rustix::io::retry_on_intr(|| poll(&mut polled, limit.as_ref()))?;
        Ok(polled.iter().map(|one| !one.revents().is_empty()).collect())
    }

    fn listen(&mut self, ready: &[bool]) -> Vec<Arrival> {
        let mut arrived = Vec::new();
        let mut waiting = Vec::with_capacity(self.connections.len());
        for (mut one, ready) in std::mem::take(&mut self.connections).into_iter().zip(ready) {
            match if *ready { one.go_on() } else { Ok(Progress::Waits) } {
                Ok(Progress::Waits) => waiting.push(one),
                Ok(Progress::Said(opening)) => {
                    let Connection { socket, tls, from, .. } = one;
                    if let Ok(channel) = Channel::new(socket, tls.into()) {
                        arrived.push(Arrival { channel, opening, from });
                    }
                }
                // It spoke something else, or hung up: an alert, if TLS has one, is all it gets.
                Err(_) => drop(one.flush()),
            }
        }
        self.connections = waiting;
        arrived
    }

    fn accept(&mut self, listener: &TcpListener) {
        let (socket, from) = match listener.accept() {
            Ok((socket, from)) => (socket, from.ip().to_canonical()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
        };
        let (Ok(()), Ok(tls)) =
            (socket.set_nonblocking(true), ServerConnection::new(Arc::clone(&self.config)))
        else {
            return;
        };
        self.make_room();
        let came = Instant::now();
        self.connections.push(Connection { socket, tls, from, came, said: Vec::new() });
    }

    /// When all places are taken, the oldest of the address that has most goes.
    fn make_room(&mut self) {
        if self.connections.len() < self.room {
            return;
        }
        let from: Vec<IpAddr> = self.connections.iter().map(|one| one.from).collect();
        if let Some(oldest) = oldest_of_most(&from) {
            self.connections.remove(oldest);
        }
    }
}

/// Where the oldest one of the address that has most is, of several such addresses of the oldest.
fn oldest_of_most(from: &[IpAddr]) -> Option<usize> {
    let who: Vec<IpAddr> = from.iter().map(|address| whose(*address)).collect();
    let count = |index: &usize| who.iter().filter(|other| **other == who[*index]).count();
    // Of equals the last is taken, so the oldest comes last.
    (0..who.len()).rev().max_by_key(count)
}

/// What counts as one address: of IPv6 a host has 2⁶⁴ of its own.
pub(super) fn whose(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(own) => own.into(),
        IpAddr::V6(own) => Ipv6Addr::from_bits(own.to_bits() >> 64 << 64).into(),
    }
}

impl Connection {
    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<Progress> {
        let mut cipher = vec![0; READ_BYTES];
        match self.socket.read(&mut cipher) {
            Ok(0) => anyhow::bail!("it hung up"),
            Ok(count) => cipher.truncate(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => cipher.clear(),
            Err(error) => return Err(error.into()),
        }
        let mut rest = &cipher[..];
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest)?;
            let state = self.tls.process_new_packets()?;
            let before = self.said.len();
            self.said.resize(before + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut self.said[before..])?;
            ensure!(self.said.len() <= OPENING_BYTES_MAX + 4, "it says too much");
        }
        self.flush()?;
        let Some((length, message)) = self.said.split_first_chunk::<4>() else {
            return Ok(Progress::Waits);
        };
        let length = usize::try_from(u32::from_le_bytes(*length))?;
        ensure!(length <= OPENING_BYTES_MAX, "it says too much");
        if message.len() < length {
            return Ok(Progress::Waits);
        }
        // Who names no protocol at all is let through by TLS.
        ensure!(is_spoken(self.tls.alpn_protocol()), "it speaks another protocol");
        // Frames come after the answer only.
        ensure!(message.len() == length, "it does not wait for the answer");
        Ok(Progress::Said(Opening::from_bytes(message)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oldest(from: &[&str]) -> Option<usize> {
        let from: Vec<IpAddr> = from.iter().map(|one| one.parse().unwrap()).collect();
        oldest_of_most(&from)
    }

    #[test]
    fn the_oldest_of_the_most_crowded_address_goes() {
        assert_eq!(oldest(&[]), None);
        assert_eq!(oldest(&["10.0.0.1", "10.0.0.2", "10.0.0.2"]), Some(1));
        // Where nobody has more than another, whoever came first has had most of its time.
        assert_eq!(oldest(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]), Some(0));
        assert_eq!(oldest(&["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.1"]), Some(0));
        // Addresses of one network are one host's; mapped ones are what they map.
        assert_eq!(oldest(&["10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2"]), Some(1));
        assert_eq!(oldest(&["fd00::1", "::ffff:10.0.0.1", "10.0.0.1"]), Some(1));
        assert_eq!(oldest(&["fd00::1", "fd00:0:0:1::1", "10.0.0.1"]), Some(0));
    }
}
