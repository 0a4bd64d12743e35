//! Figures of the control plane alone: the interface over HTTP, the store on disk, decisions, plans
//! and steps are real; VMs boot at once, endpoints and nodes are in memory. Given what a virtual
//! machine boots, also what cGPUs add to a VM's boot, by VMs of QEMU and by a real node.

mod boot;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use weft_api::figures::Figures;
use weft_api::stolen::Processors;
use weft_api::v1::{
    Client, ClientError, EventKind, InstanceState, Kind, Mode, NewInstance, Quota, Role,
};
use weft_sched::placement::PolicyId;

use self::boot::Boots;
use crate::allocate::Allocator;
use crate::crash::Crash;
use crate::engine::Engine;
use crate::execute::World;
use crate::nodes::Nodes;
use crate::plan::Step;
use crate::provision::Provisioner;
use crate::provision::fake::Fake;
use crate::rules::Endpoint;
use crate::service::Service;
use crate::store::sqlite::Sqlite;
use crate::store::{GpuFound, NodeRow, Store, TokenRow};
use crate::{http, random};

/// cGPUs of a VM whose making is timed, as many as the paper's largest.
const CGPUS: u32 = 75;

/// Memory of each, in MiB.
const CGPU_MIB: u64 = 1024;

/// Grants that are there already when it is timed again.
const PRESENT: u32 = 10_000;

/// Times that it is timed.
const REPEATS: usize = 9;

/// Whoever waits for what comes of itself is answered within this time, and asks again.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Cycles of making and removing at once.
const AT_ONCE: usize = 16;

/// GPUs: enough for everything.
const NODES: usize = 100;
const GPUS_OF_NODE: usize = 16;
const MEMORY_MIB: u64 = 80 << 10;

/// A control plane of its own, over HTTP.
struct Plane {
    client: Client,
    store: Arc<dyn Store>,
    _folder: tempfile::TempDir,
}

/// All that is not the control plane.
struct Outside {
    provisioner: Arc<dyn Provisioner>,
    endpoint: Arc<dyn Endpoint>,
    nodes: Arc<dyn Nodes>,
}

/// Nodes that are only said to be there.
fn nodes_in_memory() -> Vec<(NodeRow, Vec<GpuFound>)> {
    let gpus = |_| (0..GPUS_OF_NODE).map(gpu_in_memory).collect();
    (0..NODES).map(node_in_memory).map(|node| (node, gpus(()))).collect()
}

fn gpu_in_memory(number: usize) -> GpuFound {
    let (device, product) = (format!("gpu{number}"), "in memory".to_owned());
    GpuFound { device, product, memory_mib: MEMORY_MIB }
}

fn node_in_memory(number: usize) -> NodeRow {
    let name = format!("n{number}");
    NodeRow {
        admin: name.clone(),
        gateway: format!("{name}.example:7600"),
        gateway_given: true,
        host: name.clone(),
        created_ms: 0,
        gpus: 0,
        identity: name.clone(),
        name,
    }
}

impl Plane {
    /// With everything else in memory.
    fn start() -> Result<Self> {
        let fake = Arc::new(Fake::default());
        let (provisioner, endpoint) = (Arc::clone(&fake) as _, Arc::clone(&fake) as _);
        let outside = Outside { provisioner, endpoint, nodes: fake };
        Self::with(outside, &nodes_in_memory())
    }

