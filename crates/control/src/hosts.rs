//! The endpoints of compute hosts, through their sockets: `weft-endpoint host` of each.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_api::endpoint::{ANSWER_TIMEOUT, Answer, Client, EndpointError, Request};

use crate::provision::Failure;
use crate::rules::{Endpoint, GrantRow, Ruled};
use crate::store::{Part, Store};

/// Endpoints that are looked at.
const ENDPOINTS_MAX: u32 = 100_000;

/// Where sockets of endpoints are known from, on this host or led here, by the name of the compute
/// host.
#[derive(Debug)]
enum Sockets {
    /// These.
    Given(BTreeMap<String, PathBuf>),
    /// Those that are kept, as they are then: another replica may change them.
    Kept(Arc<dyn Store>),
}

/// The endpoints.
#[derive(Debug)]
pub struct Hosts {
    sockets: Sockets,
    /// How the instances begin that are this control plane's, where others may have rows there.
    own: Option<String>,
    /// Where an instance's rows were put since this process started: who has to be asked.
    known: Mutex<BTreeMap<String, String>>,
}

impl From<EndpointError> for Failure {
    fn from(error: EndpointError) -> Self {
        let words = error.to_string();
        match &error {
            EndpointError::NotRunning { source, .. } => Self::away(format!(
                "{words} ({source}): start `weft-endpoint host` there, or lead its socket here"
            )),
            // It hangs.
            EndpointError::Io(source)
                if matches!(source.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
            {
                let limit_s = ANSWER_TIMEOUT.as_secs();
                Self::away(format!("the endpoint did not answer within {limit_s} s"))
            }
            // It was killed while it was asked.
            EndpointError::Io(source) => Self::away(format!("{words} ({source})")),
            EndpointError::Refused { is_permanent: false, .. } => Self::passing(words),
            EndpointError::Refused { .. }
            | EndpointError::Stranger { .. }
            | EndpointError::Version { .. }
            | EndpointError::Unexpected(_) => Self::permanent(words),
        }
    }
}

impl Hosts {
    /// With these sockets.
    #[must_use]
    pub fn new(sockets: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        let sockets = Sockets::Given(sockets.into_iter().collect());
        Self { sockets, own: None, known: Mutex::default() }
    }

    /// With those that a store has.
    #[must_use]
    pub fn kept(store: Arc<dyn Store>) -> Self {
        let own = Some(store.instance_prefix());
        Self { sockets: Sockets::Kept(store), own, known: Mutex::default() }
    }

    fn socket(&self, host: &str) -> Result<Option<PathBuf>, Failure> {
        Ok(match &self.sockets {
            Sockets::Given(sockets) => sockets.get(host).cloned(),
            Sockets::Kept(store) => store.endpoint(host)?.map(|endpoint| endpoint.socket.into()),
        })
    }

    fn hosts(&self) -> Result<Vec<String>, Failure> {
        let part = Part { limit: ENDPOINTS_MAX, after: None, project: None };
        Ok(match &self.sockets {
            Sockets::Given(sockets) => sockets.keys().cloned().collect(),
            Sockets::Kept(store) => {
                store.endpoints(&part)?.into_iter().map(|(host, _)| host).collect()
            }
        })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, host: &str, request: Request) -> Result<Answer, Failure> {
        let socket = self.socket(host)?.ok_or_else(|| {
            Failure::permanent(format!("no endpoint of host `{host}` is known: --host-endpoint"))
        })?;
        let of_host = |error: EndpointError| {
            let failure = Failure::from(error);
            Failure { words: format!("host {host}: {}", failure.words), ..failure }
        };
        Client::connect(&socket).and_then(|mut client| client.call(request)).map_err(of_host)
    }

    fn unexpected(host: &str, answer: &Answer) -> Failure {
        Failure::permanent(format!("host {host}: the endpoint answers {answer:?}"))
    }

