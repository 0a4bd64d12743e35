//! The page: who sees what, what it is sent with, and that a browser shows it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use weft_api::v1::{Client, InstanceState, NewToken, Quota, Role};
use weft_control::provision::Failure;

use crate::http::{raw, serve};
use crate::support::{Cloud, eventually, quota, shared};

/// Asks for the page with a cookie.
fn page(address: SocketAddr, cookie: &str) -> (u16, String) {
    let request = format!("GET / HTTP/1.0\r\nHost: a\r\nCookie: weft_session={cookie}\r\n\r\n");
    raw(address, &request)
}

fn login(address: SocketAddr, token: &str, more: &str) -> (u16, String) {
    let body = format!("token={token}");
    let length = body.len();
    let head = format!("POST /login HTTP/1.0\r\nHost: a\r\n{more}Content-Length: {length}\r\n");
    raw(address, &format!("{head}\r\n{body}"))
}

/// The cookie of a session.
fn cookie(address: SocketAddr, token: &str) -> String {
    let (status, text) = login(address, token, "");
    assert_eq!(status, 303, "{text}");
    let line = text.lines().find(|line| line.starts_with("set-cookie: ")).unwrap();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(line.contains(word), "{line}");
    }
    let value = line.split(['=', ';']).nth(1).unwrap();
    assert!(value.len() == 48 && value != token, "{line}");
    value.to_owned()
}

/// A token of a project, and its secret.
fn token(admin: &Client, name: &str, role: Role) -> String {
    let asked =
        NewToken { name: name.to_owned(), project: Some(name.to_owned()), role, valid_s: None };
    admin.create_token(&asked).unwrap().secret
}

fn ready(client: &Client, cgpus: u32, memory_mib: u64) -> String {
    let id = client.create_instance(None, &shared(cgpus, memory_mib)).unwrap().id;
    eventually("the instance to be ready", || {
        client.instance(&id).unwrap().state == InstanceState::Ready
    });
    id
}

#[test]
fn everybody_sees_what_the_token_may_see() {
    let cloud = Cloud::new(&[2]);
    let (admin, address) = serve(&cloud);
    for project in ["team", "others"] {
        cloud.project(project);
    }
    let member = |name: &str| {
        let secret = token(&admin, name, Role::Member);
        Client::new(&address.to_string(), &secret).unwrap()
    };
    let (ours, theirs) = (ready(&member("team"), 2, 512), ready(&member("others"), 1, 1024));
    admin.delete_token("team").unwrap();
    let reader = token(&admin, "team", Role::Reader);
    let (_, seen) = page(address, &cookie(address, &reader));
    assert!(seen.contains(&ours) && seen.contains("project team"), "{seen}");
    for hidden in [theirs.as_str(), "others", "<h2>GPUs", "<h2>Audit", "node0", &reader] {
        assert!(!seen.contains(hidden), "{hidden}: {seen}");
    }
    let session = cookie(address, "root");
    let (status, seen) = page(address, &session);
    assert_eq!(status, 200);
    for shown in [
        ours.as_str(),
        theirs.as_str(),
        "<h2>GPUs <small>2 with 2048 of 16384 MiB given out",
        "<meter max=8192 value=2048>",
        "<th class=n>Weight</th><th class=n>User-facing cGPUs</th>",
        "512 MiB, weight 1",
        "InstanceCreate",
    ] {
        assert!(seen.contains(shown), "{shown}: {seen}");
    }
    // Whatever somebody asked for is shown as text.
    let end = "Host: a\r\nConnection: close\r\nAuthorization: Bearer root\r\n";
    let target = "%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    let (status, _) = raw(address, &format!("DELETE /v1/instances/{target} HTTP/1.1\r\n{end}\r\n"));
    assert_eq!(status, 404);
    let (_, seen) = page(address, &session);
    assert!(seen.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{seen}");
    assert!(!seen.contains("<script>alert"), "{seen}");
}

/// What lies between two headings of the page.
fn section<'a>(seen: &'a str, heading: &str) -> &'a str {
    let (_, from) = seen.split_once(&format!("<h2>{heading} ")).unwrap();
    from.split("<h2>").next().unwrap()
}

