//! `weft-control serve` and `weft-control token`.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, IsTerminal as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{FlockOperation, flock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};
use weft_api::files;
use weft_api::levels::directives;
use weft_control::allocate::Allocator;
use weft_control::bounded::{Bounded, CONNECTIONS_MAX, IDLE_LIMIT};
use weft_control::crash::Crash;
use weft_control::engine::Engine;
use weft_control::execute::World;
use weft_control::hosts::Hosts;
use weft_control::identity::{Identity, KeystoneTokens};
use weft_control::nodes::Sockets;
use weft_control::openstack::{self, Cloud};
use weft_control::provision::fake::Fake;
use weft_control::provision::local::machine::Image;
use weft_control::provision::local::{Isolation, Local, Settings, guest};
use weft_control::provision::openstack::{Key, OpenStack};
use weft_control::provision::slurm::Slurm;
use weft_control::provision::{self, Provisioner};
use weft_control::rules::Endpoint;
use weft_control::service::Service;
use weft_control::signals::Signals;
use weft_control::store::postgres::{Access, Postgres, Terms};
use weft_control::store::sqlite::Sqlite;
use weft_control::store::{Part, Store, StoreError};
use weft_control::tls::{self, Certificates, Secured};
use weft_control::{clock, http, random, sweep};

use crate::args::{
    Database, OpenstackOptions, ProvisionerName, ReplicaOptions, ServeOptions, ServiceOptions,
    State,
};
use crate::{line, note};

/// Another one that has the folder has ended after this time, or stays.
const LOCK_LIMIT: Duration = Duration::from_secs(2);

/// What says whose a folder is, if what is kept is in a database.
const PLANE_FILE: &str = "control.plane";

/// What that has at most.
const PLANE_BYTES_MAX: usize = 64;

/// How often to look for that.
const PAUSE: Duration = Duration::from_millis(20);

/// A step that is being done is waited for so long, before the lease is given back.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// The wall clock must have gone on for so long before anything is forgotten by it: one that was
/// ahead when the machine started, and is put right soon, takes nobody's bills away.
const STEADY: Duration = Duration::from_secs(3_600);

/// What ended is looked for so often.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// How often nodes that do not answer are asked again.
const LISTEN_EVERY: Duration = Duration::from_secs(2);

/// First users of VMs: those below are the system's and people's, and the last number is nobody's.
const GUEST_USERS: std::ops::RangeInclusive<u32> = 100_000..=u32::MAX - 2_000_000;

/// What this host is called among compute hosts.
pub(crate) const HERE: &str = "local";

/// Bytes of a secret that nobody can guess.
const SECRET_BYTES: usize = 24;

impl State {
    fn path(&self) -> Result<PathBuf> {
        Ok(match &self.state_dir {
            Some(folder) => folder.clone(),
            None if rustix::process::geteuid().is_root() => "/var/lib/weft-control".into(),
            None => {
                let home = std::env::var_os("HOME").context("HOME is not set: say --state-dir")?;
                Path::new(&home).join(".local/state/weft-control")
            }
        })
    }

    /// The folder, which is made if it is not there.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        let folder = self.path()?;
        // Programs of VMs must get through to their own folders, and see nothing else.
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o711).create(&folder);
        made.with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(fs::canonicalize(folder)?)
    }

    /// Refuses a folder in which no control plane ever was.
    pub(crate) fn ensure_used(&self) -> Result<()> {
        let folder = self.path()?;
        let is_used = ["control.db", PLANE_FILE].iter().any(|name| folder.join(name).exists());
        ensure!(
            is_used,
            "no control plane was ever run in {}: say its --state-dir",
            folder.display()
        );
        Ok(())
    }

    /// Refuses a folder that somebody named and that is not there: it may be misspelt, and a token
    /// that is kept there is nobody's.
    pub(crate) fn ensure_there(&self) -> Result<()> {
        let Some(folder) = &self.state_dir else { return Ok(()) };
        ensure!(
            folder.exists(),
            "no control plane has its state in {0}: there is no such folder. Say the --state-dir \
             of one, or make the folder for a new one (mkdir {0})",
            folder.display()
        );
        Ok(())
    }

    /// The store.
    pub(crate) fn store(folder: &Path) -> Result<Arc<dyn Store>> {
        let path = folder.join("control.db");
        // Secrets of grants are in it, and in what lies beside it.
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let store = Sqlite::open(&path).with_context(|| format!("in {}", path.display()))?;
        Ok(Arc::new(store))
    }
}

