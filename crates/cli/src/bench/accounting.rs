//! `bench accounting`: what was charged against what observers outside Weft saw.
//!
//! *Errors*: on the real clock, kernels whose time is data stamp the device's clock at their
//! beginning and end into memory, and the program sums (`stamps.c`): that is the truth a charge is
//! held against. *Closure*: the device has always work, so all charges together must be the time
//! that passed on this program's clock, although one tenant is killed again and again while its
//! kernels execute. Programs that begin take processors from kernels, which are not charged for
//! that: how much, tenants tell that begin and end as often and are not killed. Controls are books
//! that look plausible and are wrong.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use weft_node::admin::Stats;

use super::document::Document;
use super::tenant::{Host, Tenant, common_start, kernel};
use super::{Context, median};

/// The tenants: name, and the times of their shortest and longest kernels in µs.
const TENANTS: [(&str, u64, u64); 2] = [("brief", 300, 1500), ("long", 600, 6000)];
const RUNS: usize = 5;
/// Uncuttable kernels of the tenant that is killed.
const KILLED_US: u64 = 300_000;
/// How long after its start each process of it lives, in turn, in ms: it dies at any point of its
/// kernels.
const LIVES_MS: [u64; 5] = [410, 640, 530, 880, 470];
/// Kernels of the tenant that stays, on the paced device, and on the real clock the shortest and
/// the longest.
const STEADY_US: u64 = 391;
const STEADY_STAMPS_US: [u64; 2] = [300, 1500];
/// Time in which a window's edges must be quiet: only the tenant that stays is there.
const QUIET: Duration = Duration::from_secs(20);

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (runs, seconds, killing_s) = if context.quick { (1, 2, 4) } else { (RUNS, 6, 30) };
    let window = format!(
        "{runs} runs of {seconds} s of two tenants whose kernels' times are data, real clock; then \
         {killing_s} s each, real and paced, with a tenant that is killed again and again"
    );
    let mut document = Document::new("accounting", "real", &window);
    for (mode, prefix) in [("sampled", ""), ("every", "timing_every_request_")] {
        let mut books = Vec::new();
        for _ in 0..runs {
            let settings = [("scheduling.accounting", mode)];
            books.push(Host::on_node(context, false, &settings, |host| {
                stamped(context, host, seconds)
            })?);
        }
        let errors: Vec<f64> = books.iter().map(|book| book.error).collect();
        document.figure(format!("{prefix}error_median"), median(&errors));
        document.figure(format!("{prefix}error_max"), highest(&errors));
        if mode == "sampled" {
            controls(&mut document, &books);
        }
    }
    let mut closures = Vec::new();
    for (paced, clock) in [(false, "real"), (true, "paced")] {
        let beside = |other| {
            Host::on_node(context, paced, &[], |host| {
                closure(context, host, paced, killing_s, other)
            })
        };
        let steady = beside(Other::Nobody)?;
        document.figure(format!("closure_{clock}_nobody_killed"), steady.error());
        if !paced {
            let ending = beside(Other::Ends)?;
            document.baseline(format!("closure_{clock}_nobody_killed_some_end"), ending.error());
            document.baseline(format!("closure_{clock}_ends"), ending.others);
        }
        let killing = beside(Other::Killed)?;
        document.figure(format!("closure_{clock}"), killing.error());
        document.figure(format!("closure_{clock}_kills"), killing.others);
        document.control(format!("closure_{clock}_without_the_killed"), killing.error_of_steady());
        closures.extend([steady.error(), killing.error()]);
    }
    document.figure("closure", highest(&closures));
    Ok(document)
}

fn controls(document: &mut Document, books: &[Book]) {
    // Each control must fail in every run: its least error counts.
    let least = |of: fn(&Book) -> f64| books.iter().map(of).fold(f64::MAX, f64::min);
    let (unsettled, counted) = (least(|book| book.unsettled), least(|book| book.counted));
    document.control("error_prediction_unsettled", unsettled);
    document.control("error_launches_times_mean", counted);
    document.control("error_control", unsettled.min(counted));
}

fn highest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// What `stamps` reports.
#[derive(Debug, Deserialize)]
struct Stamps {
    launches: u64,
    stamped_ns: u64,
    first_five_ns: u64,
}