#[test]
fn what_is_being_made_stands_in_the_queue_and_what_was_used_is_told() {
    let cloud = Cloud::new(&[2]);
    let (admin, address) = serve(&cloud);
    cloud.project("team");
    let client = Client::new(&address.to_string(), &token(&admin, "team", Role::Member)).unwrap();
    let made = ready(&client, 1, 512);
    cloud.fake.fail("create", u32::MAX, Failure::passing("no hypervisor answers"));
    let waits = client.create_instance(None, &shared(1, 256)).unwrap().id;
    let (status, seen) = page(address, &cookie(address, "root"));
    assert_eq!(status, 200);
    let queue = section(&seen, "Queue");
    assert!(queue.contains("1 instance being made or removed"), "{queue}");
    assert!(queue.contains(&waits) && queue.contains("building"), "{queue}");
    assert!(!queue.contains(&made), "{queue}");
    let projects = section(&seen, "Projects");
    assert!(projects.contains("team") && projects.contains("<td class=n>2 / "), "{projects}");
    let usage = section(&seen, "Usage");
    assert!(usage.contains(&made), "{usage}");
}

#[test]
fn nobody_gets_in_without_a_token_or_from_elsewhere() {
    let cloud = Cloud::new(&[1]);
    let (admin, address) = serve(&cloud);
    cloud.project("team");
    let (status, text) = raw(address, "GET / HTTP/1.0\r\n\r\n");
    assert!(status == 200 && text.contains("action=\"/login\""), "{text}");
    let policy = "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'";
    for header in [policy, "x-content-type-options: nosniff", "cache-control: no-store"] {
        assert!(text.contains(header), "{text}");
    }
    for wrong in ["", "guess", "root%00", "'%20or%201"] {
        let (status, text) = login(address, wrong, "");
        assert!(status == 401 && !text.contains("set-cookie"), "{wrong}: {text}");
    }
    for foreign in ["Sec-Fetch-Site: cross-site", "Origin: http://a.example", "Origin: null"] {
        let (status, text) = login(address, "root", &format!("{foreign}\r\n"));
        assert!(status == 403 && !text.contains("set-cookie"), "{foreign}: {text}");
    }
    assert_eq!(login(address, "root", "Origin: http://a\r\n").0, 303);
    let large = "x".repeat(2_000);
    assert_eq!(login(address, &large, "").0, 400);
    assert_eq!(page(address, "guess").0, 401);
    // A token that is taken back ends its sessions; so does the logout.
    let session = cookie(address, &token(&admin, "team", Role::Reader));
    assert_eq!(page(address, &session).0, 200);
    admin.delete_token("team").unwrap();
    assert_eq!(page(address, &session).0, 401);
    let session = cookie(address, "root");
    let out = format!("POST /logout HTTP/1.0\r\nHost: a\r\nCookie: weft_session={session}\r\n\r\n");
    assert_eq!(raw(address, &out).0, 303);
    assert_eq!(page(address, &session).0, 401);
    // A session is no bearer's token, and shows nothing to other sites' frames.
    let asked = format!("GET /v1/gpus HTTP/1.0\r\nAuthorization: Bearer {session}\r\n\r\n");
    assert_eq!(raw(address, &asked).0, 401);
}

/// Something to be done before the page is asked for this time.
type Before = Box<dyn Fn(usize) + Send + Sync>;

/// Between a browser and the page: fills the form in, and counts how often the page is asked for.
fn between(page: SocketAddr, before: Before) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, before) = (Arc::new(AtomicUsize::new(0)), Arc::new(before));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (asked, before) = (Arc::clone(&asked), Arc::clone(&before));
            // A browser opens connections that it does not use.
            thread::spawn(move || forward(stream, page, &asked, &before));
        }
    });
    address
}