impl Database {
    pub(crate) fn access(&self) -> Result<Option<Access>> {
        let authorities = self.database_ca.as_deref();
        let access = self.database.as_deref().map(|url| Access::new(url, authorities));
        access.transpose().context("in the database")
    }
}

pub(crate) fn open(access: Access, terms: Option<Terms>) -> Result<Postgres> {
    let place = access.place();
    Postgres::open(access, terms).with_context(|| format!("in the database at {place}"))
}

/// What is kept, and where.
struct Kept {
    store: Arc<dyn Store>,
    /// The same, if several replicas share it.
    replica: Option<Arc<Postgres>>,
}

impl Kept {
    /// In the folder, or in a database; there this process writes nothing before it has the lease.
    fn open(folder: &Path, options: &ReplicaOptions, address: &str) -> Result<Self> {
        let Some(access) = options.database.access()? else {
            return Ok(Self { store: State::store(folder)?, replica: None });
        };
        let length = Duration::from_secs(options.lease_s);
        let terms = Terms { address: address.to_owned(), length };
        let store = Arc::new(open(access, Some(terms))?);
        ensure_own(folder, store.plane())?;
        Ok(Self { replica: Some(Arc::clone(&store)), store })
    }
}

/// A secret that nobody has, and its digest.
pub(crate) fn new_secret() -> Result<(String, [u8; 32])> {
    let secret = random::hex(SECRET_BYTES)?;
    let digest = random::digest(secret.as_bytes());
    Ok((secret, digest))
}

/// Only one control plane has a folder. One that was just told to end is waited for.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    locked(folder, FlockOperation::NonBlockingLockExclusive)
}

/// The same; but replicas on one host may share a folder, with the VMs in it.
fn lock_shared(folder: &Path) -> Result<File> {
    locked(folder, FlockOperation::NonBlockingLockShared)
}

/// Refuses a folder with the VMs of another database's control plane.
fn ensure_own(folder: &Path, plane: &str) -> Result<()> {
    let path = folder.join(PLANE_FILE);
    match files::read(&path, PLANE_BYTES_MAX) {
        Ok(known) => ensure!(
            known.trim_ascii() == plane.as_bytes(),
            "{} is the folder of another control plane: say another --state-dir",
            folder.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => fs::write(&path, plane)?,
        Err(error) => return Err(error).with_context(|| format!("in {}", path.display())),
    }
    Ok(())
}

fn locked(folder: &Path, operation: FlockOperation) -> Result<File> {
    let path = folder.join("control.lock");
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    // Whoever can open it can hold it.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    let deadline = Instant::now() + LOCK_LIMIT;
    while flock(&file, operation).is_err() {
        ensure!(
            Instant::now() < deadline,
            "another weft-control has {}: end that one, or say another --state-dir",
            path.display()
        );
        thread::sleep(PAUSE);
    }
    Ok(file)
}

/// What VMs of this host boot, if they are virtual machines.
fn image(options: &ServiceOptions) -> Result<Option<Image>> {
    let (Some(kernel), Some(initrd)) = (&options.vm_kernel, &options.vm_initrd) else {
        return Ok(None);
    };
    // VMs are started from elsewhere.
    let found = |path: &PathBuf| {
        fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))
    };
    // A name alone is looked for among the system's programs.
    let is_name = options.vm_qemu.components().count() == 1;
    let qemu = if is_name { options.vm_qemu.clone() } else { found(&options.vm_qemu)? };
    let (accel, memory_mib) = (options.vm_accel.clone(), options.vm_ram);
    Ok(Some(Image { kernel: found(kernel)?, initrd: found(initrd)?, qemu, accel, memory_mib }))
}

