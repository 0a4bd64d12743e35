//! What a machine's guest, or who pretends to be a part of its host, may say: any bytes.

use weft_wire::guest::{FrameReader, GuestFrame, HostFrame, OpenRegion, Processors, Reception};

/// Takes `said` apart as a machine's server, its agent and the daemon do.
///
/// # Panics
/// When a frame depends on how its bytes came, or is not what it was decoded from.
pub(crate) fn hear(said: &[u8]) {
    let whole = frames(said, said.len().max(1));
    for piece in [1, 3, 7] {
        assert_eq!(frames(said, piece), whole, "in pieces of {piece}");
    }
    for (kind, body) in &whole {
        let mut bytes = vec![*kind];
        // No body is longer than its length can say.
        bytes.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(body);
        let guest = GuestFrame::from_parts(*kind, body).ok();
        let host = HostFrame::from_parts(*kind, body).ok();
        assert!(guest.is_none() || host.is_none(), "one kind for two frames");
        let again =
            guest.map(|frame| frame.to_bytes()).or_else(|| host.map(|frame| frame.to_bytes()));
        if let Some(again) = again {
            assert_eq!(again.as_ref(), Ok(&bytes));
        }
    }
    if let Ok(open) = OpenRegion::from_bytes(said) {
        assert_eq!(open.to_bytes().as_deref(), Ok(said));
    }
    if let Ok(processors) = Processors::from_bytes(said) {
        assert_eq!(processors.to_bytes().as_deref(), Ok(said));
    }
    if let Ok(reception) = Reception::from_bytes(said) {
        assert_eq!(reception.to_bytes().as_deref(), Ok(said));
    }
}

fn frames(said: &[u8], piece: usize) -> Vec<(u8, Vec<u8>)> {
    let (mut reader, mut found) = (FrameReader::default(), Vec::new());
    for bytes in said.chunks(piece) {
        reader.push(bytes);
        while let Some((kind, body)) = reader.poll_frame() {
            found.push((kind, body.to_vec()));
        }
    }
    found
}
