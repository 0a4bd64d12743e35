//! Caps: who used up a part of the device waits for the next period.

use crate::cap::{Cap, CapMeter};
use crate::key::VgpuKey;
use crate::tables::Vgpu;

use super::{Context, Core};

impl Core {
    pub(crate) fn set_cap(&mut self, cx: &mut Context<'_>, key: VgpuKey, cap: Option<Cap>) {
        self.reserve_cap(key);
        let meter = &mut cx.tables.vgpu(key).meter;
        // Another cap forgives nothing: who could have it changed would have as many periods.
        let owed_ns = meter.map_or(0, |meter| meter.owed_ns(cx.now_ns));
        *meter = cap.map(|cap| CapMeter::new(cap, cx.now_ns, owed_ns));
        self.check_cap(cx, key);
    }

    /// Makes room for a vGPU's cap, so that no decision allocates.
    pub(crate) fn reserve_cap(&mut self, key: VgpuKey) {
        self.refills.reserve(key.0);
    }

    /// Holds a vGPU back that used up its cap, or lets it go on. During a turn of it, the budget
    /// does that.
    pub(super) fn check_cap(&mut self, cx: &mut Context<'_>, key: VgpuKey) {
        let now_ns = cx.now_ns;
        let vgpu = cx.tables.vgpu(key);
        let Vgpu { meter, throttled, runnable, in_turn, .. } = vgpu;
        if *runnable == 0 || *in_turn {
            return;
        }
        let spent = meter.as_mut().is_some_and(|meter| meter.left_ns(now_ns) == 0);
        match *meter {
            Some(meter) if spent => self.refills.set(key.0, meter.refill_ns()),
            _ if *throttled => self.refills.remove(key.0),
            _ => {}
        }
        if core::mem::replace(throttled, spent) == spent {
            return;
        }
        let sessions = *runnable;
        self.without_prediction(cx, |core, _| {
            if spent {
                core.eligible -= sessions;
                core.policy.sleep(key);
            } else {
                core.eligible += sessions;
                core.policy.wake(key);
            }
        });
    }

    /// Counts device time, or a prediction of it, against a vGPU's cap.
    pub(super) fn count_cap(&mut self, cx: &mut Context<'_>, key: VgpuKey, ns: i64) {
        let now_ns = cx.now_ns;
        if let Some(meter) = &mut cx.tables.vgpu(key).meter {
            meter.count(now_ns, ns);
            self.check_cap(cx, key);
        }
    }

    /// Lets vGPUs go on whose caps have refilled. It wakes them, so it is done when the holder's
    /// use is known and nothing else has happened since the refill: by [`Event::Timer`] alone.
    ///
    /// [`Event::Timer`]: crate::Event::Timer
    pub(crate) fn refill(&mut self, cx: &mut Context<'_>) {
        while let Some((at_ns, key)) = self.refills.peek()
            && at_ns <= cx.now_ns
        {
            self.refills.remove(key);
            self.check_cap(cx, VgpuKey(key));
        }
    }
}
