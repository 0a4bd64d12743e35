//! VMs and hosts of Alibaba's GPU trace of 2023, and a seeded stand-in for those who do not have
//! it.
//!
//! The files are the user's; none is part of Weft. `openb_pod_list_*.csv` has a line for each pod
//! with `cpu_milli`, `memory_mib`, `num_gpu`, `gpu_milli` and `gpu_spec` (kinds that will do,
//! separated by bars), `openb_node_list_*.csv` one for each host with `cpu_milli`, `memory_mib`,
//! `gpu` and `model` (Weng et al., USENIX ATC '23).

use std::fmt::Write as _;

use weft_sched::placement::{Cluster, GPUS_OF_HOST_MAX, KINDS_MAX, Kinds, Mode, PolicyId, Request};

use crate::flexy::TraceError;
use crate::random::Random;

/// Parts of a GPU: memory is counted in thousandths of one, as the trace does.
pub const GPU_MILLI: u64 = 1_000;

/// A host of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Processors in thousandths.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// GPUs.
    pub gpus: usize,
    /// What kind they are: a place in [`Trace::models`].
    pub kind: u8,
}

/// Hosts and what is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Names of kinds of GPUs.
    pub models: Vec<String>,
    /// Hosts.
    pub nodes: Vec<Node>,
    /// Requests, by time.
    pub requests: Vec<Request>,
}

impl Trace {
    /// Parts of GPUs that all hosts have.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.nodes.iter().map(|node| node.gpus as u64 * GPU_MILLI).sum()
    }

    /// An empty cluster of the hosts.
    ///
    /// # Panics
    /// If hosts were made by hand and are none: those read or generated are checked.
    #[must_use]
    pub fn cluster(&self, policy: PolicyId) -> Cluster {
        let mut cluster = Cluster::new(policy);
        for node in &self.nodes {
            let gpus = vec![GPU_MILLI; node.gpus];
            cluster.add_host(node.kind, node.cpu_milli, node.memory_mib, &gpus).expect("checked");
        }
        cluster
    }
}

/// Parts of GPUs that a request takes.
#[must_use]
pub fn asked(request: &Request) -> u64 {
    match request.mode {
        Mode::Exclusive => u64::from(request.cgpus) * GPU_MILLI,
        Mode::Shared => u64::from(request.cgpus) * request.memory,
    }
}

/// Lines of a CSV file with a header, and where the columns that are needed stand.
struct Table<'a> {
    lines: Vec<(usize, Vec<&'a str>)>,
    header: Vec<&'a str>,
}

impl<'a> Table<'a> {
    fn new(text: &'a str) -> Self {
        let split = |line: &'a str| line.split(',').map(str::trim).collect::<Vec<_>>();
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let header = lines.next().map_or_else(Vec::new, |(_, line)| split(line));
        Self { lines: lines.map(|(number, line)| (number + 1, split(line))).collect(), header }
    }

    fn column(&self, name: &'static str) -> Result<Column, TraceError> {
        let place = self.header.iter().position(|cell| *cell == name);
        Ok(Column { name, place: place.ok_or(TraceError::Column(name))? })
    }
}

#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    place: usize,
}

impl Column {
    fn text<'a>(self, (_, cells): &(usize, Vec<&'a str>)) -> &'a str {
        cells.get(self.place).copied().unwrap_or_default()
    }

    /// A whole number up to a limit; some files write it with a decimal point.
    fn number(self, line: &(usize, Vec<&str>), most: u64) -> Result<u64, TraceError> {
        let text = self.text(line);
        let digits = text.split('.').next().unwrap_or_default();
        let number = digits.parse().ok().filter(|number| *number <= most);
        let wrong =
            || TraceError::Value { line: line.0, column: self.name, value: text.to_owned() };
        number.ok_or_else(wrong)
    }
}