/// VMs of this host; `endpoint` is the socket of the host's, if one leads them.
pub(crate) fn local_vms(
    folder: &Path,
    options: &ServiceOptions,
    host: Option<&Path>,
) -> Result<Arc<Local>> {
    let is_root = rustix::process::geteuid().is_root();
    let guest_user = options.guest_user;
    ensure!(
        guest_user == 0 || GUEST_USERS.contains(&guest_user),
        "--guest-user {guest_user}: VMs are a million users from there on, of {} to {}, that \
         nobody else is",
        GUEST_USERS.start(),
        GUEST_USERS.end()
    );
    // VMs are made later, and only those that need it would tell that it is not there.
    let given = [("--guest", &options.guest), ("--endpoint", &options.endpoint)];
    for (option, path) in given {
        let Some(path) = path else { continue };
        ensure!(path.is_file(), "{option} {}: there is no such program", path.display());
    }
    let image = image(options)?;
    let isolation = if image.is_some() {
        Isolation::Machines
    } else if options.plain_processes {
        Isolation::Processes
    } else {
        let (isolation, why) = Isolation::probe();
        if let Some(why) = why {
            note(&format!("weft-control: no namespaces here ({why})"));
        }
        isolation
    };
    ensure!(
        host.is_none() || (isolation == Isolation::Namespaces && is_root),
        "--host-endpoint: only VMs in network namespaces have ports that an endpoint can lead, and \
         only root makes them"
    );
    let (program, endpoint) = (std::env::current_exe()?, options.endpoint.clone());
    let libraries = match &options.libraries {
        Some(libraries) => libraries.clone(),
        // Those of virtual machines are in their image.
        None if image.is_some() => PathBuf::new(),
        None => guest::libraries(folder)?,
    };
    let beside = |name: &str| Some(program.with_file_name(name)).filter(|path| path.exists());
    let settings = Settings {
        folder: folder.join("vms"),
        isolation,
        host: HERE.to_owned(),
        first_user: is_root.then_some(guest_user).filter(|user| *user != 0),
        guest: options.guest.clone().or_else(|| beside("weft-guest")),
        endpoint: endpoint.unwrap_or_else(|| program.with_file_name("weft-endpoint")),
        libraries,
        image,
        has_ports: host.is_some(),
        host_endpoint: host.map(Path::to_owned),
    };
    let local = Local::new(settings)?;
    note(&format!("weft-control: {}", local.check()?));
    Ok(Arc::new(local))
}

/// `weft-control serve`
pub(crate) fn serve(options: &ServeOptions) -> Result<()> {
    log();
    let folder = options.state.folder()?;
    let is_shared = options.replica.database.database.is_some();
    let _lock = if is_shared { lock_shared(&folder)? } else { lock(&folder)? };
    let tls = tls(&options.service)?;
    let listener = listen(&options.service)?;
    let address = advertised(&options.replica, scheme(&options.service), &listener)?;
    let kept = Kept::open(&folder, &options.replica, &address)?;
    let is_openstack = options.provisioner == ProvisionerName::Openstack;
    let cloud = (is_openstack || options.keystone).then(cloud).transpose()?;
    let identity = cloud.clone().map(|cloud| Arc::new(KeystoneTokens::new(cloud)) as _);
    let (vms, endpoint) = outside(&folder, options, cloud, &kept.store)?;
    let world = world(Arc::clone(&kept.store), vms, endpoint, &options.service);
    let endpoints = options.host_endpoint.iter();
    let endpoints =
        endpoints.map(|(host, path)| (host.clone(), path.display().to_string())).collect();
    let front = Front { identity, listener, tls, replica: kept.replica.clone(), endpoints };
    run(world, front, &options.service, |_| Ok(()))
}

