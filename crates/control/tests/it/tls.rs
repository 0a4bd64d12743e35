//! Over TLS. The certificates are those of `openssl req -x509`, for a hundred years; the keys of
//! the authorities were thrown away.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weft_api::v1::{Client, ClientError, Role};
use weft_control::bounded::IDLE_LIMIT;
use weft_control::tls::Certificates;

use crate::http::serve_with;
use crate::support::{Cloud, DEADLINE, Program, eventually, shared};

/// How long a connection may say nothing where that is what is tried.
const IDLE: Duration = Duration::from_secs(1);

pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/certificates").join(name)
}

fn serve(cloud: &Cloud, idle: Duration) -> SocketAddr {
    cloud.token(("root", "root"), Role::Admin, None);
    let certificates = Certificates::load(&file("certificate.pem"), &file("key.pem")).unwrap();
    serve_with(&cloud.service, idle, Some(certificates.settings().unwrap()))
}

fn client(address: SocketAddr, authority: &str) -> Client {
    let address = format!("https://{address}");
    Client::with_authorities(&address, "root", Some(&file(authority))).unwrap()
}

#[test]
fn a_client_knows_who_answers() {
    let cloud = Cloud::new(&[1]);
    cloud.project("p");
    let address = serve(&cloud, IDLE_LIMIT);
    let known = client(address, "authority.pem");
    known.ready().unwrap();
    assert_eq!(known.gpus().unwrap().len(), 1);
    let mut new = shared(1, 512);
    new.project = Some("p".into());
    known.create_instance(None, &new).unwrap();
    let stranger = client(address, "stranger.pem").ready().unwrap_err();
    assert!(matches!(&stranger, ClientError::Unreachable { .. }), "{stranger}");
    assert!(stranger.to_string().contains("certificate"), "{stranger}");
    // What speaks no TLS is not answered, and gets nobody's token.
    let plain = Client::new(&address.to_string(), "root").unwrap().ready().unwrap_err();
    assert!(matches!(plain, ClientError::Unanswered { .. }), "{plain}");
    known.ready().unwrap();
}

/// Whether the connection is closed, whatever else comes on it.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 256];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn whoever_does_not_greet_in_time_is_sent_away() {
    let cloud = Cloud::new(&[1]);
    let address = serve(&cloud, IDLE);
    let mut silent = TcpStream::connect(address).unwrap();
    let mut slow = TcpStream::connect(address).unwrap();
    for stream in [&silent, &slow] {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    }
    // The beginning of a greeting that is announced as 512 bytes long, byte after byte.
    let mut greeting = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3].into_iter().chain([7; 500]);
    let deadline = Instant::now() + DEADLINE;
    let (mut silent_ended, mut slow_ended) = (false, false);
    while !(silent_ended && slow_ended) {
        assert!(Instant::now() < deadline, "ended: silent {silent_ended}, slow {slow_ended}");
        silent_ended |= is_closed(&mut silent);
        slow_ended |= is_closed(&mut slow);
        // One that has ended takes no more.
        let byte = greeting.next().expect("it was heard to the end of its greeting");
        slow_ended |= slow.write_all(&[byte]).is_err();
    }
    client(address, "authority.pem").ready().unwrap();
}

#[test]
fn the_program_speaks_tls_and_says_what_is_wrong_with_its_files() {
    let mut program = Program::new();
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().unwrap());
    program.start(None, &["--tls-cert", certificate, "--tls-key", key]);
    assert!(program.url.starts_with("https://127.0.0.1:"), "{}", program.url);
    let address = program.url["https://".len()..].parse().unwrap();
    let unknown = client(address, "authority.pem").nodes().unwrap_err().to_string();
    assert!(unknown.contains("the token is not known"), "{unknown}");
    program.kill();
    for (certificate, key, words) in [
        (key, key, "key.pem: "),
        ("/nowhere.pem", key, "/nowhere.pem: "),
        (certificate, certificate, "certificate.pem: "),
    ] {
        program.start(None, &["--tls-cert", certificate, "--tls-key", key]);
        assert_eq!(program.url, "", "it does not serve");
        program.kill();
        assert!(program.log().contains(words), "{words}: {}", program.log());
    }
}

/// Files that are renewed while the program runs.
struct Renewable {
    program: Program,
    address: SocketAddr,
    /// What was connected before: it goes on.
    before: Client,
}

impl Renewable {
    fn start() -> Self {
        let mut program = Program::new();
        let place = |name: &str| program.folder.path().join(name);
        let (certificate, key) = (place("certificate.pem"), place("key.pem"));
        std::fs::copy(file("certificate.pem"), &certificate).unwrap();
        std::fs::copy(file("key.pem"), &key).unwrap();
        let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
        program.start(None, &["--tls-cert", &certificate, "--tls-key", &key]);
        let address = program.url["https://".len()..].parse().unwrap();
        let before = client(address, "authority.pem");
        before.ready().unwrap();
        Self { program, address, before }
    }

    /// As whoever renews certificates does it: another file takes the place of the one before.
    fn renew(&self, name: &str) {
        let place = self.program.folder.path().join(name);
        let fresh = place.with_extension("new");
        std::fs::copy(file(&format!("next-{name}")), &fresh).unwrap();
        std::fs::rename(&fresh, &place).unwrap();
    }

    fn hang_up(&self) {
        let pid = i32::try_from(self.program.pid()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::HUP).unwrap();
    }

    fn shows_the_next_one(&self) -> bool {
        client(self.address, "next-authority.pem").ready().is_ok()
    }
}

#[test]
fn a_renewed_certificate_is_shown_without_a_restart() {
    let renewable = Renewable::start();
    assert!(!renewable.shows_the_next_one());
    renewable.renew("certificate.pem");
    renewable.renew("key.pem");
    eventually("the next certificate to be seen", || renewable.shows_the_next_one());
    let stranger = client(renewable.address, "authority.pem").ready().unwrap_err().to_string();
    assert!(stranger.contains("certificate"), "{stranger}");
    renewable.before.ready().unwrap();
}

#[test]
fn whoever_renews_a_certificate_may_say_so_and_half_of_it_is_not_taken() {
    let renewable = Renewable::start();
    renewable.renew("certificate.pem");
    renewable.hang_up();
    eventually("the half to be refused", || {
        renewable.program.log().contains("the certificate from before is shown on")
    });
    client(renewable.address, "authority.pem").ready().unwrap();
    renewable.renew("key.pem");
    renewable.hang_up();
    eventually("the next certificate to be shown", || renewable.shows_the_next_one());
}
