//! GPU nodes, through their admin sockets.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_api::node::{
    AdminError, Answer, Client, DeviceReport, GrantRequest, NodeReport, Request, VERSIONS,
    VgpuReport,
};

use crate::provision::Failure;
use crate::store::{GpuFound, VGPU_PREFIX};

/// For how long sessions may begin with a grant: the longest that nodes allow.
const GRANT_VALID_S: u64 = 30 * 24 * 3_600;

/// How many endpoints may use a grant: a VM's is another one after each time that it boots.
const GRANT_USES: u32 = 64;

/// A node says within this time what it has, or hangs.
const LIST_LIMIT: Duration = Duration::from_secs(3);

/// It has ended a vGPU's sessions within this time, or said that they do not end, which it does
/// after 10 s.
const REMOVE_LIMIT: Duration = Duration::from_secs(15);

const MIB: u64 = 1 << 20;

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its GPUs that are in service.
    pub gpus: Vec<GpuFound>,
    /// Where its gateway listens.
    pub gateway: String,
    /// The digest of the gateway's public key, in hex: no other node has it.
    pub identity: String,
}

/// What changes of a node while it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSeen {
    /// Its GPUs that are in service.
    pub gpus: Vec<GpuFound>,
    /// Where its gateway listens; nothing while it does not.
    pub gateway: Option<String>,
}

/// A vGPU that a node is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VgpuSpec {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// Its weight.
    pub weight: u32,
    /// Its memory quota.
    pub memory_mib: u64,
    /// Its SLA, 0 for none.
    pub sla_us: u64,
}

/// Keeps the device time that vGPUs have used, in ns by their names.
pub type Keep<'a> = &'a (dyn Fn(&[(String, u64)]) -> Result<(), Failure> + Sync);

/// The GPU nodes.
pub trait Nodes: Send + Sync + std::fmt::Debug {
    /// What a node is.
    ///
    /// # Errors
    /// Why it cannot be used.
    fn look(&self, admin: &str) -> Result<NodeFacts, Failure>;

    /// A grant for each vGPU, in their order. They need not be there yet, and a node that cannot
    /// do without makes them.
    ///
    /// # Errors
    /// Why there are not all.
    fn sign(&self, admin: &str, vgpus: &[VgpuSpec]) -> Result<Vec<String>, Failure>;

    /// Makes vGPUs that are not there. `inside` is called in the middle.
    ///
    /// # Errors
    /// Why there are not all.
    fn make(
        &self,
        admin: &str,
        vgpus: &[VgpuSpec],
        inside: &(dyn Fn() + Sync),
    ) -> Result<(), Failure>;

    /// Removes vGPUs with their sessions and grants, if they are there; how many were. A node
    /// forgets with a vGPU what it used: all sessions end first, `keep` is given the device time in
    /// ns before the first vGPU goes, and if it fails none does. `inside` is called in the middle.
    ///
    /// # Errors
    /// Why some may be left. Asked again it goes on.
    fn revoke(
        &self,
        admin: &str,
        vgpus: &[String],
        keep: Keep<'_>,
        inside: &(dyn Fn() + Sync),
    ) -> Result<usize, Failure>;

    /// The control plane's vGPUs on a node.
    ///
    /// # Errors
    /// Why nobody knows.
    fn vgpus(&self, admin: &str) -> Result<Vec<String>, Failure>;

    /// The tenant socket of a node of this host.
    ///
    /// # Errors
    /// Why nobody knows.
    fn tenant_socket(&self, admin: &str) -> Result<PathBuf, Failure>;

    /// What a node has now.
    ///
    /// # Errors
    /// Why nobody knows.
    fn seen(&self, admin: &str) -> Result<NodeSeen, Failure>;
}

/// Nodes whose admin sockets lie on this host, or are led here.
#[derive(Debug, Default)]
pub struct Sockets;

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        let is_permanent = match &error {
            AdminError::Refused(_) | AdminError::Unexpected(_) | AdminError::Stranger { .. } => {
                true
            }
            AdminError::NotRunning { .. } | AdminError::Permission { .. } | AdminError::Io(_) => {
                false
            }
        };
        Self { is_permanent, is_away: false, words: error.to_string() }
    }
}

fn connect(admin: &str) -> Result<Client, Failure> {
    Ok(Client::connect(Path::new(admin))?)
}

/// The same for what a node says at once. One that hangs may take no connection in, and there are
/// others to ask.
fn connect_briefly(admin: &str) -> Result<Client, Failure> {
    Client::connect_within(Path::new(admin), LIST_LIMIT).map_err(of_silent)
}