/// Where clients of other replicas are sent.
fn advertised(options: &ReplicaOptions, scheme: &str, listener: &TcpListener) -> Result<String> {
    if let Some(address) = &options.advertise {
        return Ok(address.clone());
    }
    let address = listener.local_addr()?;
    ensure!(
        options.database.database.is_none() || !address.ip().is_unspecified(),
        "clients cannot be sent to {address}: say where this replica answers with --advertise"
    );
    Ok(format!("{scheme}://{address}"))
}

/// Who makes VMs, and who leads them to GPUs.
type Outside = (Arc<dyn Provisioner>, Arc<dyn Endpoint>);

fn outside(
    folder: &Path,
    options: &ServeOptions,
    cloud: Option<Cloud>,
    store: &Arc<dyn Store>,
) -> Result<Outside> {
    let hosts = || Arc::new(Hosts::kept(Arc::clone(store)));
    Ok(match options.provisioner {
        ProvisionerName::Local => {
            let host = match options.host_endpoint.as_slice() {
                // One of an earlier start is used until somebody takes it out of service.
                [] => store.endpoint(HERE)?.map(|known| known.socket.into()),
                [(name, socket)] if name == HERE => Some(socket.clone()),
                _ => anyhow::bail!(
                    "VMs of this host are at the host `{HERE}`: say --host-endpoint {HERE}=PATH, once"
                ),
            };
            // A VM of this process's own user could read its store and the tokens in it.
            ensure!(
                rustix::process::geteuid().is_root() || options.service.guest_user == 0,
                "only root can give VMs users of their own: run weft-control as root, or let VMs \
                 read everything that you can, the control plane's secrets included, with \
                 --guest-user 0"
            );
            let local = local_vms(folder, &options.service, host.as_deref())?;
            (Arc::clone(&local) as _, local)
        }
        ProvisionerName::Fake => {
            let fake = Arc::new(Fake::at(folder.join("fake"))?);
            let part = Part { limit: 1, after: None, project: None };
            match options.host_endpoint.is_empty() && store.endpoints(&part)?.is_empty() {
                true => (Arc::clone(&fake) as _, fake),
                false => (fake, hosts()),
            }
        }
        ProvisionerName::Openstack => (openstack_vms(folder, &options.openstack, cloud)?, hosts()),
        ProvisionerName::Slurm => {
            let slurm = Arc::new(Slurm::new(folder.join("slurm"), options.squeue.clone())?);
            note(&format!("weft-control: {}", slurm.check()?));
            (Arc::clone(&slurm) as _, slurm)
        }
    })
}

/// OpenStack, as the environment names it.
fn cloud() -> Result<Cloud> {
    let settings = openstack::Settings::read(|name| std::env::var(name).ok());
    Ok(Cloud::new(settings.map_err(anyhow::Error::msg)?)?)
}

/// VMs of an OpenStack cloud, whose key is in `folder`.
fn openstack_vms(
    folder: &Path,
    options: &OpenstackOptions,
    cloud: Option<Cloud>,
) -> Result<Arc<OpenStack>> {
    let OpenstackOptions { image, flavor, network, image_libraries } = options;
    let missing = || anyhow::anyhow!("say --image, --flavor and --network");
    let [image, flavor, network] =
        [image, flavor, network].map(|given| given.clone().ok_or_else(missing));
    let settings =
        provision::openstack::Settings::new(image?, flavor?, network?, image_libraries.clone());
    let key = Key::at(&folder.join("seal.key"))?;
    let vms = OpenStack::new(cloud.map_or_else(self::cloud, Ok)?, settings, key);
    // A cloud that does not answer now is asked again; one that refuses never will do.
    match vms.check() {
        Ok(words) => note(&format!("weft-control: {words}")),
        Err(failure) if failure.is_permanent => anyhow::bail!("{failure}"),
        Err(failure) => note(&format!("weft-control: for now: {failure}")),
    }
    Ok(Arc::new(vms))
}

