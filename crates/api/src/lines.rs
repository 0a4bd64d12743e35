//! Lines that another process says, of which no more is kept than a line may have: one that is
//! broken, or hostile, may never end its line.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::iter;

/// The longest first line of a program that says that it serves, or where.
const FIRST_BYTES_MAX: u64 = 4096;

/// The next line, without its end: its first `most` bytes. What a longer one has behind them is
/// read up to its end and not kept. Nothing once all has been said.
///
/// # Errors
/// The system's.
pub fn next(from: &mut impl BufRead, most: usize) -> io::Result<Option<Vec<u8>>> {
    let (mut line, mut has_begun) = (Vec::new(), false);
    loop {
        let came = match from.fill_buf() {
            Ok(came) => came,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if came.is_empty() {
            return Ok(has_begun.then_some(line));
        }
        has_begun = true;
        let end = came.iter().position(|byte| *byte == b'\n');
        let said = end.unwrap_or(came.len());
        let kept = said.min(most.saturating_sub(line.len()));
        line.extend_from_slice(&came[..kept]);
        from.consume(end.map_or(said, |end| end + 1));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

/// All lines, each as [`next`] has it.
pub fn all(mut from: impl BufRead, most: usize) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    iter::from_fn(move || next(&mut from, most).transpose())
}

/// The first line that a program says, without the spaces around it; empty if it ends without a
/// word. No more is waited for than such a line may have.
///
/// # Errors
/// The system's.
pub fn first(from: impl Read) -> io::Result<String> {
    let mut from = BufReader::new(from.take(FIRST_BYTES_MAX));
    let line = next(&mut from, usize::MAX)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&line).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_line_that_is_too_long_no_more_is_kept_and_the_next_one_is_heard() {
        let flood = io::repeat(b'x').take(8 << 20);
        let mut from = BufReader::new(flood.chain(&b"\nlistening\n\nlast"[..]));
        let line = next(&mut from, 100).unwrap().unwrap();
        assert_eq!(line, [b'x'; 100]);
        assert!(line.capacity() <= 200, "{} bytes", line.capacity());
        let rest: Vec<_> = all(from, 100).map(Result::unwrap).collect();
        assert_eq!(rest, [&b"listening"[..], b"", b"last"]);
    }

    /// However it comes in pieces, and as the standard library has it but for the bound.
    #[test]
    fn lines_are_those_of_the_text() {
        for text in ["", "\n", "a", "a\n", "\n\na", "one\ntwo two\n\nthree\n", "1234\n12345\n123"] {
            let whole: Vec<&[u8]> = match text.strip_suffix('\n').unwrap_or(text) {
                _ if text.is_empty() => Vec::new(),
                text => text.split('\n').map(str::as_bytes).collect(),
            };
            for (piece, most) in (1..9).flat_map(|piece| (0..9).map(move |most| (piece, most))) {
                let from = BufReader::with_capacity(piece, text.as_bytes());
                let found: Vec<_> = all(from, most).map(Result::unwrap).collect();
                let cut: Vec<&[u8]> =
                    whole.iter().map(|line| &line[..line.len().min(most)]).collect();
                assert_eq!(found, cut, "{text:?} in pieces of {piece}, {most} of a line");
            }
        }
    }

    #[test]
    fn a_first_line_without_an_end_is_not_waited_for() {
        assert_eq!(first(io::repeat(b'x')).unwrap().len(), 4096);
        assert_eq!(first(&b" ready \nmore"[..]).unwrap(), "ready");
        assert_eq!(first(io::empty()).unwrap(), "");
    }
}