/// What a node says of itself, if it speaks a version that is spoken here. One that does not is not
/// given up: it is upgraded, or this control plane is.
fn spoken(admin: &str, report: NodeReport) -> Result<NodeReport, Failure> {
    if VERSIONS.common(report.admin).is_none() {
        return Err(Failure::passing(format!(
            "the node at {admin} speaks {} of its admin interface and this control plane \
             {VERSIONS}: {}",
            report.admin,
            VERSIONS.advice(report.admin)
        )));
    }
    Ok(report)
}

impl Nodes for Sockets {
    fn look(&self, admin: &str) -> Result<NodeFacts, Failure> {
        let report = spoken(admin, connect(admin)?.node()?)?;
        if !report.you_administrate {
            return Err(Failure::permanent(format!(
                "the node at {admin} does not let this user administrate it: run weft-control as \
                 the node's user or as root, or as a member of its sockets.admin_group"
            )));
        }
        let gpus = gpus(&report);
        let gateway = report.gateway.ok_or_else(|| {
            Failure::permanent(format!("the node at {admin} has no gateway: set remote.listen"))
        })?;
        let listen = gateway.listen.ok_or_else(|| {
            Failure::passing(format!("the gateway of the node at {admin} does not listen yet"))
        })?;
        Ok(NodeFacts { gpus, gateway: listen, identity: gateway.key })
    }

    fn sign(&self, admin: &str, vgpus: &[VgpuSpec]) -> Result<Vec<String>, Failure> {
        let mut client = connect(admin)?;
        let ahead = asked(vgpus, Request::GrantAhead);
        let signed: Result<_, _> = client.call_all(&ahead)?.into_iter().map(grant_of).collect();
        signed.or_else(|failure: Failure| {
            // A node of the version before knows no grants of what is not there. It would make a
            // vGPU for one, and another one than was asked for.
            tracing::debug!(node = admin, why = failure.words, "vGPUs are made before grants");
            self.make(admin, vgpus, &|| {})?;
            let granted = client.call_all(&asked(vgpus, Request::Grant))?;
            granted.into_iter().map(grant_of).collect()
        })
    }

    fn make(
        &self,
        admin: &str,
        vgpus: &[VgpuSpec],
        inside: &(dyn Fn() + Sync),
    ) -> Result<(), Failure> {
        let mut client = connect(admin)?;
        let creations: Vec<Request> = vgpus.iter().map(create_request).collect();
        let (first, others) = creations.split_at(creations.len().min(1));
        let mut created = client.call_all(first)?;
        inside();
        created.extend(client.call_all(others)?);
        if created.iter().all(Result::is_ok) {
            return Ok(());
        }
        // After a crash they may be there; their names are nobody else's.
        let there: BTreeSet<String> = client.list()?.into_iter().map(|it| it.name).collect();
        let mut absent = vgpus.iter().zip(created).filter(|(it, _)| !there.contains(&it.name));
        match absent.find_map(|(_, answer)| answer.err()) {
            Some(error) => Err(Failure::permanent(error.to_string())),
            None => Ok(()),
        }
    }

    fn revoke(
        &self,
        admin: &str,
        vgpus: &[String],
        keep: Keep<'_>,
        inside: &(dyn Fn() + Sync),
    ) -> Result<usize, Failure> {
        let mut client = connect_briefly(admin)?;
        let mut there = client.list().map_err(of_silent)?;
        there.retain(|vgpu| vgpus.contains(&vgpu.name));
        // What ends sessions may take longer.
        client.wait_at_most(REMOVE_LIMIT)?;
        let (used, failed) = close(&mut client, &there)?;
        keep(&used)?;
        let mut gone = 0;
        for (name, _) in &used {
            client.remove(name, true)?;
            gone += 1;
            if gone == 1 {
                inside();
            }
        }
        failed.map_or(Ok(gone), Err)
    }

    fn vgpus(&self, admin: &str) -> Result<Vec<String>, Failure> {
        let there = connect_briefly(admin)?.list().map_err(of_silent)?;
        let all = there.into_iter().map(|vgpu| vgpu.name);
        Ok(all.filter(|name| name.starts_with(VGPU_PREFIX)).collect())
    }

    fn tenant_socket(&self, admin: &str) -> Result<PathBuf, Failure> {
        Ok(spoken(admin, connect(admin)?.node()?)?.tenant_socket.into())
    }

    fn seen(&self, admin: &str) -> Result<NodeSeen, Failure> {
        let report = connect_briefly(admin)?.node().map_err(of_silent)?;
        let report = spoken(admin, report)?;
        let gpus = gpus(&report);
        Ok(NodeSeen { gpus, gateway: report.gateway.and_then(|gateway| gateway.listen) })
    }
}