/// The world, with placement as asked.
pub(crate) fn world(
    store: Arc<dyn Store>,
    provisioner: Arc<dyn Provisioner>,
    endpoint: Arc<dyn Endpoint>,
    options: &ServiceOptions,
) -> World {
    let nodes = Arc::new(Sockets);
    let allocator = Arc::new(Allocator::new(Arc::clone(&store), options.placement));
    let crash = Crash::from_environment();
    World { store, allocator, provisioner, endpoint, nodes, crash }
}

/// Lines about what happens, on standard error; `WEFT_LOG` says which. A thread that panics ends
/// the process: what it was doing goes on after a restart, and not before.
pub(crate) fn log() {
    let wanted = std::env::var("WEFT_LOG").ok().and_then(|text| directives(&text));
    let wanted = wanted.and_then(|wanted| wanted.parse::<Targets>().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let is_read_by_people = std::io::stderr().is_terminal();
    let lines = fmt::layer().with_ansi(is_read_by_people).with_writer(std::io::stderr);
    Registry::default().with(filter).with(lines).init();
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::abort();
    }));
}

/// Who asks, and where.
pub(crate) struct Front {
    /// Who knows tokens besides the store.
    pub(crate) identity: Option<Arc<dyn Identity>>,
    /// Where.
    pub(crate) listener: TcpListener,
    /// How it is kept from others.
    pub(crate) tls: Option<Arc<Certificates>>,
    /// The store, if other replicas share it.
    pub(crate) replica: Option<Arc<Postgres>>,
    /// Endpoints that are to be used besides those that are known, by host and socket.
    pub(crate) endpoints: Vec<(String, String)>,
}

/// Serves until the process is told to end, or another replica has taken over.
pub(crate) fn run(
    world: World,
    front: Front,
    options: &ServiceOptions,
    ready: impl FnOnce(SocketAddr) -> Result<()>,
) -> Result<()> {
    let Front { identity, listener, tls, replica, endpoints } = front;
    let engine = Engine::start(world, options.workers.into())?;
    let launches = Some(options.launches_per_day).filter(|launches| *launches > 0);
    let service = Service::new(Arc::clone(&engine)).over_tls(tls.is_some());
    let mut service = service.with_launches(launches);
    if let Some(identity) = identity {
        service = service.with_identity(identity);
    }
    let service = Arc::new(service);
    let sweeps = Sweeps { every_s: options.sweep_s, keep: options.keep() };
    let mut ended = begin(Arc::clone(&engine), sweeps, replica.clone(), endpoints)?;
    let settings = tls.as_ref().map(Certificates::settings).transpose()?;
    let hang_ups: &[i32] = if tls.is_some() { &[SIGHUP] } else { &[] };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let scheme = scheme(options);
        // Before anybody knows that this process is there.
        let (told, hung_up) = (Signals::of(&[SIGINT, SIGTERM])?, Signals::of(hang_ups)?);
        line(&format!("weft-control: serving at {scheme}://{address}"))?;
        if tls.is_none() && !address.ip().is_loopback() {
            tracing::warn!(%address, "tokens cross the network in the clear: --tls-cert, --tls-key");
        }
        ready(address)?;
        let (listener, router) =
            (Bounded::new(listener, CONNECTIONS_MAX, IDLE_LIMIT), http::router(&service));
        let router = router.into_make_service_with_connect_info::<http::Peer>();
        let served = async {
            match settings {
                Some(settings) => axum::serve(Secured::new(listener, settings), router).await,
                None => axum::serve(listener, router).await,
            }
        };
        let renewed = tls.map(|certificates| tokio::spawn(renew(certificates, hung_up)));
        tokio::select! {
            served = served => served?,
            Some(why) = ended.recv() => return Err(anyhow!(why)),
            Some(renewed) = async { Some(renewed?.await) } => renewed??,
            told_so = told.next() => {
                told_so?;
                leave(engine, replica, &told).await;
            }
        }
        Ok(())
    });
    // Whoever is being answered waits for what will not be done here.
    runtime.shutdown_background();
    served
}