    /// Instances with rows on a host, but for those of other control planes.
    fn instances_of(&self, host: &str) -> Result<Vec<String>, Failure> {
        let answer = self.ask(host, Request::Instances)?;
        let Answer::Instances { mut instances } = answer else {
            return Err(Self::unexpected(host, &answer));
        };
        let own = self.own.as_deref().unwrap_or_default();
        instances.retain(|instance| instance.starts_with(own));
        Ok(instances)
    }

    fn done(&self, host: &str, request: Request) -> Result<(), Failure> {
        let answer = self.ask(host, request)?;
        if answer == Answer::Done { Ok(()) } else { Err(Self::unexpected(host, &answer)) }
    }
}

/// Why an endpoint does not answer, if it does not.
#[must_use]
pub fn why_away(socket: &Path) -> Option<String> {
    Client::connect(socket).err().map(|error| Failure::from(error).words)
}

/// Withdraws what the endpoint at a socket has of instances whose ids begin so; how many they were.
///
/// # Errors
/// Why some may be left.
pub fn clear(socket: &Path, prefix: &str) -> Result<usize, Failure> {
    let mut client = Client::connect(socket)?;
    let answer = client.call(Request::Instances)?;
    let Answer::Instances { instances } = answer else {
        return Err(Failure::permanent(format!("the endpoint answers {answer:?}")));
    };
    let own: Vec<String> = instances.into_iter().filter(|one| one.starts_with(prefix)).collect();
    for instance in &own {
        client.call(Request::Withdraw { instance: instance.clone() })?;
    }
    Ok(own.len())
}

impl Endpoint for Hosts {
    fn put(&self, instance: &str, rows: &[GrantRow]) -> Result<(), Failure> {
        let Some(row) = rows.first() else { return self.withdraw(instance, None) };
        // It is known before it is done: what fails may have been done.
        self.known().insert(instance.to_owned(), row.host.clone());
        let (instance, rows) = (instance.to_owned(), rows.to_vec());
        self.done(&row.host, Request::Put { instance, rows })
    }

    fn holds(&self, instance: &str, rows: &[GrantRow]) -> Result<bool, Failure> {
        let Some(row) = rows.first() else { return Ok(true) };
        let (instance, rows) = (instance.to_owned(), rows.to_vec());
        let answer = self.ask(&row.host, Request::Holds { instance, rows })?;
        if let Answer::Holds { holds } = answer {
            Ok(holds)
        } else {
            Err(Self::unexpected(&row.host, &answer))
        }
    }

    fn withdraw(&self, instance: &str, host: Option<&str>) -> Result<(), Failure> {
        let known = host.map(str::to_owned).or_else(|| self.known().get(instance).cloned());
        // What is left of an instance that nobody knows any host may have.
        let mut hosts = self.hosts()?;
        // One that was taken out of service is not asked any longer.
        hosts.retain(|host| known.as_ref().is_none_or(|known| known == host));
        // All are asked before one that does not answer is told of.
        let asked = hosts
            .iter()
            .map(|host| self.done(host, Request::Withdraw { instance: instance.to_owned() }));
        asked.collect::<Vec<_>>().into_iter().collect::<Result<(), Failure>>()?;
        self.known().remove(instance);
        Ok(())
    }

    fn instances(&self) -> Ruled {
        let hosts = match self.hosts() {
            Ok(hosts) => hosts,
            Err(failure) => return Ruled::of(Err(failure)),
        };
        let mut all = Ruled::default();
        for host in &hosts {
            let with_host = |instance| (instance, Some(host.clone()));
            let said = self.instances_of(host);
            all.add(Ruled::of(said.map(|all| all.into_iter().map(with_host).collect())));
        }
        all
    }

