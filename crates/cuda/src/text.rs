//! C strings that the application may keep.

use core::ffi::{CStr, c_char};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use weft_wire::Status;

/// A terminated copy of `text` that lives as long as the process; one per distinct text.
pub(crate) fn intern(text: &str) -> Result<*const c_char, Status> {
    static KEPT: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    let text = CString::new(text).map_err(|_| Status::INVALID_VALUE)?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept.get(text.as_c_str()) {
        return Ok(known.as_ptr());
    }
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    kept.insert(text);
    Ok(text.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_kept_once() {
        let first = intern("kernel").unwrap();
        assert_eq!(intern("kernel").unwrap(), first);
        assert_ne!(intern("other").unwrap(), first);
        assert_eq!(intern("a\0b"), Err(Status::INVALID_VALUE));
    }
}
