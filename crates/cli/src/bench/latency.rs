//! `bench latency`: how soon a user-facing vGPU's requests are answered beside two batch tenants.
//! On a genuine GPU beside what its own driver makes of the same programs.

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::document::Document;
use super::tenant::{Host, ShareReport, Tenant, common_start, kernel};
use super::{Context, least, median, most};

/// Requests: kernels of so many µs, so many of them, and the mean time between two in µs.
type Service = (u64, u64, u64);

/// Each asks for less than its third of the device.
const SERVICES: [Service; 2] = [(391, 4, 12_000), (803, 4, 20_000)];
/// What the batch tenants launch without end.
const BATCHES: [Batch; 3] = [Batch::Kernels(207), Batch::Kernels(1_605), Batch::Long];
/// Blocks of a long kernel, which takes 0.5 s and is cut between them, and the time of one.
const LONG_BLOCKS: u64 = 5_000;
const BLOCK_US: u64 = 100;
/// The most that batch work has in flight, in µs: the node's default.
const SLICE_US: f64 = 2_000.0;
const SLA_NS: u64 = 50_000_000;
const RUNS: u64 = 3;

/// A batch tenant's load.
#[derive(Debug, Clone, Copy)]
enum Batch {
    /// Kernels of so many µs.
    Kernels(u64),
    /// Kernels that last longer than any SLA.
    Long,
}

/// What one run saw.
struct Seen {
    p99_us: f64,
    /// What the batch tenants completed of the time that the requests left.
    batch: f64,
}

impl Seen {
    fn median(seen: &[Self]) -> Self {
        let of = |pick: fn(&Self) -> f64| median(&seen.iter().map(pick).collect::<Vec<_>>());
        Self { p99_us: of(|seen| seen.p99_us), batch: of(|seen| seen.batch) }
    }
}

#[derive(Deserialize)]
struct Answers {
    answers_us: Vec<f64>,
}

pub(crate) fn run(context: &Context) -> Result<Document> {
    let (runs, seconds) = if context.quick { (1, 3) } else { (RUNS, 20) };
    let window = format!("{runs} runs of {seconds} s per service and batch load; medians");
    let mut document = Document::new("latency", context.pace.mode(), &window);
    let names = SERVICES.iter().flat_map(|(us, ..)| BATCHES.map(|batch| batch.beside(*us)));
    let names: Vec<String> = names.collect();
    context.check_only(names.iter().map(String::as_str))?;
    let mut rows = Rows::default();
    for service in SERVICES {
        beside_batches(context, &mut document, service, (runs, seconds), &mut rows)?;
    }
    document.figure_of("p99_over_alone_max", &rows.overs, most);
    document.figure_of("batch_share_min", &rows.shares, least);
    document.figure_of("p99_over_alone_control", &rows.controls, least);
    Ok(document)
}

/// What figures of all loads are of; nothing where a load's is void.
#[derive(Default)]
struct Rows {
    /// A service's 99th percentile over alone and a slice.
    overs: Vec<Option<f64>>,
    /// What batch work had of the rest.
    shares: Vec<Option<f64>>,
    /// The first without the class.
    controls: Vec<Option<f64>>,
}

/// A service beside each batch load, and alone.
fn beside_batches(
    context: &Context,
    document: &mut Document,
    service: Service,
    (runs, seconds): (u64, u64),
    rows: &mut Rows,
) -> Result<()> {
    let us = service.0;
    let measure = |batch, sla_ns| -> Result<Seen> {
        let seen: Vec<Seen> = (0..runs)
            .map(|seed| {
                Host::on_node(context, context.pace.is_modelled(), &[], |host| {
                    contend(context, host, service, batch, sla_ns, (seconds, seed))
                })
            })
            .collect::<Result<_>>()?;
        Ok(Seen::median(&seen))
    };
    let wanted = BATCHES.into_iter().filter(|batch| context.wants(&batch.beside(us)));
    let wanted: Vec<Batch> = wanted.collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let name = format!("p99_us_alone_{us}us");
    let alone = document.held(measure(None, SLA_NS), [name.clone()])?.map(|seen| seen.p99_us);
    if let Some(alone) = alone {
        document.baseline(name, alone);
    }
    for batch in wanted {
        let [p99, over, share] = names_of(&batch.beside(us));
        let Some(alone) = alone else {
            document.void_with_rows([p99.as_str(), &over, &share]);
            rows.add(None);
            continue;
        };
        let both =
            measure(Some(batch), SLA_NS).and_then(|ours| Ok((ours, measure(Some(batch), 0)?)));
        let both = document.held(both, [p99.clone(), over.clone(), share.clone()])?;
        let of_alone = |seen: &Seen| seen.p99_us / (alone + SLICE_US);
        let row = both.as_ref().map(|(ours, equal)| [of_alone(ours), ours.batch, of_alone(equal)]);
        rows.add(row);
        let Some((ours, equal)) = both else { continue };
        document.figure(p99, ours.p99_us);
        document.figure(over.clone(), of_alone(&ours));
        document.figure(share.clone(), ours.batch);
        document.control(over, of_alone(&equal));
        document.control(share, equal.batch);
        if !context.pace.is_modelled() {
            let driver = Host::direct(false)?;
            let run = |seed| contend(context, &driver, service, Some(batch), 0, (seconds, seed));
            let seen = Seen::median(&(0..runs).map(run).collect::<Result<Vec<_>>>()?);
            let name = batch.beside(us);
            document.baseline(format!("driver_p99_us_{name}"), seen.p99_us);
            document.baseline(format!("driver_batch_share_{name}"), seen.batch);
        }
    }
    Ok(())
}