/// Reads hosts and pods. A pod with one GPU and less than all of it asks for a shared cGPU, others
/// with GPUs for exclusive ones on one host, those without for a local VM.
///
/// # Errors
/// If a column is missing, a value cannot be read, a pod names a kind that no host has, or there is
/// no host or no pod.
pub fn import(nodes: &str, pods: &str) -> Result<Trace, TraceError> {
    let mut trace = Trace { models: Vec::new(), nodes: Vec::new(), requests: Vec::new() };
    let table = Table::new(nodes);
    let [cpu, memory, gpus, model] =
        ["cpu_milli", "memory_mib", "gpu", "model"].map(|name| table.column(name));
    let (cpu, memory, gpus, model) = (cpu?, memory?, gpus?, model?);
    for line in &table.lines {
        let kind =
            kind_of(&mut trace.models, model.text(line)).ok_or_else(|| unread(line, model))?;
        trace.nodes.push(Node {
            cpu_milli: cpu.number(line, u64::from(u32::MAX))?,
            memory_mib: memory.number(line, u64::from(u32::MAX))?,
            gpus: usize::try_from(gpus.number(line, GPUS_OF_HOST_MAX as u64)?).unwrap_or(0),
            kind,
        });
    }
    let table = Table::new(pods);
    let [cpu, memory, number, part] =
        ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"].map(|name| table.column(name));
    let (cpu, memory, number, part) = (cpu?, memory?, number?, part?);
    let kinds = table.column("gpu_spec").ok();
    for line in &table.lines {
        let gpus = number.number(line, GPUS_OF_HOST_MAX as u64)?;
        let milli = if gpus == 0 { 0 } else { part.number(line, GPU_MILLI)? };
        let mut request = request(gpus, milli);
        request.cpu_milli = cpu.number(line, u64::from(u32::MAX))?;
        request.host_memory = memory.number(line, u64::from(u32::MAX))?;
        if let Some(column) = kinds {
            request.kinds =
                kinds_of(&trace.models, column.text(line)).ok_or_else(|| unread(line, column))?;
        }
        trace.requests.push(request);
    }
    if trace.requests.is_empty() || trace.capacity() == 0 {
        return Err(TraceError::Empty);
    }
    Ok(trace)
}

fn unread(line: &(usize, Vec<&str>), column: Column) -> TraceError {
    let value = column.text(line).to_owned();
    TraceError::Value { line: line.0, column: column.name, value }
}

/// So many GPUs of a host, or this part of one.
fn request(gpus: u64, milli: u64) -> Request {
    let cgpus = u32::try_from(gpus).unwrap_or(u32::MAX);
    let is_part = gpus == 1 && (1..GPU_MILLI).contains(&milli);
    let (memory, mode) = if is_part {
        (milli, Mode::Shared)
    } else {
        (GPU_MILLI.min(gpus * GPU_MILLI), Mode::Exclusive)
    };
    Request::new(cgpus, memory, mode).local()
}

fn kind_of(models: &mut Vec<String>, name: &str) -> Option<u8> {
    let known = models.iter().position(|model| model == name).unwrap_or_else(|| {
        models.push(name.to_owned());
        models.len() - 1
    });
    u8::try_from(known).ok().filter(|kind| *kind < KINDS_MAX)
}

fn kinds_of(models: &[String], names: &str) -> Option<Kinds> {
    if names.is_empty() || names == "nan" {
        return Some(Kinds::ANY);
    }
    let kind = |name: &str| {
        let known = models.iter().position(|model| model == name)?;
        u8::try_from(known).ok().map(Kinds::one)
    };
    names.split('|').try_fold(Kinds(0), |all, name| Some(all.or(kind(name)?)))
}

/// Hosts of the stand-in: how many of 100, GPUs, processors and main memory in GiB.
const HOSTS: [(u64, usize, u64, u64); 4] =
    [(45, 8, 96, 384), (35, 2, 96, 512), (10, 4, 64, 256), (10, 2, 16, 128)];
/// Requests of the stand-in: how many of 1,000, GPUs, thousandths of each, processors, GiB.
const REQUESTS: [(u64, u64, u64, u64, u64); 12] = [
    (130, 0, 0, 16, 32),
    (60, 1, 200, 4, 8),
    (60, 1, 320, 4, 16),
    (90, 1, 470, 8, 32),
    (60, 1, 650, 10, 32),
    (120, 1, 810, 4, 16),
    (280, 1, 1_000, 11, 48),
    (130, 1, 1_000, 4, 16),
    (60, 1, 1_000, 18, 64),
    (2, 2, 1_000, 24, 96),
    (2, 4, 1_000, 48, 192),
    (6, 8, 1_000, 88, 320),
];

/// A stand-in of so many hosts and requests of about what they have: like the trace in how many ask
/// for nothing, a part, one or several GPUs (Weng et al., §2), and otherwise made up.
#[must_use]
pub fn synthetic(hosts: usize, seed: u64) -> Trace {
    let mut random = Random::part(seed, 22);
    let models = ["small", "large"].map(str::to_owned).to_vec();
    let mut trace = Trace { models, nodes: Vec::new(), requests: Vec::new() };
    for _ in 0..hosts.max(1) {
        let (_, gpus, cpus, gib) = *drawn(&mut random, &HOSTS, |host| host.0);
        let kind = u8::from(gpus == 8);
        trace.nodes.push(Node { cpu_milli: cpus * 1_000, memory_mib: gib << 10, gpus, kind });
    }
    let capacity = trace.capacity();
    let mut sum = 0;
    while sum < capacity {
        let (_, gpus, milli, cpus, gib) = *drawn(&mut random, &REQUESTS, |one| one.0);
        let mut one = request(gpus, milli);
        // Some take half as many processors again, so that hosts run out of them unevenly.
        one.cpu_milli = cpus * 1_000 + 500 * cpus * random.below(2);
        one.host_memory = gib << 10;
        sum += asked(&one);
        trace.requests.push(one);
    }
    trace
}

