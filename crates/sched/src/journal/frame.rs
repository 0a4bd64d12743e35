//! What journals have in common: a header with the state that they begin with, and records with
//! their lengths.

use alloc::vec::Vec;

use super::{ReplayError, VERSION};
use crate::codec::{Codec, Malformed, Reader};

/// Appends the header of a journal that begins with `state`.
pub(super) fn begin(magic: &[u8; 8], state: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(magic);
    out.extend_from_slice(&VERSION.to_le_bytes());
    state.len().put(out);
    out.extend_from_slice(state);
    out.extend_from_slice(&checksum(state).to_le_bytes());
}

/// Reads the header: the state, and what follows it.
pub(super) fn open<'a>(
    magic: &[u8; 8],
    journal: &'a [u8],
) -> Result<(&'a [u8], Reader<'a>), ReplayError> {
    let mut input = Reader::new(journal);
    if input.bytes(magic.len()).ok() != Some(magic) {
        return Err(ReplayError::NoJournal);
    }
    let malformed = |source| ReplayError::Malformed { record: 0, source };
    let version = fixed::<2>(&mut input).map(u16::from_le_bytes).map_err(malformed)?;
    if version != VERSION {
        return Err(ReplayError::Version(version));
    }
    let len = usize::take(&mut input).map_err(malformed)?;
    let state = input.bytes(len).map_err(malformed)?;
    let sum = fixed::<8>(&mut input).map(u64::from_le_bytes).map_err(malformed)?;
    if sum != checksum(state) {
        return Err(ReplayError::Damaged);
    }
    Ok((state, input))
}

/// Writes records: each has the time since the one before, an event, and what became of it.
#[derive(Clone, Debug)]
pub(super) struct Records {
    last_ns: u64,
    body: Vec<u8>,
}

impl Records {
    /// Records from `now_ns` on. What `body` holds is scratch space.
    pub(super) fn begin(now_ns: u64, body: Vec<u8>) -> Self {
        Self { last_ns: now_ns, body }
    }

    /// Appends an event and its actions; `None` if it was refused.
    pub(super) fn append<E: Codec, A: Codec>(
        &mut self,
        now_ns: u64,
        event: &E,
        actions: Option<&[A]>,
        out: &mut Vec<u8>,
    ) {
        self.body.clear();
        put_time(now_ns, &mut self.last_ns, &mut self.body);
        event.put(&mut self.body);
        put_outcome(actions, &mut self.body);
        self.body.len().put(out);
        out.extend_from_slice(&self.body);
    }
}

/// Reads what [`Records::append`] wrote, but for its length: the time since the record before, in
/// ns, the event, and its actions.
pub(super) fn take<E: Codec, A: Codec>(
    mut body: Reader<'_>,
) -> Result<(i64, E, Option<Vec<A>>), Malformed> {
    let fields = (i64::take(&mut body)?, E::take(&mut body)?, take_outcome(&mut body)?);
    if body.left() > 0 { Err(body.malformed("end of the record")) } else { Ok(fields) }
}

/// The next record; `None` if the journal was cut within it.
pub(super) fn next<'a>(input: &mut Reader<'a>) -> Option<Reader<'a>> {
    let mut ahead = input.clone();
    let body = usize::take(&mut ahead).and_then(|len| ahead.bytes(len)).ok()?;
    *input = ahead;
    Some(Reader::new(body))
}

/// Writes the time of a record after another one's. Clocks are below 2⁶³ ns (292 years), so the
/// difference is exact.
fn put_time(now_ns: u64, last_ns: &mut u64, body: &mut Vec<u8>) {
    now_ns.wrapping_sub(*last_ns).cast_signed().put(body);
    *last_ns = now_ns;
}

/// Writes what became of an event: nothing if it was refused.
fn put_outcome<A: Codec>(actions: Option<&[A]>, body: &mut Vec<u8>) {
    match actions {
        None => 0usize.put(body),
        Some(actions) => {
            (actions.len() + 1).put(body);
            actions.iter().for_each(|action| action.put(body));
        }
    }
}

/// Reads what [`put_outcome`] wrote.
fn take_outcome<A: Codec>(input: &mut Reader<'_>) -> Result<Option<Vec<A>>, Malformed> {
    let Some(actions) = usize::take(input)?.checked_sub(1) else { return Ok(None) };
    // Each action takes a byte at least.
    if actions > input.left() {
        return Err(input.malformed("number of actions"));
    }
    (0..actions).map(|_| A::take(input)).collect::<Result<_, _>>().map(Some)
}

/// FNV-1a: finds damage, not malice. A journal is as trusted as the daemon's other files.
fn checksum(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn fixed<const N: usize>(input: &mut Reader<'_>) -> Result<[u8; N], Malformed> {
    let bytes = input.bytes(N)?;
    bytes.try_into().map_err(|_| input.malformed("number"))
}
