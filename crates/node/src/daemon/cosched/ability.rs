//! How far coscheduling can go on this machine, and why not further.

use std::time::Duration;

use weft_ring::priority::{self, Treatment};

use super::watchdog::BOOST_PRIORITY;

/// Slice of a thread that is served sooner: shorter than anybody's who asked for none.
pub(crate) const SLICE: Duration = Duration::from_micros(100);

/// What works; the reason where something does not.
#[derive(Debug, Clone)]
pub(crate) struct Ability {
    /// Real-time boosts.
    pub(crate) boost: Result<(), String>,
    /// Slices of one's own.
    pub(crate) slice: Result<(), String>,
}

impl Ability {
    /// Tries it, on a thread that exists for that.
    pub(crate) fn probe() -> Self {
        let probed = std::thread::spawn(|| Self { boost: try_boost(), slice: try_slice() });
        probed.join().unwrap_or_else(|_| {
            let no = || Err("the probe panicked".to_owned());
            Self { boost: no(), slice: no() }
        })
    }
}

/// Has the calling thread served soon after a wake-up, and the threads and processes that it will
/// start: what passes turns on sleeps often and works shortly, and meanwhile the device may idle.
/// Needs no privilege; an older kernel's usual slice is no error.
pub(crate) fn serve_soon() {
    if let Err(error) = priority::set_slice(0, SLICE) {
        tracing::debug!(%error, "the daemon and its workers have the usual slice");
    }
}

fn try_boost() -> Result<(), String> {
    priority::make_realtime(0, BOOST_PRIORITY).map_err(|error| {
        format!(
            "no real-time priority ({error}): give the daemon CAP_SYS_NICE, and its control group \
             real-time run time if it has one"
        )
    })?;
    // Some microseconds of real-time, in which this thread does nothing else.
    priority::make_normal(0, false).map_err(|error| error.to_string())
}

fn try_slice() -> Result<(), String> {
    priority::set_slice(0, SLICE).map_err(|error| format!("no slices of one's own ({error})"))?;
    let is_set = Treatment::of(0).is_ok_and(|treatment| treatment.slice == SLICE);
    let _usual = priority::set_slice(0, Duration::ZERO);
    if is_set { Ok(()) } else { Err("this kernel ignores slices (Linux 6.12 does not)".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ring::priority::Class;

    #[test]
    fn who_is_served_soon_passes_it_on() {
        let slices = std::thread::spawn(|| {
            serve_soon();
            let own = Treatment::of(0).unwrap().slice;
            let started = std::thread::spawn(|| Treatment::of(0).unwrap().slice);
            (own, started.join().unwrap())
        });
        let (own, started) = slices.join().unwrap();
        assert_eq!(own, started);
        assert_eq!(own == SLICE, Ability::probe().slice.is_ok());
    }

    #[test]
    fn probing_leaves_this_thread_as_it_is() {
        let ability = Ability::probe();
        assert_eq!(Treatment::of(0).unwrap().class, Class::Normal);
        for reason in [ability.boost, ability.slice].into_iter().filter_map(Result::err) {
            assert!(!reason.is_empty());
        }
    }
}
