//! How much of the processors' time a hypervisor gave to others while a benchmark ran: figures of
//! time from a machine that was not there all the time are to be read with it.

/// Time of all processors since the machine started, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    all: u64,
    stolen: u64,
}

impl Processors {
    /// As of now; zero where the system does not tell.
    #[must_use]
    pub fn now() -> Self {
        Self::read(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; what
    /// follows counts in user and nice already (proc(5)).
    fn read(text: &str) -> Self {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        Self { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or(0) }
    }

    /// The part of the time since then that was stolen, 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio of ticks")]
    pub fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stolen_is_a_part_of_all_time() {
        let before = Processors::read("cpu  10 0 10 80 0 0 0 100 7 0\ncpu0 1 2 3\n");
        assert_eq!(before, Processors { all: 200, stolen: 100 });
        let after = Processors::read("cpu  30 0 20 140 0 0 0 110 9 0\n");
        assert_eq!(after.stolen_since(before), 0.1);
        assert_eq!(before.stolen_since(after), 0.0);
        assert_eq!(Processors::read("").stolen_since(Processors::read("")), 0.0);
    }
}
