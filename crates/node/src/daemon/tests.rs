//! A daemon in this process, with its tables, its driver and its saver, and no worker: sessions
//! are reservations in the tables.

use tempfile::TempDir;
use weft_wire::handshake::HelloBody;

use super::sessions::{Refusal, Reservation};
use super::*;

/// Users whom no machine that runs the tests has.
pub(super) const ALICE: u32 = 3_000_001;
pub(super) const BOB: u32 = 3_000_002;

/// Users that Alice can make: those of the fixture's `/etc/subuid`.
pub(super) const FIRST_SUB_UID: u32 = 3_100_000;

/// A daemon that ends with its value.
pub(super) struct Fixture {
    pub(super) daemon: Arc<Daemon>,
    driver: Option<JoinHandle<()>>,
    saver: Option<JoinHandle<()>>,
    dir: TempDir,
}

impl Fixture {
    pub(super) fn new(settings: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(dir.path().join("subuid"), format!("{ALICE}:{FIRST_SUB_UID}:65536\n"))
            .unwrap();
        let dirs = [
            ("sockets.runtime_dir".to_owned(), path("run")),
            ("state_dir".to_owned(), path("state")),
            ("scheduling.subuid".to_owned(), path("subuid")),
            ("device.memory".to_owned(), "64MiB".to_owned()),
        ];
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let settings: Vec<_> = dirs.into_iter().chain(settings).collect();
        let config = NodeConfig::load(None, |_| None, &settings).unwrap();
        let runtime = Runtime::claim(&config).unwrap();
        let (schedule, saver) = (dir.path().join("schedule.json"), Saver::default());
        let saver_thread = spawn_saver(saver.clone(), schedule.clone()).unwrap();
        let Setup { daemon, driver, .. } = Setup::new(config, runtime, saver, &schedule).unwrap();
        let driver = thread::spawn(move || driver.run(None));
        Self { daemon, driver: Some(driver), saver: Some(saver_thread), dir }
    }

    /// Reserves a session for a program of user `uid` on the vGPU `name`, or its own if that is
    /// empty.
    pub(super) fn reservation(&self, uid: u32, name: &str) -> Result<Reservation, Refusal> {
        let hello = HelloBody::question(name);
        self.daemon.reserve_session(&hello, &Credentials { pid: None, uid, gid: uid }, None)
    }

    /// Asks what `caller` may ask.
    pub(super) fn ask(&self, request: &str, caller: roles::Caller) -> crate::admin::Answer {
        let answer = self.daemon.answer_admin(serde_json::from_str(request).unwrap(), caller);
        assert!(!matches!(answer, crate::admin::Answer::Error { .. }), "{request}: {answer:?}");
        answer
    }

    /// Ends the daemon; what it saved last of its scheduling.
    pub(super) fn end(mut self) -> Schedule {
        self.stop();
        self.saved().unwrap()
    }

    /// What it has saved of its scheduling, if anything.
    fn saved(&self) -> Option<Schedule> {
        persist::read_schedule(&self.dir.path().join("schedule.json"))
    }

    fn stop(&mut self) {
        self.daemon.driver.send(Order::Stop);
        let driver = self.driver.take().map(JoinHandle::join);
        self.daemon.saver.end();
        let saver = self.saver.take().map(JoinHandle::join);
        if !thread::panicking() {
            assert!(driver.is_none_or(|ended| ended.is_ok()));
            assert!(saver.is_none_or(|ended| ended.is_ok()));
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Not only what is followed by something else: whoever kills the daemon then loses nothing of it.
#[test]
fn what_has_happened_is_saved_though_nothing_more_happens() {
    let node = Fixture::new(&[]);
    let reserved = node.reservation(ALICE, "x").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while node.saved().is_none_or(|schedule| schedule.core.vgpus.is_empty()) {
        assert!(Instant::now() < deadline, "its vGPU is not in what is saved");
        thread::yield_now();
    }
    drop(reserved);
}