fn forward(
    mut stream: TcpStream,
    page: SocketAddr,
    asked: &AtomicUsize,
    before: &Before,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let lower = line.to_ascii_lowercase();
        if let Some(text) = lower.strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        if !lower.starts_with("connection:") {
            head += &line;
        }
    }
    if head.starts_with("GET /fill ") {
        let text = "<form method=post action=\"/login\"><input name=token value=root></form>\
                    <script>document.forms[0].submit()</script>";
        return write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: \
             {}\r\n\r\n{text}",
            text.len()
        );
    }
    if head.starts_with("GET / ") {
        before(asked.fetch_add(1, Ordering::SeqCst) + 1);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut far = TcpStream::connect(page)?;
    write!(far, "{head}Connection: close\r\n\r\n")?;
    far.write_all(&body)?;
    std::io::copy(&mut far, &mut stream)?;
    Ok(())
}

fn browser() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|path| path.join("chromium")).find(|path| path.exists())
}

/// What the browser has after some seconds of its own clock.
fn browse(browser: &Path, url: &str, flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.args(["--disable-background-networking", "--no-first-run", "--window-size=1180,1760"]);
    command.arg("--virtual-time-budget=9000");
    command.arg(format!("--user-data-dir={}", folder.path().display()));
    let output = command.args(flags).arg(url).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A real browser logs in, shows the page under its own policy, and shows what happens afterwards.
/// `WEFT_SCREENSHOT` names a file for a picture of it. Not run, and that is said, where there is no
/// browser; `WEFT_TEST_BROWSER` requires it.
#[test]
fn a_browser_shows_the_page_and_what_comes_later() {
    let Some(browser) = browser() else {
        let is_required = std::env::var_os("WEFT_TEST_BROWSER").is_some();
        assert!(!is_required, "there is no chromium here, and WEFT_TEST_BROWSER is set");
        eprintln!("not run: there is no chromium here");
        return;
    };
    let cloud = Cloud::new(&[3, 2]);
    let (admin, address) = serve(&cloud);
    let quota = Quota::from(quota(16, 65_536, 2));
    for (project, cgpus) in [("physics", 3), ("biology", 2)] {
        cloud.store.put_project(project, quota, None).unwrap();
        let secret = token(&admin, project, Role::Member);
        let client = Client::new(&address.to_string(), &secret).unwrap();
        ready(&client, cgpus, 1024 * u64::from(cgpus));
    }
    cloud.store.put_project("later", quota, None).unwrap();
    let secret = token(&admin, "later", Role::Member);
    let later = Mutex::new(None);
    let made = Arc::new(Mutex::new(String::new()));
    let shared_id = Arc::clone(&made);
    let client = Client::new(&address.to_string(), &secret).unwrap();
    let fake = Arc::clone(&cloud.fake);
    let before: Before = Box::new(move |time| {
        // The page has been shown once, and asks again of itself.
        let mut done = later.lock().unwrap();
        if time == 2 && done.is_none() {
            *shared_id.lock().unwrap() = ready(&client, 1, 2048);
            fake.hang("create", true);
            client.create_instance(None, &shared(1, 1024)).unwrap();
            *done = Some(());
        }
    });
    let url = format!("http://{}/fill", between(address, before));
    let screenshot = std::env::var("WEFT_SCREENSHOT").ok();
    let dom = browse(&browser, &url, &["--dump-dom"]);
    let later = made.lock().unwrap().clone();
    assert!(!later.is_empty() && dom.contains(&later), "{dom}");
    assert!(dom.contains("physics") && dom.contains("sees all projects"), "{dom}");
    for (heading, words) in [
        ("Grants", later.as_str()),
        ("Queue", "building"),
        ("Projects", "biology"),
        ("Usage", "physics"),
        ("Audit", "InstanceCreate"),
    ] {
        let part = section(&dom, heading);
        assert!(part.contains(words), "{heading} without {words}: {part}");
    }
    if let Some(path) = screenshot {
        browse(&browser, &url, &[&format!("--screenshot={path}")]);
        assert!(std::fs::metadata(&path).unwrap().len() > 10_000, "{path}");
    }
    cloud.fake.hang("create", false);
}