/// Has renewed files shown, when they are seen or when somebody says so (`SIGHUP`).
async fn renew(certificates: Arc<Certificates>, hung_up: Signals) -> Result<()> {
    loop {
        let is_told = tokio::select! {
            told = hung_up.next() => told.map(|()| true)?,
            () = tokio::time::sleep(tls::LOOK_EVERY) => false,
        };
        if !is_told && !certificates.were_renewed() {
            continue;
        }
        match certificates.reload() {
            Ok(()) => tracing::info!("the certificate was read again"),
            // One of two files may have been renewed: the other one is seen when it is.
            Err(error) => tracing::warn!(%error, "the certificate from before is shown on"),
        }
    }
}

/// Gives the lease back when nothing is being done any longer. Told again, it waits no more.
async fn leave(engine: Arc<Engine>, replica: Option<Arc<Postgres>>, told: &Signals) {
    let Some(replica) = replica else { return };
    let given = tokio::task::spawn_blocking(move || {
        if !engine.stop(LEAVE_LIMIT) {
            tracing::warn!("a step takes long: whoever leads next may do it a second time");
        }
        replica.give_back()
    });
    tokio::select! {
        given = given => match given {
            Ok(Ok(())) => tracing::info!("another replica may lead"),
            Ok(Err(error)) => tracing::warn!(%error, "the lease is not given back"),
            Err(error) => tracing::error!(%error, "a thread ended before its time"),
        },
        _ = told.next() => {}
    }
}

/// What is looked for now and then.
#[derive(Debug, Clone, Copy)]
struct Sweeps {
    /// Seconds from one look to the next; 0 for one at the start only.
    every_s: u64,
    /// For how long it is kept what ended, if not for ever.
    keep: Option<Duration>,
}

/// Begins to carry out what is to be done: at once, or when this replica has the lease. What comes
/// is why the process must end.
fn begin(
    engine: Arc<Engine>,
    sweeps: Sweeps,
    replica: Option<Arc<Postgres>>,
    endpoints: Vec<(String, String)>,
) -> Result<tokio::sync::mpsc::Receiver<String>> {
    let (end, ended) = tokio::sync::mpsc::channel(1);
    let Some(replica) = replica else {
        engine.world().store.put_endpoints(&endpoints)?;
        sweep_always(engine, sweeps, Vec::new())?;
        return Ok(ended);
    };
    let failed = end.clone();
    let won = move || {
        tracing::info!("this replica has the lease: it makes changes from here on");
        engine.world().allocator.forget();
        if let Err(error) = sweep_always(engine, sweeps, endpoints) {
            // Full of another reason to end.
            let _ = failed.try_send(format!("cannot begin to work: {error:#}"));
        }
    };
    let lost = move || {
        let words = "another replica has the lease now: start this one again, to stand by";
        let _ = end.try_send(words.to_owned());
    };
    replica.campaign(won, lost)?;
    Ok(ended)
}

/// What TLS is to be spoken with, if it is.
pub(crate) fn tls(options: &ServiceOptions) -> Result<Option<Arc<Certificates>>> {
    match (&options.tls_cert, &options.tls_key) {
        (Some(certificates), Some(key)) => Ok(Some(Certificates::load(certificates, key)?)),
        (None, _) | (_, None) => Ok(None),
    }
}

/// How an address of this control plane begins.
pub(crate) fn scheme(options: &ServiceOptions) -> &'static str {
    if options.tls_cert.is_some() { "https" } else { "http" }
}