    fn with(outside: Outside, nodes: &[(NodeRow, Vec<GpuFound>)]) -> Result<Self> {
        // Where the system keeps what must stay: a memory file system would flatter.
        let folder = tempfile::tempdir_in(".").or_else(|_| tempfile::tempdir())?;
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&folder.path().join("control.db"))?);
        for (node, gpus) in nodes {
            store.put_node(node, gpus, None)?;
        }
        let most = 1 << 40;
        let quota = Quota {
            cgpus: most,
            memory_mib: most,
            exclusive_gpus: most,
            weight: most,
            user_facing: most,
        };
        store.put_project("bench", quota, None)?;
        let project = Some("bench".to_owned());
        let role = Role::Member;
        let token =
            TokenRow { name: "bench".to_owned(), project, role, created_ms: 0, expires_ms: None };
        store.add_token(&token, random::digest(b"bench"), None)?;
        let address = serve(&store, outside)?;
        let client = Client::new(&address.to_string(), "bench")?;
        Ok(Self { client, store, _folder: folder })
    }

    /// The time until an instance is ready, in ms; and its id.
    fn make(&self, cgpus: u32, memory_mib: u64) -> Result<(f64, String)> {
        let begun = Instant::now();
        let mut instance = self.client.create_instance(None, &wanted(cgpus, memory_mib))?;
        while instance.state == InstanceState::Building {
            instance = self.client.instance_within(&instance.id, ANSWERED_WITHIN)?;
        }
        let failure = instance.failure.unwrap_or_default();
        ensure!(instance.state == InstanceState::Ready, "an instance came to nothing: {failure}");
        Ok((begun.elapsed().as_secs_f64() * 1e3, instance.id))
    }

    /// What a step of making an instance took, in ms.
    fn took_ms(&self, id: &str, step: Step) -> Result<f64> {
        let operation = self.client.operation(&self.client.instance(id)?.operation)?;
        let mut events = operation.events.iter();
        let done = events.find(|event| event.step == step.name() && event.kind == EventKind::Done);
        let done = done.with_context(|| format!("nothing says what {} took", step.name()))?;
        Ok(Duration::from_micros(done.took_us).as_secs_f64() * 1e3)
    }

    fn remove(&self, id: &str) -> Result<()> {
        self.client.delete_instance(id)?;
        loop {
            match self.client.instance_within(id, ANSWERED_WITHIN) {
                Ok(one) if one.state == InstanceState::Terminated => return Ok(()),
                Ok(_) => {}
                Err(ClientError::Refused(problem)) if problem.kind == Kind::NotFound => {
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The median time of making a VM with so many cGPUs, in ms, and the longest.
    fn manage(&self, cgpus: u32) -> Result<(f64, f64)> {
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            let (ms, id) = self.make(cgpus, CGPU_MIB)?;
            times.push(ms);
            self.remove(&id)?;
        }
        times.sort_by(f64::total_cmp);
        Ok((times[REPEATS / 2], times[REPEATS - 1]))
    }

    /// So many per second of what `act` does, from so many threads at once.
    fn throughput(
        &self,
        threads: usize,
        time: Duration,
        act: impl Fn(&Self) -> Result<()> + Sync,
    ) -> Result<f64> {
        let (count, ends) = (AtomicU64::new(0), AtomicBool::new(false));
        let begun = Instant::now();
        let worker = || -> Result<()> {
            while !ends.load(Ordering::Relaxed) {
                act(self)?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let elapsed = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            thread::sleep(time);
            ends.store(true, Ordering::Relaxed);
            for worker in workers {
                worker.join().map_err(|_| anyhow::anyhow!("a thread ended"))??;
            }
            Ok::<_, anyhow::Error>(begun.elapsed())
        })?;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let count = count.load(Ordering::Relaxed) as f64;
        Ok(count / elapsed.as_secs_f64())
    }
}

/// A VM with so many shared cGPUs of that much memory, and nothing else.
pub(crate) fn wanted(cgpus: u32, memory_mib: u64) -> NewInstance {
    NewInstance {
        name: None,
        project: None,
        cgpus,
        memory_mib: Some(memory_mib),
        mode: Some(Mode::Shared),
        locality: None,
        weight: None,
        sla_us: None,
        user_data: None,
        image: None,
        flavor: None,
        network: None,
    }
}

fn serve(store: &Arc<dyn Store>, outside: Outside) -> Result<SocketAddr> {
    let allocator = Allocator::new(Arc::clone(store), PolicyId::default());
    let world = World {
        store: Arc::clone(store),
        allocator: Arc::new(allocator),
        provisioner: outside.provisioner,
        endpoint: outside.endpoint,
        nodes: outside.nodes,
        crash: Crash::default(),
    };
    let service = Arc::new(Service::new(Engine::start(world, AT_ONCE)?));
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("http".to_owned()).spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, http::router(&service)).await
        })
    })?;
    Ok(address)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures; what was made is checked at the end. With `guest`, a folder of what a virtual machine