/// The figures of a load; the last two are its controls', too.
fn names_of(load: &str) -> [String; 3] {
    [format!("p99_us_{load}"), format!("p99_over_alone_{load}"), format!("batch_share_{load}")]
}

impl Rows {
    fn add(&mut self, row: Option<[f64; 3]>) {
        self.overs.push(row.map(|row| row[0]));
        self.shares.push(row.map(|row| row[1]));
        self.controls.push(row.map(|row| row[2]));
    }
}

impl Batch {
    /// What a service with kernels of `us` beside it is called.
    fn beside(self, us: u64) -> String {
        match self {
            Self::Kernels(batch) => format!("{us}us_beside_{batch}us"),
            Self::Long => format!("{us}us_beside_{}us", LONG_BLOCKS * BLOCK_US),
        }
    }

    fn start(self, context: &Context, host: &Host, name: &str, run: (u64, &str)) -> Result<Tenant> {
        let (seconds, start) = (run.0.to_string(), run.1);
        let command = match self {
            Self::Kernels(us) => {
                let mut command = context.program("share");
                command.args([&kernel(us), &seconds, "--start", start]);
                command
            }
            Self::Long => {
                let mut command = context.program("long");
                let blocks = context.pace.blocks(LONG_BLOCKS).to_string();
                command.args([&seconds, "--blocks", &blocks, "--start", start]);
                command
            }
        };
        host.start(name, 1, command)
    }

    /// The part of the device's time that a tenant's completed work took.
    fn part(self, context: &Context, tenant: Tenant) -> Result<f64> {
        let report = ShareReport::parse(tenant.finish()?)?;
        #[expect(clippy::cast_precision_loss, reason = "some million launches of microseconds")]
        let completed_us = match self {
            Self::Kernels(us) => (report.completed * us) as f64,
            // It counts blocks.
            Self::Long => report.completed as f64 * context.pace.block_us(BLOCK_US),
        };
        Ok(completed_us / 1e6 / report.seconds)
    }
}

/// A service, of batch class without an SLA, beside two tenants that work without end, or beside
/// nobody.
fn contend(
    context: &Context,
    host: &Host,
    (us, launches, period_us): Service,
    batch: Option<Batch>,
    sla_ns: u64,
    (seconds, seed): (u64, u64),
) -> Result<Seen> {
    if !matches!(host, Host::Driver { .. }) {
        let mut admin = host.daemon()?.sockets().connect()?;
        admin.create("service", Some(1), None)?;
        admin.set_sla("service", sla_ns)?;
    }
    let start = common_start();
    let mut command = context.program("request");
    command.args([kernel(us), launches.to_string(), period_us.to_string(), seconds.to_string()]);
    command.args([&start, &seed.to_string()]);
    let service = host.start("service", 1, command)?;
    let mut others = Vec::new();
    for (batch, name) in batch.iter().flat_map(|batch| [(batch, "one"), (batch, "two")]) {
        others.push((*batch, batch.start(context, host, name, (seconds, &start))?));
    }
    let line = service.finish()?.pop().context("the service printed nothing")?;
    let Answers { mut answers_us } = serde_json::from_value(line)?;
    answers_us.sort_unstable_by(f64::total_cmp);
    let p99_us = answers_us.get(answers_us.len() * 99 / 100).copied();
    let p99_us = p99_us.context("no request was answered")?;
    #[expect(clippy::cast_precision_loss, reason = "seconds of microseconds")]
    let asked_s = (answers_us.len() as u64 * launches * us) as f64 / 1e6;
    let parts = others.into_iter().map(|(batch, tenant)| batch.part(context, tenant));
    let done_part: f64 = parts.sum::<Result<f64>>()?;
    #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
    let left = 1.0 - asked_s / seconds as f64;
    Ok(Seen { p99_us, batch: done_part / left })
}