/// Takes the address that is to be served.
pub(crate) fn listen(options: &ServiceOptions) -> Result<TcpListener> {
    let listener = TcpListener::bind(options.listen).map_err(|error| {
        let is_taken = error.kind() == ErrorKind::AddrInUse;
        let hint = if is_taken { ": something listens there; say another --listen" } else { "" };
        anyhow!("cannot listen at {}: {error}{hint}", options.listen)
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What was begun goes on, whether everything else can be looked at or not, and these endpoints are
/// used.
fn go_on(engine: &Engine, endpoints: &[(String, String)]) -> Result<(), StoreError> {
    let store = &engine.world().store;
    if !endpoints.is_empty() {
        store.put_endpoints(endpoints)?;
    }
    store.recount()?;
    for id in store.unsettled()? {
        engine.kick(&id);
    }
    Ok(())
}

/// What ended long ago goes, a bounded part at a time.
struct Forgetting {
    keep: Option<Duration>,
    next: Instant,
}

impl Forgetting {
    /// For how long what ended is kept, if the rest is to be forgotten now, by a wall clock that
    /// has gone on for so long.
    fn due(&self, now: Instant, steady: Duration) -> Option<Duration> {
        self.keep.filter(|_| now >= self.next && steady >= STEADY)
    }

    /// Forgets a part of what ended longer ago than it is to be kept, if that is due; by a clock
    /// that has proved itself.
    fn go_on(&mut self, store: &dyn Store) {
        // Read before it is asked whether it was set.
        let now_ms = clock::now_ms();
        let Some(keep) = self.due(Instant::now(), clock::steady()) else { return };
        self.next = Instant::now() + FORGET_EVERY;
        match sweep::forget(store, keep, now_ms) {
            Ok(sweep::Forgotten { instances: 0, .. }) => {}
            Ok(sweep::Forgotten { instances, is_all }) => {
                tracing::info!(instances, "what ended long ago is forgotten");
                if !is_all {
                    self.next = Instant::now();
                }
            }
            Err(error) => tracing::warn!(%error, "what ended long ago cannot be forgotten now"),
        }
    }
}

/// Looks for what should not be there now, and every now and then.
fn sweep_always(
    engine: Arc<Engine>,
    Sweeps { every_s, keep }: Sweeps,
    endpoints: Vec<(String, String)>,
) -> Result<()> {
    thread::Builder::new().name("sweep".to_owned()).spawn(move || {
        while let Err(error) = go_on(&engine, &endpoints) {
            tracing::warn!(%error, "what was begun cannot be looked at now");
            thread::sleep(LISTEN_EVERY);
        }
        let mut forgetting = Forgetting { keep, next: Instant::now() };
        loop {
            match sweep::sweep(&engine) {
                Ok(swept) if swept == sweep::Swept::default() => {}
                Ok(swept) => tracing::info!(?swept, "found what should not be there"),
                Err(failure) => tracing::warn!(why = failure.words, "cannot look everywhere"),
            }
            let next = Instant::now() + Duration::from_secs(every_s);
            while every_s == 0 || Instant::now() < next {
                thread::sleep(LISTEN_EVERY);
                forgetting.go_on(engine.world().store.as_ref());
                if sweep::ask_unreachable(engine.world()) {
                    break;
                }
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_forgotten_by_a_clock_that_was_set_within_the_hour() {
        let (now, day) = (Instant::now(), Duration::from_secs(86_400));
        let forgetting = |keep| Forgetting { keep, next: now };
        assert_eq!(forgetting(Some(day)).due(now, STEADY), Some(day));
        assert_eq!(forgetting(Some(day)).due(now, STEADY - Duration::from_secs(1)), None);
        assert_eq!(forgetting(None).due(now, STEADY), None, "all of it is kept");
        let later = Forgetting { next: now + FORGET_EVERY, ..forgetting(Some(day)) };
        assert_eq!(later.due(now, day), None);
    }
}