/// The GPUs of a node that are in service.
fn gpus(report: &NodeReport) -> Vec<GpuFound> {
    let found = |device: &DeviceReport| GpuFound {
        device: device.name.clone(),
        product: device.product.clone(),
        memory_mib: device.memory_bytes / MIB,
    };
    report.devices.iter().filter(|device| device.in_service).map(found).collect()
}

/// One that hangs, in words.
fn of_silent(error: AdminError) -> Failure {
    if let AdminError::Io(why) = &error
        && [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&why.kind())
    {
        let limit_s = LIST_LIMIT.as_secs();
        return Failure::passing(format!("the node daemon did not answer within {limit_s} s"));
    }
    error.into()
}

/// The device time in ns that vGPUs have used in all, by their names, and what became of the first
/// that did not end.
type Closed = (Vec<(String, u64)>, Option<Failure>);

/// Closes vGPUs. A node of the version before, which can only remove them, has said until now when
/// it listed them.
fn close(client: &mut Client, listed: &[VgpuReport]) -> Result<Closed, Failure> {
    let closings: Vec<Request> =
        listed.iter().map(|vgpu| Request::Close { name: vgpu.name.clone() }).collect();
    let (mut used, mut failed) = (Vec::new(), None);
    for (listed, answer) in listed.iter().zip(client.call_all(&closings)?) {
        match answer {
            Ok(Answer::Vgpu(closed)) => used.push((listed.name.clone(), closed.used_ns)),
            Err(error) if error.is_not_understood() => {
                used.push((listed.name.clone(), listed.used_ns));
            }
            Ok(other) => {
                let words = format!("the node answers the end of a vGPU with {other:?}");
                failed.get_or_insert_with(|| Failure::permanent(words));
            }
            // One that does not end keeps no other.
            Err(error) => {
                failed.get_or_insert_with(|| error.into());
            }
        }
    }
    Ok((used, failed))
}

fn asked(vgpus: &[VgpuSpec], how: fn(GrantRequest) -> Request) -> Vec<Request> {
    let (valid_s, uses) = (GRANT_VALID_S, GRANT_USES);
    let of = |vgpu: &VgpuSpec| {
        let name = vgpu.name.clone();
        how(GrantRequest { name, weight: None, memory_bytes: None, valid_s, uses })
    };
    vgpus.iter().map(of).collect()
}

fn grant_of(answer: Result<Answer, AdminError>) -> Result<String, Failure> {
    let answer = answer?;
    let Answer::Grant(report) = answer else {
        return Err(Failure::permanent(format!("the node answers a grant with {answer:?}")));
    };
    Ok(report.grant)
}

