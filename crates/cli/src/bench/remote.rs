//! `bench remote`: applications on a vGPU of another host against the same on this one's, which is
//! GSaaS's comparison of localities (its Figure 9).
//!
//! `cushaw` has the proportions that the paper says of CUSHAW: 2.4 GB sent for good, 240 MB in
//! pieces, 200 MB back. How long that computes the paper does not say in words. Sending as much
//! over its network of 10 Gb/s takes at least 2.27 s, and that made a run 5 % longer: so a local
//! run took 45 s at least, and as much is computed here. More computation would only hide more.
//! The programs stand for those applications and are none of them (`application.c`).
//!
//! The control is the same way with every byte 10 ms later, in each direction.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::document::Document;
use super::tenant::{Host, Tenant, start_after};
use super::via::{Alone, Remote, number};
use super::{Context, median};

/// What an application does, and how many of it run at once.
struct Application {
    name: &'static str,
    instances: usize,
    /// Sent before all rounds, KiB.
    to_keep_kib: u64,
    rounds: u64,
    /// Sent in a round, KiB.
    in_kib: u64,
    /// Kernels of a round, and how long each is.
    launches: u64,
    kernel_us: u64,
    /// What comes back in a round, KiB.
    out_kib: u64,
}

/// CUSHAW, a tenth of it.
const CUSHAW: Application = Application {
    name: "cushaw",
    instances: 1,
    to_keep_kib: 234_375,
    rounds: 10,
    in_kib: 2344,
    launches: 1150,
    kernel_us: 391,
    out_kib: 1953,
};

const APPLICATIONS: [Application; 5] = [
    CUSHAW,
    // The paper runs two at once, with a GPU each, and with one for both.
    Application { name: "cushaw_shared", instances: 2, ..CUSHAW },
    // It computes, as the paper's MonteCarloMultiGPU does.
    Application {
        name: "computes",
        instances: 1,
        to_keep_kib: 0,
        rounds: 1,
        in_kib: 1024,
        launches: 5000,
        kernel_us: 391,
        out_kib: 4,
    },
    Application {
        name: "copies",
        instances: 1,
        to_keep_kib: 0,
        rounds: 16,
        in_kib: 16_384,
        launches: 1,
        kernel_us: 21,
        out_kib: 16_384,
    },
    Application {
        name: "calls",
        instances: 1,
        to_keep_kib: 0,
        rounds: 500,
        in_kib: 4,
        launches: 1,
        kernel_us: 21,
        out_kib: 4,
    },
];

/// Rounds of one run each way.
const ROUNDS: usize = 5;

/// How much later every byte of the control arrives.
const DELAY_MS: u64 = 10;

/// A quick run does a tenth.
const QUICK: u64 = 10;

/// What the paper's Figure 9 has in words: remote over local, CUSHAW, exclusive.
const PAPER: f64 = 1.05;

/// Programs that are ready hear of it within this time.
const LEAD: Duration = Duration::from_millis(50);