/// The larger of two tenants' relative errors, under three kinds of books.
#[derive(Debug)]
struct Book {
    /// Weft's.
    error: f64,
    /// Every launch is charged what the first five took on average: a prediction that is never
    /// settled.
    unsettled: f64,
    /// Every launch is charged what all launches of both took on average.
    counted: f64,
}

impl Book {
    #[expect(clippy::cast_precision_loss, reason = "relative errors")]
    fn of(stamps: &[Stamps], charged_ns: &[u64]) -> Self {
        let (launches, all_ns) =
            stamps.iter().fold((0, 0), |sum, one| (sum.0 + one.launches, sum.1 + one.stamped_ns));
        let mean_ns = all_ns as f64 / launches.max(1) as f64;
        let worst = |charge: &dyn Fn(usize, &Stamps) -> f64| {
            let error = |(place, one): (usize, &Stamps)| {
                (charge(place, one) / one.stamped_ns as f64 - 1.0).abs()
            };
            stamps.iter().enumerate().map(error).fold(0.0, f64::max)
        };
        Self {
            error: worst(&|place, _| charged_ns[place] as f64),
            unsettled: worst(&|_, one| one.launches as f64 * one.first_five_ns as f64 / 5.0),
            counted: worst(&|_, one| one.launches as f64 * mean_ns),
        }
    }
}

fn stamped(context: &Context, host: &Host, seconds: u64) -> Result<Book> {
    let start = common_start();
    let mut tenants = Vec::new();
    for (name, shortest, longest) in TENANTS {
        tenants.push(start_stamps(context, host, name, (seconds, &start), (shortest, longest))?);
    }
    let mut stamps = Vec::new();
    for tenant in tenants {
        let report = tenant.finish()?.into_iter().last().context("stamps printed nothing")?;
        stamps.push(serde_json::from_value::<Stamps>(report)?);
    }
    let (stats, _) = settled(host, |stats| {
        stats.vgpus.iter().all(|vgpu| vgpu.sessions == 0 && vgpu.used_ns > 0)
    })?;
    let charged_ns: Vec<u64> = TENANTS.iter().map(|(name, ..)| used_ns(&stats, name)).collect();
    Ok(Book::of(&stamps, &charged_ns))
}

fn start_stamps(
    context: &Context,
    host: &Host,
    name: &str,
    (seconds, start): (u64, &str),
    (shortest_us, longest_us): (u64, u64),
) -> Result<Tenant> {
    let mut command = context.program("stamps");
    command.args([&seconds.to_string(), start]);
    command.args([shortest_us, longest_us].map(|us| us.to_string()));
    host.start(name, 1, command)
}

fn used_ns(stats: &Stats, name: &str) -> u64 {
    stats.vgpus.iter().filter(|vgpu| vgpu.name == name).map(|vgpu| vgpu.used_ns).sum()
}