fn create_request(vgpu: &VgpuSpec) -> Request {
    Request::Create {
        name: vgpu.name.clone(),
        weight: Some(vgpu.weight),
        memory_bytes: Some(vgpu.memory_mib * MIB),
        device: Some(vgpu.device.clone()),
        owner: None,
        token: None,
        cap_ppm: None,
        sla_ns: (vgpu.sla_us > 0).then_some(vgpu.sla_us.saturating_mul(1_000)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use weft_api::node::NOT_UNDERSTOOD;
    use weft_ring::peer;

    use super::*;

    fn report(name: &str, used_ns: u64) -> VgpuReport {
        let json = format!(
            r#"{{"name":"{name}","owner":0,"device":"gpu0","tenant":null,"tenant_weight":1,
            "weight":1,"cap_ppm":null,"memory_bytes":1,"memory_used_bytes":0,"pinned_bytes":0,
            "state":"detached","sessions":0,"programs":[],"used_ns":{used_ns},"held_ns":0,
            "turns":0,"sessions_total":0}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    /// Answers so many requests of a connection with these; what was asked.
    fn answer(stream: &mut BufReader<UnixStream>, answers: &[Answer]) -> Vec<String> {
        let answer = |answer| {
            let mut asked = String::new();
            stream.read_line(&mut asked).unwrap();
            let mut line = serde_json::to_vec(answer).unwrap();
            line.push(b'\n');
            stream.get_mut().write_all(&line).unwrap();
            asked
        };
        answers.iter().map(answer).collect()
    }

    /// The same of the next connection.
    fn answered(
        listener: &UnixListener,
        answers: &[Answer],
    ) -> (Vec<String>, BufReader<UnixStream>) {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        (answer(&mut stream, answers), stream)
    }

    /// A node that answers requests of one connection after the other with these.
    fn node(listener: &UnixListener, connections: Vec<Vec<Answer>>) {
        for answers in connections {
            answered(listener, &answers);
        }
    }

    fn refused() -> Answer {
        Answer::Error { message: "no room".to_owned() }
    }

    fn vgpu(name: &str) -> VgpuSpec {
        let (name, device) = (name.to_owned(), "gpu0".to_owned());
        VgpuSpec { name, device, weight: 1, memory_mib: 1, sla_us: 0 }
    }

    fn granted(name: &str) -> Answer {
        let json = format!(
            r#"{{"grant":"grant-of-{name}","vgpu":"{name}","weight":1,"memory_bytes":1,"uses":1,
            "expires_s":1,"listen":null,"gateway_key":""}}"#
        );
        Answer::Grant(serde_json::from_str(&json).unwrap())
    }

    /// After a crash some vGPUs are there.
    #[test]
    fn vgpus_that_are_there_are_not_made_again() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("admin.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let is_made = |name| Answer::Vgpu(report(name, 0));
        let both = Answer::Vgpus(vec![report("a", 0), report("b", 0)]);
        let one = Answer::Vgpus(vec![report("a", 0)]);
        let answers = vec![vec![is_made("a"), refused(), both], vec![is_made("a"), refused(), one]];
        let thread = std::thread::spawn(move || node(&listener, answers));
        let (admin, vgpus) = (socket.to_str().unwrap(), [vgpu("a"), vgpu("b")]);
        Sockets.make(admin, &vgpus, &|| {}).unwrap();
        let failure = Sockets.make(admin, &vgpus, &|| {}).unwrap_err();
        assert_eq!(failure, Failure::permanent("no room"));
        thread.join().unwrap();
    }

    /// One of the version before makes the vGPUs first: with a grant it would make others than were
    /// asked for.
    #[test]
    fn a_node_that_grants_only_what_is_there_makes_it_first() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("admin.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (admin, vgpus) = (socket.to_str().unwrap().to_owned(), [vgpu("a"), vgpu("b")]);
        let thread = std::thread::spawn(move || {
            let (asked, stream) = answered(&listener, &[granted("a"), granted("b")]);
            assert!(asked.iter().all(|line| line.contains("grant_ahead")), "{asked:?}");
            drop(stream);
            let (_, mut first) = answered(&listener, &[refused(), refused()]);
            let is_made = |name| Answer::Vgpu(report(name, 0));
            let (asked, _) = answered(&listener, &[is_made("a"), is_made("b")]);
            assert!(asked.iter().all(|line| line.contains("create")), "{asked:?}");
            let asked = answer(&mut first, &[granted("a"), granted("b")]);
            assert!(asked.iter().all(|line| line.contains(r#""grant""#)), "{asked:?}");
            // Nothing is granted that cannot be made.
            let (_, first) = answered(&listener, &[refused(), refused()]);
            let none = Answer::Vgpus(Vec::new());
            let (_, second) = answered(&listener, &[is_made("a"), refused(), none]);
            let mut left = String::new();
            drop(second);
            assert_eq!({ first }.read_line(&mut left).unwrap(), 0, "{left}");
        });
        assert_eq!(Sockets.sign(&admin, &vgpus).unwrap(), ["grant-of-a", "grant-of-b"]);
        assert_eq!(Sockets.sign(&admin, &vgpus).unwrap(), ["grant-of-a", "grant-of-b"]);
        Sockets.sign(&admin, &vgpus).unwrap_err();
        thread.join().unwrap();
    }

    #[test]
    fn a_node_that_hangs_is_given_up_before_it_is_asked_to_remove_anything() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("admin.sock");
        // Connections are made, and nobody reads what comes.
        let _hangs = peer::listen_stream(&socket, 0o600, 4).unwrap();
        let names = ["a".to_owned()];
        let admin = socket.to_str().unwrap();
        let ask =
            || Sockets.revoke(admin, &names, &|_| panic!("nothing is known"), &|| {}).unwrap_err();
        let silent = Failure::passing("the node daemon did not answer within 3 s");
        assert_eq!(ask(), silent);
        // Nor are they when its queue is full.
        let brief = Duration::from_millis(10);
        let waiting: Vec<_> =
            std::iter::from_fn(|| peer::connect_within(&socket, brief).ok()).collect();
        assert!(!waiting.is_empty());
        assert_eq!(ask(), silent);
    }

    fn there(all: &[(&str, u64)]) -> Answer {
        Answer::Vgpus(all.iter().map(|(name, used_ns)| report(name, *used_ns)).collect())
    }

    fn closed(name: &str, used_ns: u64) -> Answer {
        Answer::Vgpu(report(name, used_ns))
    }

    #[test]
    fn vgpus_are_closed_and_said_to_have_used_before_one_after_the_other_is_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("admin.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let listed = there(&[("a", 6), ("b", 8), ("other", 9)]);
        // Of a vGPU that was closed before nothing was used since.
        let (a, b) = (closed("a", 7), closed("b", 9));
        let answers = vec![
            vec![listed.clone(), a.clone(), b.clone()],
            vec![listed, a, b.clone(), Answer::Done, refused()],
            vec![there(&[("b", 9), ("other", 9)]), b, Answer::Done],
            vec![there(&[])],
        ];
        let thread = std::thread::spawn(move || node(&listener, answers));
        let (admin, names) = (socket.to_str().unwrap(), ["a".to_owned(), "b".to_owned()]);
        let away = |_: &[(String, u64)]| Err(Failure::passing("the store is away"));
        let refused = Sockets.revoke(admin, &names, &away, &|| panic!("one is gone"));
        assert_eq!(refused.unwrap_err().words, "the store is away");
        let (halves, kept) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let inside = || {
            halves.fetch_add(1, Ordering::Relaxed);
        };
        let keep = |used: &[(String, u64)]| {
            kept.lock().unwrap().extend_from_slice(used);
            Ok(())
        };
        Sockets.revoke(admin, &names, &keep, &inside).unwrap_err();
        assert_eq!(halves.load(Ordering::Relaxed), 1, "one is gone and the other is not");
        assert_eq!(Sockets.revoke(admin, &names, &keep, &|| {}).unwrap(), 1);
        assert_eq!(Sockets.revoke(admin, &names, &keep, &|| {}).unwrap(), 0);
        let used = [("a", 7), ("b", 9), ("b", 9)].map(|(name, ns)| (name.to_owned(), ns));
        assert_eq!(*kept.lock().unwrap(), used);
        thread.join().unwrap();
    }

    /// What programs use while they are ended is lost there, as it was.
    #[test]
    fn a_node_that_cannot_close_vgpus_has_them_removed_with_what_it_listed() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("admin.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let unknown = Answer::Error {
            message: format!("{NOT_UNDERSTOOD}: unknown variant `close`, expected `node`"),
        };
        let both = there(&[("a", 6), ("b", 8)]);
        let answers = vec![both, unknown.clone(), unknown, Answer::Done, Answer::Done];
        let thread = std::thread::spawn(move || {
            let (asked, _) = answered(&listener, &answers);
            let was = |verb: &str, at: &[usize]| at.iter().all(|at| asked[*at].contains(verb));
            assert!(was("close", &[1, 2]) && was("remove", &[3, 4]), "{asked:?}");
        });
        let (admin, names) = (socket.to_str().unwrap(), ["a".to_owned(), "b".to_owned()]);
        let kept = Mutex::new(Vec::new());
        let keep = |used: &[(String, u64)]| {
            kept.lock().unwrap().extend_from_slice(used);
            Ok(())
        };
        assert_eq!(Sockets.revoke(admin, &names, &keep, &|| {}).unwrap(), 2);
        assert_eq!(*kept.lock().unwrap(), [("a".to_owned(), 6), ("b".to_owned(), 8)]);
        thread.join().unwrap();
    }

    /// What it has used is not known: it stays, and is closed again later. Others go.
    #[test]
    fn a_vgpu_whose_sessions_do_not_end_is_not_removed_and_keeps_no_other() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("admin.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let words = "the sessions of vGPU `a` do not end; it stays, ask again";
        let refused = Answer::Error { message: words.to_owned() };
        let listed = there(&[("a", 6), ("b", 8)]);
        let answers = vec![listed, refused, closed("b", 9), Answer::Done];
        let thread = std::thread::spawn(move || {
            let (asked, _) = answered(&listener, &answers);
            assert!(asked[3].contains("remove") && asked[3].contains("\"b\""), "{asked:?}");
        });
        let (admin, names) = (socket.to_str().unwrap(), ["a".to_owned(), "b".to_owned()]);
        let kept = Mutex::new(Vec::new());
        let keep = |used: &[(String, u64)]| {
            kept.lock().unwrap().extend_from_slice(used);
            Ok(())
        };
        let failure = Sockets.revoke(admin, &names, &keep, &|| {});
        assert_eq!(failure.unwrap_err(), Failure::permanent(words));
        assert_eq!(*kept.lock().unwrap(), [("b".to_owned(), 9)]);
        thread.join().unwrap();
    }
}