/// boots, also the boot.
///
/// # Errors
/// If something fails that must not.
pub fn run(time: Duration, guest: Option<&Path>) -> Result<Figures> {
    // What cannot be measured is told before anything was.
    guest.map_or(Ok(()), boot::ensure_image)?;
    let before = Processors::now();
    let policy = PolicyId::default().name();
    let mode = format!("real, placement by {policy}, with VMs, endpoints and nodes in memory");
    let window = format!("median of {REPEATS}; {} s for each rate", time.as_secs());
    let mut found = Figures::new("control", mode, window, BTreeMap::new());
    rates(time)?.add_to(&mut found);
    if let Some(guest) = guest {
        add_boots(&boot::run(guest, CGPUS, boot::Processors::TheirOwn)?, &mut found);
        add_shared_boots(&boot::run(guest, CGPUS, boot::Processors::Shared)?, &mut found);
    }
    found.stolen = Some(Processors::now().stolen_since(before));
    Ok(found)
}

/// What the control plane does alone.
struct Rates {
    /// A VM with 75 cGPUs until it is ready, beside many grants, in ms; and the longest.
    manage_ms: f64,
    manage_max_ms: f64,
    /// The same with no grant present.
    manage_empty_ms: f64,
    /// As many VMs with one each, one after the other, in ms.
    one_by_one_ms: f64,
    reads_per_s: f64,
    grants_per_s: f64,
    /// One at a time.
    grants_alone_per_s: f64,
}

impl Rates {
    fn add_to(&self, found: &mut Figures) {
        let figures = [
            ("manage_75_ms", self.manage_ms),
            ("manage_75_max_ms", self.manage_max_ms),
            ("manage_75_over_empty", self.manage_ms / self.manage_empty_ms),
            ("reads_per_s", self.reads_per_s),
            ("grants_per_s", self.grants_per_s),
        ];
        found.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
        let controls = [
            ("manage_75_one_by_one_ms", self.one_by_one_ms),
            ("grants_per_s_one_at_a_time", self.grants_alone_per_s),
        ];
        found.controls.extend(controls.map(|(name, value)| (name.to_owned(), value)));
    }
}

fn rates(time: Duration) -> Result<Rates> {
    let plane = Plane::start()?;
    // The first ones open files and fill caches.
    plane.manage(CGPUS)?;
    let (manage_empty_ms, _) = plane.manage(CGPUS)?;
    let each = Instant::now();
    let singles: Vec<String> =
        (0..CGPUS).map(|_| Ok(plane.make(1, CGPU_MIB)?.1)).collect::<Result<_>>()?;
    let one_by_one_ms = each.elapsed().as_secs_f64() * 1e3;
    singles.iter().try_for_each(|id| plane.remove(id))?;
    let present: Vec<String> =
        (0..PRESENT / 100).map(|_| Ok(plane.make(100, CGPU_MIB)?.1)).collect::<Result<_>>()?;
    let (manage_ms, manage_max_ms) = plane.manage(CGPUS)?;
    let some = present.first().context("grants")?;
    let read = |plane: &Plane| Ok(plane.client.instance(some).map(drop)?);
    let reads_per_s = plane.throughput(4, time, read)?;
    let cycle = |plane: &Plane| plane.remove(&plane.make(1, CGPU_MIB)?.1);
    let grants_per_s = plane.throughput(AT_ONCE, time, cycle)?;
    let grants_alone_per_s = plane.throughput(1, time, cycle)?;
    present.iter().try_for_each(|id| plane.remove(id))?;
    let counts = plane.store.counts()?;
    ensure!((counts.cgpus, counts.held_mib) == (0, 0), "something was not given back: {counts:?}");
    Ok(Rates {
        manage_ms,
        manage_max_ms,
        manage_empty_ms,
        one_by_one_ms,
        reads_per_s,
        grants_per_s,
        grants_alone_per_s,
    })
}

