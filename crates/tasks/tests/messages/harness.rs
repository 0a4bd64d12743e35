//! What a tenant, a node or a runner may say about tasks: any bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;
use weft_tasks::protocol::{Event, Open, Opened, Request, fits, is_open};

/// Takes `said` apart as each side does; whether it was a message of any kind.
///
/// # Panics
/// When a message is not what its own text says again.
pub(crate) fn hear(said: &[u8]) -> bool {
    let is_hello = again::<Open>(said);
    // Whitespace before it makes it no hello: the daemon goes by the first byte.
    assert!(!is_hello || is_open(said) || said.first().is_some_and(u8::is_ascii_whitespace));
    let others = [again::<Opened>(said), again::<Request>(said), again::<Event>(said)];
    is_hello || others.contains(&true)
}

/// Whether it is such a message, which its own text says again.
fn again<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(said: &[u8]) -> bool {
    let Ok(message) = serde_json::from_slice::<T>(said) else { return false };
    let text = serde_json::to_vec(&message).expect("a message has a text");
    let back: T = serde_json::from_slice(&text).expect("which is a message");
    assert_eq!(back, message);
    // What can be sent can be answered in kind: lengths are of the text, not of what was said.
    assert_eq!(fits(&message), fits(&back));
    true
}
