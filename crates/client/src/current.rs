//! The calling thread's stack of current contexts.
//!
//! Plain words without a destructor: applications call the driver from `atexit` handlers, after
//! thread-local destructors have run.

use std::cell::Cell;

use weft_wire::Status;

use crate::handle::Context;

/// Deepest stack of a thread.
const DEPTH_MAX: usize = 64;

struct Stack {
    depth: Cell<usize>,
    contexts: [Cell<u64>; DEPTH_MAX],
    capture_mode: Cell<u8>,
}

thread_local! {
    static STACK: Stack = const {
        Stack {
            depth: Cell::new(0),
            contexts: [const { Cell::new(0) }; DEPTH_MAX],
            capture_mode: Cell::new(0),
        }
    };
}

/// The current context, or null.
#[inline]
pub(crate) fn top() -> Context {
    STACK.with(|stack| {
        let raw = stack.depth.get().checked_sub(1).and_then(|top| stack.contexts.get(top));
        Context::from_raw(raw.map_or(0, Cell::get))
    })
}

/// Replaces the top; null pops it, and an empty stack gets it pushed.
pub(crate) fn set(context: Context) {
    STACK.with(|stack| {
        let depth = stack.depth.get();
        if context.is_null() {
            stack.depth.set(depth.saturating_sub(1));
        } else if let Some(top) = stack.contexts.get(depth.saturating_sub(1)) {
            top.set(context.raw());
            stack.depth.set(depth.max(1));
        }
    });
}

/// Pushes; the stack is bounded.
pub(crate) fn push(context: Context) -> Result<(), Status> {
    STACK.with(|stack| {
        let depth = stack.depth.get();
        let free = stack.contexts.get(depth).ok_or(Status::INVALID_VALUE)?;
        free.set(context.raw());
        stack.depth.set(depth + 1);
        Ok(())
    })
}

/// Pops the top.
pub(crate) fn pop() -> Result<Context, Status> {
    STACK.with(|stack| {
        let top = stack.depth.get().checked_sub(1).ok_or(Status::INVALID_CONTEXT)?;
        stack.depth.set(top);
        let raw = stack.contexts.get(top).map_or(0, Cell::get);
        Ok(Context::from_raw(raw))
    })
}

/// Exchanges the thread's stream capture mode.
pub(crate) fn exchange_capture_mode(mode: u8) -> u8 {
    STACK.with(|stack| stack.capture_mode.replace(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_pushes_pops_and_sets() {
        let (a, b) = (Context::from_raw(10), Context::from_raw(11));
        assert_eq!(top(), Context::NULL);
        assert_eq!(pop(), Err(Status::INVALID_CONTEXT));
        set(a);
        assert_eq!(top(), a);
        push(b).unwrap();
        set(a);
        assert_eq!(pop(), Ok(a));
        assert_eq!(top(), a);
        set(Context::NULL);
        assert_eq!(top(), Context::NULL);
    }

    #[test]
    fn the_stack_is_bounded() {
        for _ in 0..DEPTH_MAX {
            push(Context::from_raw(9)).unwrap();
        }
        assert!(push(Context::from_raw(9)).is_err());
    }
}