fn add_boots(boots: &Boots, found: &mut Figures) {
    let mut plain = boots.plain_ms.clone();
    plain.sort_by(f64::total_cmp);
    let (shortest, longest) = (plain[0], plain[plain.len() - 1]);
    let (ready, typical) = (median(boots.ready_ms.clone()), median(plain));
    let figures = [
        ("boot_overhead_75_pct", boots.overhead_pct()),
        ("boot_75_ms", ready),
        ("boot_75_deploy_ms", median(boots.deploy_ms.clone())),
        ("boot_75_before_ms", median(boots.before_ms.clone())),
        ("boot_75_after_ms", median(boots.after_ms.clone())),
        ("boot_75_sign_ms", median(boots.sign_ms.clone())),
        ("boot_75_over_plain_pct", (ready / typical - 1.0) * 100.0),
    ];
    found.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    let baselines =
        [("boot_plain_ms", typical), ("boot_plain_spread_pct", (longest / shortest - 1.0) * 100.0)];
    found.baselines.extend(baselines.map(|(name, value)| (name.to_owned(), value)));
    found.mode += "; boots: QEMU (TCG), the kernel, the node and its grants real";
    let (count, mib) = (boot::BOOTS, boot::CGPU_MIB);
    found.window += &format!(
        "; {count} boots of each kind in turns, cGPUs of {mib} MiB, QEMU on a processor of its own"
    );
}

/// The same where the control plane and the node have no other processors than QEMU.
fn add_shared_boots(boots: &Boots, found: &mut Figures) {
    let controls = [
        ("boot_shared_overhead_75_pct", boots.overhead_pct()),
        ("boot_shared_75_deploy_ms", median(boots.deploy_ms.clone())),
        ("boot_shared_75_before_ms", median(boots.before_ms.clone())),
        ("boot_shared_75_after_ms", median(boots.after_ms.clone())),
    ];
    found.controls.extend(controls.map(|(name, value)| (name.to_owned(), value)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_what_is_promised_of_it() {
        let rates = Rates {
            manage_ms: 6.0,
            manage_max_ms: 9.0,
            manage_empty_ms: 5.0,
            one_by_one_ms: 180.0,
            reads_per_s: 15_000.0,
            grants_per_s: 600.0,
            grants_alone_per_s: 180.0,
        };
        let boots = Boots {
            ready_ms: vec![2_020.0; 3],
            deploy_ms: vec![2_000.0; 3],
            before_ms: vec![12.0; 3],
            after_ms: vec![8.0; 3],
            sign_ms: vec![5.0; 3],
            plain_ms: vec![1_990.0, 2_000.0, 2_010.0],
        };
        let mut found = Figures::new("control", String::new(), String::new(), BTreeMap::new());
        rates.add_to(&mut found);
        add_boots(&boots, &mut found);
        add_shared_boots(&boots, &mut found);
        let figures = [
            ("manage_75_ms", 6.0),
            ("manage_75_over_empty", 1.2),
            ("boot_overhead_75_pct", 1.0),
            ("reads_per_s", 15_000.0),
            ("grants_per_s", 600.0),
        ];
        for (name, wanted) in figures {
            let value = found.figure(name);
            assert!(value.is_some_and(|value| (value - wanted).abs() < 1e-9), "{name}: {value:?}");
        }
        assert!(found.baselines.contains_key("boot_plain_ms"), "{found:?}");
        assert!(found.controls.contains_key("grants_per_s_one_at_a_time"), "{found:?}");
    }
}
