//! What journals have in common: a header with the state that they begin with, and records with
//! their lengths.

use alloc::vec::Vec;

use super::{ReplayError, VERSION};
use crate::codec::{Codec, Malformed, Reader};

/// Appends the header of a journal that begins at `now_ns` with `state`; what writes its records.
pub(super) fn begin(magic: &[u8; 8], now_ns: u64, state: Vec<u8>, out: &mut Vec<u8>) -> Records {
    out.extend_from_slice(magic);
    out.extend_from_slice(&VERSION.to_le_bytes());
    state.len().put(out);
    out.extend_from_slice(&state);
    let sum = checksum(&state);
    out.extend_from_slice(&sum.to_le_bytes());
    // The state's memory serves as the records' scratch space.
    Records { last_ns: now_ns, sum, body: state }
}

/// Reads the header: the state, and the records that follow it.
pub(super) fn open<'a>(
    magic: &[u8; 8],
    journal: &'a [u8],
) -> Result<(&'a [u8], RecordReader<'a>), ReplayError> {
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
    Ok((state, RecordReader { input, sum }))
}

/// Writes records: each has the time since the one before, an event, and what became of it.
#[derive(Clone, Debug)]
pub(super) struct Records {
    last_ns: u64,
    sum: u64,
    body: Vec<u8>,
}

impl Records {
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
        self.sum = mixed(self.sum, &self.body);
        out.extend_from_slice(&folded(self.sum).to_le_bytes());
    }
}

/// Reads records one after the other.
#[derive(Clone, Debug)]
pub(super) struct RecordReader<'a> {
    input: Reader<'a>,
    sum: u64,
}

/// A record: the time since the one before, in ns, the event, and its actions.
type Fields<E, A> = (i64, E, Option<Vec<A>>);

impl RecordReader<'_> {
    /// Reads the next record, which has this number; `None` at the end. A journal that was cut
    /// within it ends there, and `cut` says so.
    pub(super) fn next<E: Codec, A: Codec>(
        &mut self,
        number: u64,
        cut: &mut bool,
    ) -> Result<Option<Fields<E, A>>, ReplayError> {
        if self.input.left() == 0 {
            return Ok(None);
        }
        let Some((body, sum)) = whole(&mut self.input) else {
            *cut = true;
            return Ok(None);
        };
        self.sum = mixed(self.sum, body);
        if folded(self.sum) != sum {
            return Err(ReplayError::DamagedRecord(number));
        }
        let malformed = |source| ReplayError::Malformed { record: number, source };
        take(Reader::new(body)).map(Some).map_err(malformed)
    }
}

/// The bytes of the next record and their checksum; `None` if the journal was cut within them.
fn whole<'a>(input: &mut Reader<'a>) -> Option<(&'a [u8], u32)> {
    let body = usize::take(input).and_then(|len| input.bytes(len)).ok()?;
    Some((body, u32::from_le_bytes(fixed::<4>(input).ok()?)))
}

/// Reads what [`Records::append`] wrote between length and checksum.
fn take<E: Codec, A: Codec>(mut body: Reader<'_>) -> Result<Fields<E, A>, Malformed> {
    let fields = (i64::take(&mut body)?, E::take(&mut body)?, take_outcome(&mut body)?);
    if body.left() > 0 { Err(body.malformed("end of the record")) } else { Ok(fields) }
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
    mixed(0xcbf2_9ce4_8422_2325, bytes)
}

/// The checksum of what had `sum`, and these bytes behind it: a record's holds all before it.
fn mixed(sum: u64, bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(sum, mix)
}

/// What of a checksum stands behind each record.
fn folded(sum: u64) -> u32 {
    let [a, b, c, d, e, f, g, h] = sum.to_le_bytes();
    u32::from_le_bytes([a ^ e, b ^ f, c ^ g, d ^ h])
}

fn fixed<const N: usize>(input: &mut Reader<'_>) -> Result<[u8; N], Malformed> {
    let bytes = input.bytes(N)?;
    bytes.try_into().map_err(|_| input.malformed("number"))
}
