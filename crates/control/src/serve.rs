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
use weft_api::v1::{Role, check_name};
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
use weft_control::provision::local::{Isolation, Local, Settings, guest};
use weft_control::provision::openstack::{Key, OpenStack};
use weft_control::provision::slurm::Slurm;
use weft_control::provision::{self, Provisioner};
use weft_control::rules::Endpoint;
use weft_control::service::Service;
use weft_control::store::sqlite::Sqlite;
use weft_control::store::{Store, TokenRow};
use weft_control::{clock, http, random, sweep};

use crate::args::{
    OpenstackOptions, ProvisionerName, ServeOptions, ServiceOptions, State, TokenOptions,
};
use crate::{line, note};

/// Another one that has the folder has ended after this time, or stays.
const LOCK_LIMIT: Duration = Duration::from_secs(2);

/// How often to look for that.
const PAUSE: Duration = Duration::from_millis(20);

/// How often nodes that do not answer are asked again.
const LISTEN_EVERY: Duration = Duration::from_secs(2);

/// First users of VMs: those below are the system's and people's, and the last number is nobody's.
const GUEST_USERS: std::ops::RangeInclusive<u32> = 100_000..=u32::MAX - 2_000_000;

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
        let is_used = folder.join("control.db").exists();
        ensure!(
            is_used,
            "no control plane was ever run in {}: say its --state-dir",
            folder.display()
        );
        Ok(())
    }

    /// The store.
    pub(crate) fn store(folder: &Path) -> Result<Arc<dyn Store>> {
        let path = folder.join("control.db");
        // Secrets of grants are in it, and in what lies beside it.
        let file = File::options().create(true).append(true).open(&path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let store = Sqlite::open(&path).with_context(|| format!("in {}", path.display()))?;
        Ok(Arc::new(store))
    }
}

/// `weft-control token`
pub(crate) fn token(options: &TokenOptions) -> Result<()> {
    let TokenOptions { state, name, role, project } = options;
    check_name(name)?;
    project.iter().try_for_each(|project| check_name(project))?;
    ensure!(
        (*role == Role::Admin) == project.is_none(),
        "an admin is one of all projects, a reader or member of one (--project)"
    );
    let store = State::store(&state.folder()?)?;
    if let Some(project) = project
        && store.project(project)?.is_none()
    {
        store.put_project(project, weft_api::v1::Quota::default(), None)?;
    }
    line(&make_token(store.as_ref(), name, *role, project.clone())?)
}

/// Makes a token; its secret.
pub(crate) fn make_token(
    store: &dyn Store,
    name: &str,
    role: Role,
    project: Option<String>,
) -> Result<String> {
    let secret = random::hex(SECRET_BYTES)?;
    let digest = random::digest(secret.as_bytes());
    let token = TokenRow { name: name.to_owned(), project, role, created_ms: clock::now_ms() };
    store.add_token(&token, digest, None).with_context(|| {
        format!("cannot make token `{name}`; if it is there, choose another name")
    })?;
    Ok(secret)
}

/// Only one control plane has a folder. One that was just told to end is waited for.
pub(crate) fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("control.lock");
    let file = File::options().create(true).append(true).open(&path)?;
    // Whoever can open it can hold it.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    let deadline = Instant::now() + LOCK_LIMIT;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        ensure!(
            Instant::now() < deadline,
            "another weft-control has {}: end that one, or say another --state-dir",
            path.display()
        );
        thread::sleep(PAUSE);
    }
    Ok(file)
}

/// VMs of this host.
pub(crate) fn local_vms(folder: &Path, options: &ServiceOptions) -> Result<Arc<Local>> {
    let is_root = rustix::process::geteuid().is_root();
    let guest_user = options.guest_user;
    ensure!(
        guest_user == 0 || GUEST_USERS.contains(&guest_user),
        "--guest-user {guest_user}: VMs are a million users from there on, of {} to {}, that \
         nobody else is",
        GUEST_USERS.start(),
        GUEST_USERS.end()
    );
    let isolation = if options.plain_processes {
        Isolation::Processes
    } else {
        let (isolation, why) = Isolation::probe();
        if let Some(why) = why {
            note(&format!("weft-control: no namespaces here ({why})"));
        }
        isolation
    };
    let (program, endpoint) = (std::env::current_exe()?, options.endpoint.clone());
    let libraries = match &options.libraries {
        Some(libraries) => libraries.clone(),
        None => guest::libraries(folder)?,
    };
    let local = Local::new(Settings {
        folder: folder.join("vms"),
        isolation,
        host: "local".to_owned(),
        first_user: is_root.then_some(guest_user).filter(|user| *user != 0),
        endpoint: endpoint.unwrap_or_else(|| program.with_file_name("weft-endpoint")),
        libraries,
    })?;
    note(&format!("weft-control: {}", local.check()?));
    Ok(Arc::new(local))
}

