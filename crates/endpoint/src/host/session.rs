//! How long the end of a grant takes for a real session: a node with its gateway, a host's rules
//! and a VM with an unmodified program, each in a network namespace.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use weft_api::lines;
use weft_api::node::{Answer, Client, GrantRequest, Request};

use super::agent::{Agent, Settings};
use super::lab::{Lab, NODE, UPLINK};

/// The vGPU, and the instance that was granted it.
const VGPU: &str = "vm";
const INSTANCE: &str = "i1";

const MASKED: &str = "169.254.77.1:18515";

/// How long the session outlives its connection, in ms: none of it is waited for at the node, and
/// all of it by the program, which nobody can tell anything.
const GRACE_MS: u64 = 1_000;

/// Whatever is waited for has come after this time, or never does.
const LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(1);

/// What was seen, in ms from when the withdrawal began.
#[derive(Debug)]
pub struct Cut {
    /// The rules are gone, and the connection.
    pub withdrawn_ms: f64,
    /// The node has ended the session.
    pub session_ms: f64,
    /// The program has ended with a CUDA error.
    pub program_ms: f64,
}

/// A process that ends with this benchmark.
struct Own(Child);

impl Drop for Own {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node in the lab, asked to end when this is dropped: its workers end with it.
struct Node {
    _process: Own,
    admin: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(mut client) = Client::connect(&self.admin) {
            // The process is killed if it does not.
            let _ = client.shutdown();
            let deadline = Instant::now() + LIMIT;
            while self.admin.exists() && Instant::now() < deadline {
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Measures it once; `programs` is a folder with the program `relay`.
///
/// # Errors
/// If something does not happen at all.
pub fn cut(folder: &Path, programs: &Path) -> Result<Cut> {
    let weft = std::env::current_exe()?.with_file_name("weft");
    ensure!(weft.exists(), "{} is missing: it is installed beside this program", weft.display());
    let (lab, lost) = (Lab::new()?, "a node that answers");
    let vm = lab.vm(1, "10.0.0.2", None)?;
    let node = start_node(&lab, &weft, &folder.join("node"))?;
    let mut client = eventually(lost, || Client::connect(&node.admin).ok())?;
    let (grant, gateway) = eventually("a gateway that listens", || granted(&mut client))?;
    let settings =
        || Settings { state: folder.join("rows.json"), uplinks: vec![UPLINK.to_owned()] };
    let rows = [vm.row(INSTANCE, 1, MASKED, &gateway)];
    lab.host.within(|| Agent::open(settings())?.put(INSTANCE, &rows))??;
    let mut command = Command::new(&weft);
    command.args(["run", "--remote", MASKED, "--"]).arg(programs.join("relay")).arg("100000000");
    command.env("WEFT_TOKEN", grant).env_remove("WEFT_SOCKET").env_remove("WEFT_VGPU");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut program = Own(vm.inside.within(|| command.spawn())??);
    let said = lines::first(program.0.stdout.take().context("a pipe")?)?;
    ensure!(said == "ready", "the program did not begin: {said}");
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1e3;
    lab.host.within(|| Agent::open(settings())?.withdraw(INSTANCE))??;
    let withdrawn_ms = ms();
    client.remove(VGPU, true)?;
    eventually("the session to end", || {
        let vgpus = client.list().ok()?;
        vgpus.iter().all(|vgpu| vgpu.sessions == 0).then_some(())
    })?;
    let session_ms = ms();
    let status = eventually("the program to end", || program.0.try_wait().ok()?)?;
    ensure!(status.code() == Some(2), "the program got no CUDA error: {status}");
    Ok(Cut { withdrawn_ms, session_ms, program_ms: ms() })
}

fn start_node(lab: &Lab, weft: &Path, folder: &Path) -> Result<Node> {
    std::fs::create_dir_all(folder)?;
    let mut command = Command::new(weft);
    command.arg("node").arg("--runtime-dir").arg(folder).args(["--device", "soft"]);
    command.arg("--set").arg(format!("state_dir={}", folder.join("state").display()));
    command.arg("--set").arg(format!("remote.listen={NODE}:0"));
    command.args(["--set", "remote.user=0"]);
    command.arg("--set").arg(format!("remote.grace_ms={GRACE_MS}"));
    let foreign = std::env::vars_os().map(|(name, _)| name);
    for name in foreign.filter(|name| name.as_encoded_bytes().starts_with(b"WEFT_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(std::fs::File::create(folder.join("node.log"))?);
    let child = lab.node.within(|| command.spawn())??;
    Ok(Node { _process: Own(child), admin: folder.join("admin.sock") })
}

/// A grant and where to show it, once the gateway is there.
fn granted(client: &mut Client) -> Option<(String, String)> {
    let name = VGPU.to_owned();
    let (weight, memory_bytes) = (None, None);
    let request =
        Request::Grant(GrantRequest { name, weight, memory_bytes, valid_s: 3_600, uses: 1 });
    let Ok(Answer::Grant(report)) = client.call(&request) else { return None };
    Some((report.grant, report.listen?))
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("{what}: not after {} s", LIMIT.as_secs());
        }
        thread::sleep(PAUSE);
    }
}
