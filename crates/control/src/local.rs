//! `weft-control local`: a whole cloud on this machine.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use weft_api::node::Client;
use weft_api::v1::{Quota, Role};
use weft_control::clock;
use weft_control::nodes::{Nodes, Sockets};
use weft_control::provision::local::Local;
use weft_control::store::{Audit, NodeRow, Store, TokenRow};

use crate::args::LocalOptions;
use crate::serve;
use crate::{args, note};

/// A node has started after this time, or has failed.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How often to look for that.
const PAUSE: Duration = Duration::from_millis(20);

/// VMs that share memory with the node at once: all of them are one user's, who has at most half.
const MACHINES_MAX: u32 = 256;

/// What the example's project may have.
const QUOTA: Quota =
    Quota { cgpus: 128, memory_mib: 64 << 10, exclusive_gpus: 8, weight: 1_024, user_facing: 16 };

/// `weft-control local`
pub(crate) fn local(options: &LocalOptions) -> Result<()> {
    serve::log();
    if options.down {
        options.state.ensure_used()?;
    }
    let folder = options.state.folder()?;
    let _lock = serve::lock(&folder)?;
    let vms = serve::local_vms(&folder, &options.service, None)?;
    if options.down {
        return down(&folder, &vms);
    }
    let store = args::State::store(&folder)?;
    // What cannot be served is not begun.
    let tls = serve::tls(&options.service)?;
    let listener = serve::listen(&options.service)?;
    let node = folder.join("node");
    start_node(&node, options.gpus)?;
    register(&node, store.as_ref())?;
    let tokens = tokens(&folder, store.as_ref())?;
    let world = serve::world(store, Arc::clone(&vms) as _, vms, &options.service);
    let front =
        serve::Front { identity: None, listener, tls, replica: None, endpoints: Vec::new() };
    serve::run(world, front, &options.service, |address| {
        note(&format!(
            "weft-control: a cloud on this machine is ready. In another terminal:\n\
             \n  export GSAAS_URL={}://{address} GSAAS_TOKEN_FILE={}\n  \
             gsaas -l -ncgpus=1 -poolmem=512 -mode=shared\n\n\
             An administrator's token is in {}. Ctrl-C leaves the node and the VMs running; \
             `weft-control local --down` ends them.",
            serve::scheme(&options.service),
            tokens[1].display(),
            tokens[0].display()
        ));
        Ok(())
    })
}

fn admin_socket(node: &Path) -> PathBuf {
    node.join("admin.sock")
}

/// Starts a node, unless one of an earlier run is there.
fn start_node(folder: &Path, gpus: u16) -> Result<()> {
    if Client::connect(&admin_socket(folder)).is_ok() {
        note("weft-control: the node of an earlier run goes on");
        return Ok(());
    }
    // Programs in VMs reach the node by its gateway and no other way: neither its sockets nor what
    // it keeps. The gateway's user has to get to the socket that its group may open.
    for (folder, mode) in [(folder, 0o711), (&folder.join("state"), 0o700)] {
        fs::DirBuilder::new().recursive(true).mode(mode).create(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(mode))?;
    }
    let program = std::env::current_exe()?.with_file_name("weft");
    ensure!(
        program.exists(),
        "{} is missing: it is installed beside this program",
        program.display()
    );
    let log_path = folder.join("node.log");
    let log = fs::File::options().create(true).append(true).mode(0o600).open(&log_path)?;
    let devices = vec!["soft"; usize::from(gpus)].join(",");
    let mut command = Command::new(program);
    command.arg("node").arg("--runtime-dir").arg(folder).args(["--device", &devices]);
    command.arg("--set").arg(format!("state_dir={}", folder.join("state").display()));
    command.args(["--set", "remote.listen=127.0.0.1:0"]);
    command.arg("--set").arg(format!("guests.machines={MACHINES_MAX}"));
    command.args(["--set", "sockets.tenant_mode=0600", "--set", "sockets.admin_mode=0600"]);
    // What this program's own shell says of other nodes is not about this one.
    let foreign = std::env::vars_os().map(|(name, _)| name);
    for name in foreign.filter(|name| name.as_encoded_bytes().starts_with(b"WEFT_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    // It is not this program's terminal's: it goes on when this ends.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = command.spawn().context("cannot start the node")?;
    wait_for(child, folder, &log_path)
}

fn wait_for(mut child: Child, folder: &Path, log: &Path) -> Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    while Client::connect(&admin_socket(folder)).is_err() {
        if let Some(status) = child.try_wait()? {
            bail!("the node ended with {status}; {} says why", log.display());
        }
        ensure!(Instant::now() < deadline, "the node did not start; see {}", log.display());
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Makes the node known: its gateway has another port after each start.
fn register(folder: &Path, store: &dyn Store) -> Result<()> {
    let admin = admin_socket(folder).display().to_string();
    let deadline = Instant::now() + START_LIMIT;
    let facts = loop {
        match Sockets.look(&admin) {
            Ok(facts) => break facts,
            Err(failure) if failure.is_permanent || Instant::now() > deadline => {
                let log = folder.join("node.log");
                bail!("the node cannot be used: {}; {} may say why", failure.words, log.display())
            }
            Err(_) => thread::sleep(PAUSE),
        }
    };
    let node = NodeRow {
        name: "local".to_owned(),
        admin,
        gateway: facts.gateway,
        gateway_given: false,
        host: serve::HERE.to_owned(),
        created_ms: clock::now_ms(),
        gpus: 0,
        identity: facts.identity,
    };
    Ok(store.put_node(&node, &facts.gpus, None)?)
}

/// Tokens of an administrator and of a member of the project `demo`, in files.
fn tokens(folder: &Path, store: &dyn Store) -> Result<[PathBuf; 2]> {
    if store.project("demo")?.is_none() {
        store.put_project("demo", QUOTA, None)?;
    }
    let files = [folder.join("admin.token"), folder.join("demo.token")];
    let whose = [("local-admin", Role::Admin, None), ("demo", Role::Member, Some("demo"))];
    for (path, (name, role, project)) in files.iter().zip(whose) {
        if path.exists() {
            continue;
        }
        let (at_ms, target) = (clock::now_ms(), name.to_owned());
        let audit = Audit {
            at_ms,
            actor: "weft-control local".to_owned(),
            project: None,
            action: "token made, whose file is not there".to_owned(),
            target: target.clone(),
            status: 200,
        };
        // One of an earlier run that was killed before the file was there is nobody's.
        let (secret, digest) = serve::new_secret()?;
        let project = project.map(str::to_owned);
        let token = TokenRow { name: target, project, role, created_ms: at_ms, expires_ms: None };
        store.replace_token(&token, digest, &audit)?;
        let fresh = path.with_extension("new");
        let mut options = fs::File::options();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        std::io::Write::write_all(&mut file, format!("{secret}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
    }
    Ok(files)
}

/// Ends what an earlier run left running.
fn down(folder: &Path, vms: &Local) -> Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match vms.terminate_all() {
            Ok(0) => break,
            Ok(left) if Instant::now() > deadline => bail!("{left} VMs do not end"),
            Err(failure) if Instant::now() > deadline => bail!("{}", failure.words),
            Ok(_) | Err(_) => thread::sleep(PAUSE),
        }
    }
    if let Ok(mut node) = Client::connect(&admin_socket(&folder.join("node"))) {
        node.shutdown()?;
    }
    note("weft-control: the node and the VMs have ended; what they were stays in the records");
    Ok(())
}