/// `weft-control serve`
pub(crate) fn serve(options: &ServeOptions) -> Result<()> {
    log();
    let folder = options.state.folder()?;
    let _lock = lock(&folder)?;
    let store = State::store(&folder)?;
    let is_openstack = options.provisioner == ProvisionerName::Openstack;
    let cloud = (is_openstack || options.keystone).then(cloud).transpose()?;
    let identity = cloud.clone().map(|cloud| Arc::new(KeystoneTokens::new(cloud)) as _);
    let listener = listen(&options.service)?;
    let (vms, endpoint) = outside(&folder, options, cloud)?;
    run(world(store, vms, endpoint, &options.service), identity, &options.service, listener, |_| {
        Ok(())
    })
}

/// Who makes VMs, and who leads them to GPUs.
type Outside = (Arc<dyn Provisioner>, Arc<dyn Endpoint>);

fn outside(folder: &Path, options: &ServeOptions, cloud: Option<Cloud>) -> Result<Outside> {
    let hosts = || Arc::new(Hosts::new(options.host_endpoint.iter().cloned()));
    Ok(match options.provisioner {
        ProvisionerName::Local => {
            ensure!(
                options.host_endpoint.is_empty(),
                "VMs of this host have an endpoint of their own: --host-endpoint is for others'"
            );
            // A VM of this process's own user could read its store and the tokens in it.
            ensure!(
                rustix::process::geteuid().is_root() || options.service.guest_user == 0,
                "only root can give VMs users of their own: run weft-control as root, or let VMs \
                 read everything that you can, the control plane's secrets included, with \
                 --guest-user 0"
            );
            let local = local_vms(folder, &options.service)?;
            (Arc::clone(&local) as _, local)
        }
        ProvisionerName::Fake => {
            let fake = Arc::new(Fake::default());
            match options.host_endpoint.as_slice() {
                [] => (Arc::clone(&fake) as _, fake),
                _ => (fake, hosts()),
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
    let filter = tracing_subscriber::EnvFilter::try_from_env("WEFT_LOG");
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let is_read_by_people = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(is_read_by_people);
    lines.with_writer(std::io::stderr).init();
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::abort();
    }));
}

/// Serves until the process is told to end.
pub(crate) fn run(
    world: World,
    identity: Option<Arc<dyn Identity>>,
    options: &ServiceOptions,
    listener: TcpListener,
    ready: impl FnOnce(SocketAddr) -> Result<()>,
) -> Result<()> {
    let engine = Engine::start(world, options.workers.into())?;
    let mut service = Service::new(Arc::clone(&engine));
    if let Some(identity) = identity {
        service = service.with_identity(identity);
    }
    let service = Arc::new(service);
    sweep_always(engine, options.sweep_s)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        line(&format!("weft-control: serving at http://{address}"))?;
        ready(address)?;
        let listener = Bounded::new(listener, CONNECTIONS_MAX, IDLE_LIMIT);
        Ok(axum::serve(listener, http::router(&service)).await?)
    })
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

/// Looks for what should not be there now, and every now and then.
fn sweep_always(engine: Arc<Engine>, every_s: u64) -> Result<()> {
    // What was begun goes on whether everything can be looked at or not.
    for id in engine.world().store.unsettled()? {
        engine.kick(&id);
    }
    thread::Builder::new().name("sweep".to_owned()).spawn(move || {
        loop {
            match sweep::sweep(&engine) {
                Ok(swept) if swept == sweep::Swept::default() => {}
                Ok(swept) => tracing::info!(?swept, "found what should not be there"),
                Err(failure) => tracing::warn!(why = failure.words, "cannot look everywhere"),
            }
            let next = Instant::now() + Duration::from_secs(every_s);
            while every_s == 0 || Instant::now() < next {
                thread::sleep(LISTEN_EVERY);
                sweep::ask_unreachable(engine.world());
            }
        }
    })?;
    Ok(())
}