    /// Of a host that is not known, or has no endpoint, nobody says so.
    fn cut(&self, instance: &str, host: Option<&str>) -> bool {
        let withdraw = Request::Withdraw { instance: instance.to_owned() };
        host.is_some_and(|host| self.done(host, withdraw).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use weft_api::endpoint::{Asked, VERSIONS};
    use weft_ring::peer;

    use super::*;
    use crate::store::Audit;
    use crate::store::sqlite::Sqlite;

    /// An endpoint that keeps what it is asked, and answers as told.
    fn endpoint(path: &Path, answer: Answer) -> Arc<Mutex<Vec<Request>>> {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (listener, kept) = (UnixListener::bind(path).unwrap(), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(&stream);
                let mut line = String::new();
                while reader.read_line(&mut line).unwrap() > 0 {
                    let request = serde_json::from_str::<Asked>(&line).unwrap().request;
                    let opening = Answer::Versions(VERSIONS);
                    let is_opening = request == Request::Versions;
                    let answer = if is_opening { &opening } else { &answer };
                    // Who has the answer looks for what was asked.
                    if !is_opening {
                        kept.lock().unwrap().push(request);
                    }
                    writeln!(&stream, "{}", serde_json::to_string(answer).unwrap()).unwrap();
                    line.clear();
                }
            }
        });
        asked
    }

    fn row(host: &str) -> GrantRow {
        GrantRow {
            instance: "i1".to_owned(),
            host: host.to_owned(),
            tap: "tap0".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            ip: "10.0.0.2".to_owned(),
            masked: "169.254.77.1:18515".to_owned(),
            node: "192.168.50.2:7001".to_owned(),
            generation: 1,
        }
    }

    fn hosts(folder: &Path) -> Hosts {
        Hosts::new(["a", "b"].map(|host| (host.to_owned(), folder.join(host))))
    }

    #[test]
    fn rows_go_to_their_host_and_are_withdrawn_there() {
        let folder = tempfile::tempdir().unwrap();
        let a = endpoint(&folder.path().join("a"), Answer::Done);
        let b = endpoint(&folder.path().join("b"), Answer::Done);
        let hosts = hosts(folder.path());
        hosts.put("i1", &[row("b")]).unwrap();
        hosts.withdraw("i1", None).unwrap();
        let withdraw = Request::Withdraw { instance: "i1".to_owned() };
        let put = Request::Put { instance: "i1".to_owned(), rows: vec![row("b")] };
        assert_eq!(*b.lock().unwrap(), [put, withdraw.clone()]);
        assert!(a.lock().unwrap().is_empty());
        // Nobody knows where rows are that another process put.
        hosts.withdraw("i1", None).unwrap();
        assert_eq!(*a.lock().unwrap(), std::slice::from_ref(&withdraw));
        // Unless it is kept where the VM is: then a host that is away is none of its business.
        let hosts =
            Hosts::new(["a", "dead"].map(|host| (host.to_owned(), folder.path().join(host))));
        assert!(hosts.withdraw("i1", None).unwrap_err().is_away);
        hosts.withdraw("i1", Some("a")).unwrap();
        assert_eq!(a.lock().unwrap().last(), Some(&withdraw));
    }

    #[test]
    fn a_host_that_does_not_answer_is_not_taken_for_one_without_rows() {
        let folder = tempfile::tempdir().unwrap();
        let _a = endpoint(&folder.path().join("a"), Answer::Done);
        let failure = hosts(folder.path()).withdraw("i1", None).unwrap_err();
        assert!(!failure.is_permanent && failure.is_away, "{failure}");
        assert!(failure.words.starts_with("host b: no endpoint answers at"), "{failure}");
        let failure = hosts(folder.path()).put("i1", &[row("c")]).unwrap_err();
        assert!(failure.is_permanent, "{failure}");
    }

    #[test]
    fn an_endpoint_that_hangs_is_away_and_is_said_not_to_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        // Connections are made, and nobody reads what comes.
        let _hangs = peer::listen_stream(&path, 0o600, 1).unwrap();
        let hosts = Hosts::new([("a".to_owned(), path.clone())]);
        let failure = hosts.withdraw("i1", None).unwrap_err();
        assert!(failure.is_away && !failure.is_permanent, "{failure}");
        assert_eq!(failure.words, "host a: the endpoint did not answer within 3 s");
        // Nor does it keep anybody when its queue is full.
        let limit = std::time::Duration::from_millis(10);
        let waiting: Vec<_> =
            std::iter::from_fn(|| peer::connect_within(&path, limit).ok()).collect();
        assert!(!waiting.is_empty());
        assert_eq!(hosts.withdraw("i1", None).unwrap_err(), failure);
    }

