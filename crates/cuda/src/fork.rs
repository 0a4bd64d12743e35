//! What a child made by `fork` does first: it lets go of its parent's session, so that the session
//! ends with the parent although the child lives on.

use std::sync::Once;

use crate::driver;

/// Registers the child's handler, once per process and before there is a session to let go of.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();

    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which the C library forgets when the
        // library is unloaded. It runs in the child before `fork` returns there, and calls nothing
        // that takes a lock or allocates: `Client::leave_in_child` promises that.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(refused, 0, "out of memory");
    });
}

extern "C" fn in_child() {
    if let Some(client) = driver::attached() {
        client.leave_in_child();
    }
}