fn drawn<'a, T>(random: &mut Random, of: &'a [T], weight: impl Fn(&T) -> u64) -> &'a T {
    let mut at = random.below(of.iter().map(&weight).sum());
    let found = of.iter().find(|one| match at.checked_sub(weight(one)) {
        Some(rest) => {
            at = rest;
            false
        }
        None => true,
    });
    found.unwrap_or(&of[0])
}

/// Requests as text, in the columns of the trace.
#[must_use]
pub fn pods_csv(trace: &Trace) -> String {
    let mut text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n".to_owned();
    for (number, one) in trace.requests.iter().enumerate() {
        let milli = if one.cgpus == 0 { 0 } else { one.memory };
        let named = |kind: &usize| one.kinds.has(u8::try_from(*kind).unwrap_or(u8::MAX));
        let kinds: Vec<&str> = match one.kinds {
            Kinds::ANY => Vec::new(),
            _ => (0..trace.models.len())
                .filter(named)
                .map(|kind| trace.models[kind].as_str())
                .collect(),
        };
        let (cpu, memory, gpus) = (one.cpu_milli, one.host_memory, one.cgpus);
        let _ = writeln!(text, "pod-{number},{cpu},{memory},{gpus},{milli},{}", kinds.join("|"));
    }
    text
}

/// Hosts as text, in the columns of the trace.
#[must_use]
pub fn nodes_csv(trace: &Trace) -> String {
    let mut text = "sn,cpu_milli,memory_mib,gpu,model\n".to_owned();
    for (number, node) in trace.nodes.iter().enumerate() {
        let model = trace.models.get(usize::from(node.kind)).map_or("", String::as_str);
        let Node { cpu_milli, memory_mib, gpus, .. } = node;
        let _ = writeln!(text, "node-{number},{cpu_milli},{memory_mib},{gpus},{model}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\n\
        a,64000,262144,2,P9\n\
        b,96000,393216,8,T9\n";
    const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n\
        x,12000,16384,1,1000,,LS\n\
        y,6000,12288,1,460,P9|T9,LS\n\
        z,4000,1024,0,0,,BE\n\
        w,88000,327680,8,1000,T9,LS\n";

    #[test]
    fn hosts_and_pods_are_read() {
        let trace = import(NODES, PODS).expect("it is sound");
        assert_eq!((trace.capacity(), trace.models.len()), (10_000, 2));
        let of = |number: usize| {
            let one = &trace.requests[number];
            (one.cgpus, one.memory, one.mode, one.cpu_milli)
        };
        assert_eq!(of(0), (1, 1_000, Mode::Exclusive, 12_000));
        assert_eq!(of(1), (1, 460, Mode::Shared, 6_000));
        assert_eq!((of(2).0, of(3).0), (0, 8));
        assert_eq!(trace.requests[1].kinds, Kinds(3));
        assert!(!trace.requests[3].kinds.has(0) && trace.requests[0].kinds == Kinds::ANY);
        let sum: u64 = trace.requests.iter().map(asked).sum();
        assert_eq!(sum, 9_460);
    }

    #[test]
    fn an_error_names_line_and_column() {
        let error = import(NODES, &PODS.replace("460", "4600")).expect_err("too much of a GPU");
        assert_eq!(error.to_string(), "line 3 of the trace: gpu_milli = \"4600\" cannot be read");
        let error = import(NODES, &PODS.replace("T9,LS", "X1,LS")).expect_err("an unknown kind");
        assert!(error.to_string().contains("gpu_spec"), "{error}");
        assert!(matches!(import("sn\n", PODS), Err(TraceError::Column("cpu_milli"))));
        assert!(matches!(
            import(NODES, "cpu_milli,memory_mib,num_gpu,gpu_milli\n"),
            Err(TraceError::Empty)
        ));
    }

    #[test]
    fn the_stand_in_is_seeded_and_comes_back_from_text() {
        let trace = synthetic(50, 1);
        assert_eq!(trace, synthetic(50, 1));
        assert_ne!(trace, synthetic(50, 2));
        let back = import(&nodes_csv(&trace), &pods_csv(&trace)).expect("it was just written");
        assert_eq!((back.nodes.len(), &back.requests), (50, &trace.requests));
        assert_eq!(back.capacity(), trace.capacity());
    }
}