    #[test]
    fn endpoints_that_are_kept_are_as_they_are_at_that_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Sqlite::open(&folder.path().join("db")).unwrap());
        let hosts = Hosts::kept(Arc::clone(&store) as _);
        assert!(hosts.put("i1", &[row("a")]).unwrap_err().is_permanent);
        let path = folder.path().join("a");
        let asked = endpoint(&path, Answer::Done);
        store.put_endpoints(&[("a".to_owned(), path.display().to_string())]).unwrap();
        hosts.put("i1", &[row("a")]).unwrap();
        assert!(hosts.cut("i1", Some("a")) && !hosts.cut("i1", None));
        let audit = Audit {
            at_ms: 1,
            actor: "root".to_owned(),
            project: None,
            action: "EndpointDelete".to_owned(),
            target: "a".to_owned(),
            status: 204,
        };
        store.remove_endpoint("a", &audit).unwrap();
        // Nobody is asked who was taken out of service, and so nobody has cut anything off.
        assert!(!hosts.cut("i1", Some("a")));
        hosts.withdraw("i1", None).unwrap();
        assert_eq!(hosts.instances(), Ruled::default());
        assert_eq!(asked.lock().unwrap().len(), 2);
        // A start that names it again has cut nothing off either, as long as it is away.
        let gone = folder.path().join("b").display().to_string();
        store.put_endpoints(&[("a".to_owned(), gone)]).unwrap();
        assert!(!hosts.cut("i1", Some("a")));
        store.put_endpoints(&[("a".to_owned(), path.display().to_string())]).unwrap();
        assert!(hosts.cut("i1", Some("a")));
    }

    #[test]
    fn an_endpoint_is_cleared_of_this_control_planes_rows_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let instances = ["i1a", "i2b", "i1c"].map(str::to_owned).to_vec();
        let asked = endpoint(&path, Answer::Instances { instances });
        assert_eq!(clear(&path, "i1").unwrap(), 2);
        let withdraw = |instance: &str| Request::Withdraw { instance: instance.to_owned() };
        let all = [Request::Instances, withdraw("i1a"), withdraw("i1c")];
        assert_eq!(*asked.lock().unwrap(), all);
        assert_eq!(why_away(&path), None);
        assert!(why_away(&folder.path().join("b")).unwrap().contains("no endpoint answers"));
    }

    #[test]
    fn what_hosts_have_is_said_of_those_that_answer_and_of_this_control_planes_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Sqlite::open(&folder.path().join("db")).unwrap());
        let own = store.instance_prefix() + "1";
        let sockets = ["a", "b", "c"].map(|host| (host, folder.path().join(host)));
        let of = |instances: &[&str]| Answer::Instances {
            instances: instances.iter().map(|one| (*one).to_owned()).collect(),
        };
        let _a = endpoint(&sockets[0].1, of(&["elsewhere1"]));
        let _c = endpoint(&sockets[2].1, of(&[&own, "elsewhere2"]));
        let kept = sockets.map(|(host, path)| (host.to_owned(), path.display().to_string()));
        store.put_endpoints(&kept).unwrap();
        let Ruled { instances, unanswered } = Hosts::kept(store).instances();
        assert_eq!(instances, [(own, Some("c".to_owned()))]);
        assert!(unanswered.unwrap().words.starts_with("host b: no endpoint answers"));
    }

    #[test]
    fn a_refusal_is_what_the_endpoint_says() {
        let folder = tempfile::tempdir().unwrap();
        let words = "not at loopback".to_owned();
        let refused = Answer::Refused { is_permanent: true, words };
        let _a = endpoint(&folder.path().join("a"), refused);
        let failure = hosts(folder.path()).put("i1", &[row("a")]).unwrap_err();
        assert_eq!(failure, Failure::permanent("host a: not at loopback"));
    }
}