pub(super) fn run(context: &Context) -> Result<Document> {
    let (rounds, part) = if context.quick { (1, QUICK) } else { (ROUNDS, 1) };
    let window = format!(
        "{rounds} rounds of each application locally, remotely, remotely with {DELAY_MS} ms more \
         each way, and locally again; CUSHAW's sizes over {}; medians",
        10 * part
    );
    let mut document = Document::new("remote", "real", &window);
    context.check_only(APPLICATIONS.iter().map(|application| application.name))?;
    let local = Host::node(false, &[])?;
    let remote = Host::Remote(Remote::start(None)?);
    let delayed = Host::Remote(Remote::start_late(DELAY_MS)?);
    let mut alone = Alone::default();
    for application in APPLICATIONS.iter().filter(|one| context.wants(one.name)) {
        let application = &application.part(part);
        let name = application.name;
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            for (host, times) in [&local, &remote, &delayed, &local].into_iter().zip(&mut times) {
                times.push(application.run(context, host)?);
            }
            alone.measure()?;
        }
        let [here, there, late, again] = times;
        // A round has a local run before and one after: what changes slowly cancels out.
        let over = |times: &[f64]| -> Vec<f64> {
            let local = here.iter().zip(&again).map(|(one, other)| (one + other) / 2.0);
            times.iter().zip(local).map(|(time, local)| time / local).collect()
        };
        let ratios = over(&there);
        document.figure(format!("{name}_over_local"), median(&ratios));
        let least = ratios.iter().copied().fold(f64::MAX, f64::min);
        document.figure(format!("{name}_over_local_min"), least);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        document.figure(format!("{name}_over_local_max"), most);
        document.figure(format!("{name}_s"), median(&there));
        document.baseline(format!("local_{name}_s"), median(&here));
        let same: Vec<f64> = again.iter().zip(&here).map(|(other, one)| other / one).collect();
        document.baseline(format!("local_{name}_over_local"), median(&same));
        document.control(format!("delayed_{name}_over_local"), median(&over(&late)));
        document.row(application.row());
    }
    document.baseline("gsaas_cushaw_over_local", PAPER);
    alone.tell(&mut document);
    Ok(document)
}

impl Application {
    /// One that does so many times less of whatever it does much of.
    fn part(&self, part: u64) -> Self {
        let less = |value: u64| if value >= 10 * part { value / part } else { value };
        Self {
            to_keep_kib: less(self.to_keep_kib),
            rounds: less(self.rounds),
            in_kib: less(self.in_kib),
            launches: less(self.launches),
            out_kib: less(self.out_kib),
            ..*self
        }
    }

    /// How long it takes, from the common beginning until the last of its instances has ended.
    fn run(&self, context: &Context, host: &Host) -> Result<f64> {
        let numbers = [
            self.to_keep_kib,
            self.rounds,
            self.in_kib,
            self.launches,
            self.kernel_us,
            self.out_kib,
        ];
        let mut started: Vec<Tenant> = (0..self.instances)
            .map(|_| {
                let mut command = context.program("application");
                command.args(numbers.map(|number| number.to_string()));
                host.start_with_input(self.name, 1, command, Stdio::piped())
            })
            .collect::<Result<_>>()?;
        for tenant in &mut started {
            tenant.line()?;
        }
        let start = start_after(LEAD);
        for tenant in &mut started {
            tenant.tell(&start)?;
        }
        let mut longest = 0.0_f64;
        for tenant in started {
            let report = tenant.finish()?.pop().context("the application printed nothing")?;
            longest = longest.max(number(&report, "seconds")?);
        }
        Ok(longest)
    }

    fn row(&self) -> serde_json::Value {
        json!({
            "application": self.name,
            "instances": self.instances,
            "to_device_kib": self.to_keep_kib + self.rounds * self.in_kib,
            "from_device_kib": self.rounds * self.out_kib,
            "waits": self.rounds,
            "kernels": self.rounds * self.launches,
            "device_ms": self.rounds * self.launches * self.kernel_us / 1000,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cushaw_has_the_papers_proportions() {
        let row = CUSHAW.row();
        // A tenth of 2.4 GB and 240 MB there, of 200 MB back, and of 45 s.
        let of = |name: &str| row[name].as_f64().unwrap();
        assert!((of("to_device_kib") * 1024.0 / 264e6 - 1.0).abs() < 0.001, "{row}");
        assert!((of("from_device_kib") * 1024.0 / 20e6 - 1.0).abs() < 0.001, "{row}");
        assert!((of("device_ms") / 4500.0 - 1.0).abs() < 0.001, "{row}");
        let quick = CUSHAW.part(QUICK).row();
        for name in ["to_device_kib", "from_device_kib", "device_ms"] {
            let tenth = quick[name].as_f64().unwrap() * 10.0;
            assert!((tenth / of(name) - 1.0).abs() < 0.01, "{name}: {quick} {row}");
        }
    }
}
