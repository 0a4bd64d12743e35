//! Which processors the two sides run on, as far as they have said.
//!
//! Whoever polls on the processor that its peer needs keeps the answer from coming. Each side shows
//! where it runs; the other gives up polling early when that is its own processor.

use std::time::Duration;

use crate::cells::Cell;
use crate::sync::{AtomicU32, Ordering};
use crate::sys;
use crate::wait::{SAME_PROCESSOR, processors};

/// One side's view.
#[derive(Debug, Clone)]
pub(crate) struct Processors {
    own: Cell<AtomicU32>,
    peer: Cell<AtomicU32>,
    /// Their numbers mean the same to both: no guest shows its own, nor looks at its host's.
    are_shared: bool,
}

impl Processors {
    pub(crate) fn new(own: Cell<AtomicU32>, peer: Cell<AtomicU32>) -> Self {
        let are_shared = !own.memory().is_lent();
        Self { own, peer, are_shared }
    }

    /// Shows where the calling thread runs.
    #[inline]
    pub(crate) fn show_own(&self) {
        if !self.are_shared {
            return;
        }
        let here = sys::processor();
        if self.own.load(Ordering::Relaxed) != here {
            self.own.store(here, Ordering::Relaxed);
        }
    }

    /// Whether polling that has lasted so long keeps the peer from running. Who has no other
    /// processor to go to does so from the first moment.
    #[inline]
    pub(crate) fn is_hopeless(&self, lasted: Duration) -> bool {
        if (lasted < SAME_PROCESSOR && processors() > 1) || !self.are_shared {
            return false;
        }
        let peer = self.peer.load(Ordering::Relaxed);
        peer != 0 && peer == sys::processor()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::map::{PAGE, SharedMemory};

    #[test]
    fn polling_on_the_peers_processor_is_hopeless_after_a_while() {
        let memory = SharedMemory::anonymous(PAGE).unwrap();
        let one = Processors::new(memory.cell(0).unwrap(), memory.cell(64).unwrap());
        let other = Processors::new(memory.cell(64).unwrap(), memory.cell(0).unwrap());
        assert!(!one.is_hopeless(SAME_PROCESSOR), "nobody has shown anything");
        // On one thread both are where it is, unless it moves just then.
        let hopeless = (0..100).any(|_| {
            other.show_own();
            one.is_hopeless(SAME_PROCESSOR)
        });
        assert!(hopeless);
        assert_eq!(one.is_hopeless(Duration::ZERO), processors() == 1);
    }
}
