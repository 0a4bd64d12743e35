//! Signals of the system, as something to wait for.

use std::io;
use std::os::unix::net::UnixStream as Stream;

use signal_hook::low_level::pipe;
use tokio::net::UnixStream;

/// Those of some kinds that come from here on. Within a runtime.
#[derive(Debug)]
pub struct Signals(UnixStream);

impl Signals {
    /// Of these numbers; they do nothing else from here on.
    ///
    /// # Errors
    /// The system's.
    pub fn of(numbers: &[i32]) -> io::Result<Self> {
        let (reader, writer) = Stream::pair()?;
        for number in numbers {
            pipe::register(*number, writer.try_clone()?)?;
        }
        reader.set_nonblocking(true)?;
        Ok(Self(UnixStream::from_std(reader)?))
    }

    /// Waits for the next ones. Many that came meanwhile are one.
    ///
    /// # Errors
    /// The system's.
    pub async fn next(&self) -> io::Result<()> {
        let mut came = [0; 64];
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut came) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}
