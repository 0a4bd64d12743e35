//! What an endpoint on another host, or who pretends to be a gateway, may say: any bytes.

use weft_endpoint::frame::{Frame, Front, front};
use weft_endpoint::stream::{Nonsense, Part, Stream};
use weft_wire::remote::{Grant, OPENING_BYTES_MAX, Opening, Reception};

/// Takes `said` apart as both ends do: as the messages before a session, as a grant, and as a
/// stream of frames.
///
/// # Panics
/// When something is not what it was decoded from.
pub(crate) fn hear(said: &[u8]) {
    if said.len() <= OPENING_BYTES_MAX {
        if let Ok(opening) = Opening::from_bytes(said) {
            assert_eq!(opening.to_bytes().as_deref(), Ok(said));
        }
        if let Ok(reception) = Reception::from_bytes(said) {
            assert_eq!(reception.to_bytes().as_deref(), Ok(said));
        }
    }
    if let Ok(grant) = core::str::from_utf8(said).map_err(drop).and_then(read_grant) {
        assert_eq!(read_grant(&grant.to_text()), Ok(grant));
    }
    let mut rest = said;
    while let Front::Whole(frame, taken) = front(rest) {
        assert!(taken > 0 && taken <= rest.len(), "a frame takes what is there");
        assert_eq!(front(&rest[..taken - 1]), Front::Part, "a part of a frame is none");
        if let Some(decoded) = Frame::decode(frame) {
            let mut again = Vec::new();
            decoded.encode(&mut again);
            // A command that awaits nothing has a call number that nobody reads.
            if matches!(decoded, Frame::Command { answer: None, .. }) {
                assert_eq!(Frame::decode(&again[again.len() - frame.len()..]), Some(decoded));
            } else {
                assert_eq!(again, &rest[..taken]);
            }
        }
        rest = &rest[taken..];
    }
    hear_in_parts(said, said.len() - rest.len());
}

/// As much is taken however it comes: all whole frames, or those before the first that is none.
fn hear_in_parts(said: &[u8], whole: usize) {
    let cut = usize::from(said.first().copied().unwrap_or(0)) + 1;
    let (mut stream, mut taken) = (Stream::default(), 0);
    let mut on = |part: Part<'_>| {
        taken += part.ends.unwrap_or(0);
        Ok::<_, Nonsense>(())
    };
    let heard = said.chunks(cut).try_for_each(|some| {
        stream.take(some, &mut on)?;
        stream.frames(&mut on)
    });
    assert!(taken <= whole && (taken == whole || heard.is_err()), "{taken} of {whole}: {heard:?}");
}

/// A grant's text, with whatever it says looked at.
fn read_grant(text: &str) -> Result<Grant, ()> {
    let grant = Grant::from_text(text).map_err(drop)?;
    // Only the node can tell whether it is genuine; any words are survived.
    let _ = grant.claims();
    Ok(grant)
}
