//! Figures of the control plane alone: the interface over HTTP, the store on disk, decisions, plans
//! and steps are real; VMs boot at once, endpoints and nodes are in memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use weft_api::figures::Figures;
use weft_api::v1::{Client, ClientError, InstanceState, Kind, Mode, NewInstance, Quota, Role};

use crate::allocate::Allocator;
use crate::crash::Crash;
use crate::engine::Engine;
use crate::execute::World;
use crate::provision::fake::Fake;
use crate::service::Service;
use crate::store::sqlite::Sqlite;
use crate::store::{GpuFound, NodeRow, Store, TokenRow};
use crate::{http, random};

/// cGPUs of a VM whose making is timed, as many as the paper's largest.
const CGPUS: u32 = 75;

/// Grants that are there already when it is timed again.
const PRESENT: u32 = 10_000;

/// Times that it is timed.
const REPEATS: usize = 9;

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

impl Plane {
    fn start() -> Result<Self> {
        // Where the system keeps what must stay: a memory file system would flatter.
        let folder = tempfile::tempdir_in(".").or_else(|_| tempfile::tempdir())?;
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&folder.path().join("control.db"))?);
        let gpus: Vec<GpuFound> = (0..GPUS_OF_NODE)
            .map(|number| GpuFound {
                device: format!("gpu{number}"),
                product: "in memory".to_owned(),
                memory_mib: MEMORY_MIB,
            })
            .collect();
        for number in 0..NODES {
            let name = format!("n{number}");
            let (admin, gateway) = (name.clone(), format!("{name}.example:7600"));
            let host = name.clone();
            let identity = admin.clone();
            let node = NodeRow {
                name,
                admin,
                gateway,
                gateway_given: true,
                host,
                created_ms: 0,
                gpus: 0,
                identity,
            };
            store.put_node(&node, &gpus, None)?;
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
        let token = TokenRow { name: "bench".to_owned(), project, role, created_ms: 0 };
        store.add_token(&token, random::digest(b"bench"), None)?;
        let address = serve(&store)?;
        let client = Client::new(&address.to_string(), "bench")?;
        Ok(Self { client, store, _folder: folder })
    }

    /// The time until an instance is ready, in ms; and its id.
    fn make(&self, cgpus: u32) -> Result<(f64, String)> {
        let begun = Instant::now();
        let mut instance = self.client.create_instance(None, &wanted(cgpus))?;
        while instance.state == InstanceState::Building {
            thread::yield_now();
            instance = self.client.instance(&instance.id)?;
        }
        ensure!(instance.state == InstanceState::Ready, "an instance came to nothing");
        Ok((begun.elapsed().as_secs_f64() * 1e3, instance.id))
    }

    fn remove(&self, id: &str) -> Result<()> {
        self.client.delete_instance(id)?;
        loop {
            match self.client.instance(id) {
                Ok(one) if one.state == InstanceState::Terminated => return Ok(()),
                Ok(_) => thread::yield_now(),
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
            let (ms, id) = self.make(cgpus)?;
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

fn wanted(cgpus: u32) -> NewInstance {
    NewInstance {
        name: None,
        project: None,
        cgpus,
        memory_mib: Some(1024),
        mode: Some(Mode::Shared),
        locality: None,
        weight: None,
        sla_us: None,
        user_data: None,
    }
}

fn serve(store: &Arc<dyn Store>) -> Result<SocketAddr> {
    let fake = Arc::new(Fake::default());
    let policy = weft_sched::placement::by_name("first_fit")?;
    let world = World {
        store: Arc::clone(store),
        allocator: Arc::new(Allocator::new(Arc::clone(store), policy)),
        provisioner: Arc::clone(&fake) as _,
        endpoint: Arc::clone(&fake) as _,
        nodes: fake,
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

/// Measures; what was made is checked at the end.
///
/// # Errors
/// If something fails that must not.
pub fn run(time: Duration) -> Result<Figures> {
    let plane = Plane::start()?;
    let mut figures = BTreeMap::new();
    let mut controls = BTreeMap::new();
    // The first ones open files and fill caches.
    plane.manage(CGPUS)?;
    let (empty, _) = plane.manage(CGPUS)?;
    let each = Instant::now();
    let singles: Vec<String> = (0..CGPUS).map(|_| Ok(plane.make(1)?.1)).collect::<Result<_>>()?;
    controls.insert("manage_75_one_by_one_ms".to_owned(), each.elapsed().as_secs_f64() * 1e3);
    singles.iter().try_for_each(|id| plane.remove(id))?;
    let present: Vec<String> =
        (0..PRESENT / 100).map(|_| Ok(plane.make(100)?.1)).collect::<Result<_>>()?;
    let (full, longest) = plane.manage(CGPUS)?;
    figures.insert("manage_75_ms".to_owned(), full);
    figures.insert("manage_75_max_ms".to_owned(), longest);
    figures.insert("manage_75_over_empty".to_owned(), full / empty);
    let some = present.first().context("grants")?;
    let read = |plane: &Plane| Ok(plane.client.instance(some).map(drop)?);
    figures.insert("reads_per_s".to_owned(), plane.throughput(4, time, read)?);
    let cycle = |plane: &Plane| plane.remove(&plane.make(1)?.1);
    figures.insert("grants_per_s".to_owned(), plane.throughput(AT_ONCE, time, cycle)?);
    controls.insert("grants_per_s_one_at_a_time".to_owned(), plane.throughput(1, time, cycle)?);
    present.iter().try_for_each(|id| plane.remove(id))?;
    let counts = plane.store.counts()?;
    ensure!((counts.cgpus, counts.held_mib) == (0, 0), "something was not given back: {counts:?}");
    let mode = "real, with VMs, endpoints and nodes in memory".to_owned();
    let window = format!("median of {REPEATS}; {} s for each rate", time.as_secs());
    Ok(Figures { controls, ..Figures::new("control", mode, window, figures) })
}