/// The node's books as soon as something holds, and when that was on this program's clock.
fn settled(host: &Host, holds: impl Fn(&Stats) -> bool) -> Result<(Stats, Instant)> {
    let mut client = host.daemon()?.sockets().connect()?;
    let deadline = Instant::now() + QUIET;
    loop {
        let stats = client.stats()?;
        if holds(&stats) {
            return Ok((stats, Instant::now()));
        }
        if Instant::now() > deadline {
            bail!("the node's sessions did not come to rest in {QUIET:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Charges of a window, and the time that passed in it.
#[derive(Debug)]
struct Window {
    passed_s: f64,
    charged_s: f64,
    of_steady_s: f64,
    /// How many others there were.
    others: f64,
}

impl Window {
    fn error(&self) -> f64 {
        (self.charged_s / self.passed_s - 1.0).abs()
    }

    /// As if nobody had charged the tenant that was killed.
    fn error_of_steady(&self) -> f64 {
        (self.of_steady_s / self.passed_s - 1.0).abs()
    }
}

/// Who comes beside the tenant that stays, again and again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Nobody,
    /// It has short kernels and ends by itself.
    Ends,
    /// It has kernels that cannot be cut and is killed.
    Killed,
}

/// One tenant always has work; beside it others come and go for `seconds`. The window begins before
/// the first comes and ends when the last is gone.
fn closure(
    context: &Context,
    host: &Host,
    paced: bool,
    seconds: u64,
    other: Other,
) -> Result<Window> {
    let start = common_start();
    // Longer than the window can last; it is told to end by killing it.
    let limit_s = seconds + 120;
    let steady = if paced {
        let mut command = context.program("share");
        command.arg(kernel(STEADY_US)).arg(limit_s.to_string()).arg("--start").arg(&start);
        host.start("steady", 1, command)?
    } else {
        let [shortest_us, longest_us] = STEADY_STAMPS_US;
        start_stamps(context, host, "steady", (limit_s, &start), (shortest_us, longest_us))?
    };
    let works = |stats: &Stats| used_ns(stats, "steady") > 200_000_000;
    let alone =
        |stats: &Stats| stats.vgpus.iter().all(|vgpu| vgpu.name == "steady" || vgpu.sessions == 0);
    let (before, began) = settled(host, works)?;
    let mut others = 0_u32;
    while began.elapsed() < Duration::from_secs(seconds) {
        let life = Duration::from_millis(LIVES_MS[others as usize % LIVES_MS.len()]);
        match other {
            Other::Nobody => {
                std::thread::sleep(life);
                continue;
            }
            Other::Ends => end(context, host, life)?,
            Other::Killed => kill(context, host, paced, life)?,
        }
        others += 1;
    }
    let (after, ended) = settled(host, alone)?;
    steady.kill()?;
    #[expect(clippy::cast_precision_loss, reason = "seconds of nanoseconds")]
    let seconds_of = |ns: u64| ns as f64 / 1e9;
    let all = |stats: &Stats| stats.vgpus.iter().map(|vgpu| vgpu.used_ns).sum::<u64>();
    Ok(Window {
        passed_s: (ended - began).as_secs_f64(),
        charged_s: seconds_of(all(&after) - all(&before)),
        of_steady_s: seconds_of(used_ns(&after, "steady") - used_ns(&before, "steady")),
        others: f64::from(others),
    })
}

/// A process of a tenant that does what the one that stays does, for a while.
fn end(context: &Context, host: &Host, life: Duration) -> Result<()> {
    let mut command = context.program("stamps");
    command.arg(life.as_secs_f64().to_string()).arg("0");
    command.args(STEADY_STAMPS_US.map(|us| us.to_string()));
    host.start("ended", 1, command)?.finish().map(drop)
}

fn kill(context: &Context, host: &Host, paced: bool, life: Duration) -> Result<()> {
    let mut victim = start_killed(context, host, paced)?;
    std::thread::sleep(life);
    if victim.has_ended()? {
        bail!("the tenant that is to be killed ended by itself");
    }
    victim.kill()
}

/// A process of the tenant that dies with its kernels in flight.
fn start_killed(context: &Context, host: &Host, paced: bool) -> Result<Tenant> {
    if paced {
        let mut command = context.program("share");
        command.arg(kernel(KILLED_US)).arg("3600");
        return host.start("killed", 1, command);
    }
    start_stamps(context, host, "killed", (3600, "0"), (KILLED_US, KILLED_US))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(charged_ns: [u64; 2]) -> Book {
        let stamps = [
            Stamps { launches: 100, stamped_ns: 100_000, first_five_ns: 2_500 },
            Stamps { launches: 50, stamped_ns: 200_000, first_five_ns: 20_000 },
        ];
        Book::of(&stamps, &charged_ns)
    }

    #[test]
    fn wrong_books_are_seen() {
        let right = book([100_000, 200_000]);
        assert_eq!(right.error, 0.0);
        // 100 launches at 500 ns, where they took 1,000 on average; 2,000 for all, where the first
        // tenant's took 1,000.
        assert!((right.unsettled - 0.5).abs() < 1e-9 && (right.counted - 1.0).abs() < 1e-9);
        assert!((book([100_000, 190_000]).error - 0.05).abs() < 1e-9);
    }

    #[test]
    fn work_that_nobody_paid_opens_the_closure() {
        let window = Window { passed_s: 10.0, charged_s: 9.0, of_steady_s: 6.0, others: 3.0 };
        assert!((window.error() - 0.1).abs() < 1e-9);
        assert!((window.error_of_steady() - 0.4).abs() < 1e-9);
    }
}
