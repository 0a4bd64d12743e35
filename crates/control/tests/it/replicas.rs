//! Several replicas of the control plane over one database.

use std::thread;
use std::time::Duration;

use postgres::NoTls;
use rustix::process::{Pid, Signal, kill_process};
use weft_api::v1::{Client, ClientError, InstanceState, Kind, Problem};
use weft_control::crash;
use weft_control::plan::Step;
use weft_control::store::postgres::{Access, Asked, Postgres, Terms};
use weft_control::store::{Done, Effects, Leading, Store, StoreError};

use crate::crash::{assert_empty, begin, set_up, terminate, wait_for, wait_gone};
use crate::database::Cluster;
use crate::http::raw;
use crate::store::{audit, event, part, reservation, stocked};
use crate::support::{DEADLINE, Program, Replica, eventually, shared};
use crate::tls::file as certificate;

/// A lease that nobody loses because the machine is slow.
const LONG: Duration = Duration::from_secs(3_600);

/// How replicas are started: with a lease that is soon over.
const FLAGS: [&str; 2] = ["--lease-s", "3"];

fn replica(url: &str, address: &str) -> Postgres {
    let terms = Terms { address: address.to_owned(), length: LONG };
    Postgres::open(Access::new(url, None).unwrap(), Some(terms)).unwrap()
}

/// The lease is over, as if nothing had been heard of whoever has it.
fn let_it_expire(url: &str) {
    let mut client = postgres::Client::connect(url, NoTls).unwrap();
    client.batch_execute("UPDATE lease SET expires_at = '-infinity'").unwrap();
}

fn elsewhere(address: &str) -> StoreError {
    StoreError::NotLeader(Some(address.to_owned()))
}

#[test]
fn whoever_lost_the_lease_writes_nothing() {
    let Some(cluster) = Cluster::start() else { return };
    let url = cluster.database("fenced");
    let (first, second) = (replica(&url, "http://first"), replica(&url, "http://second"));
    assert_eq!(first.note(&audit()).unwrap_err(), StoreError::NotLeader(None), "nobody has it");
    assert_eq!(first.ask().unwrap(), Asked::Held);
    assert_eq!(second.ask().unwrap(), Asked::Waits);
    assert_eq!(first.leading(), Leading::Here);
    assert_eq!(second.leading(), Leading::Elsewhere(Some("http://first".into())));
    stocked(&first);
    first.reserve(reservation("i", 1, 100, weft_api::v1::Mode::Shared, 0)).wait().unwrap();
    assert_eq!(second.note(&audit()).unwrap_err(), elsewhere("http://first"));
    assert_eq!(second.instance("i").unwrap(), first.instance("i").unwrap(), "it reads");
    second.check().unwrap();
    assert_eq!(first.ask().unwrap(), Asked::Held, "it has more of it");

    let_it_expire(&url);
    assert_eq!(second.ask().unwrap(), Asked::Held);
    // The first has heard of nothing, and thinks that the lease is its own.
    assert_eq!(first.leading(), Leading::Here);
    let before = second.instance("i").unwrap();
    let (step, effects) = (Step::Grant, Effects::default());
    let done = [Done { step, effects, event: event(step) }];
    let late = first.mark("i", &done).unwrap_err();
    assert_eq!(late, elsewhere("http://second"));
    assert_eq!(first.leading(), Leading::Elsewhere(Some("http://second".into())));
    let late = first.renounce("i", Some("late"), None).unwrap_err();
    assert_eq!(late, elsewhere("http://second"));
    let other = reservation("j", 1, 100, weft_api::v1::Mode::Shared, 1);
    assert_eq!(first.reserve(other.clone()).wait().unwrap_err(), elsewhere("http://second"));
    assert_eq!(first.inventory().wait().unwrap_err(), elsewhere("http://second"));
    assert_eq!(second.instance("i").unwrap(), before);
    assert_eq!(second.audit(&part()).unwrap().len(), 1);
    assert_eq!(first.ask().unwrap(), Asked::Lost);
    // Nor when the lease is free again: what it has in memory is of its own time.
    let_it_expire(&url);
    assert_eq!(first.ask().unwrap(), Asked::Lost);
    second.reserve(other).wait().unwrap();
    assert_eq!(first.instances(&part()).unwrap().len(), 2, "it still reads");
}

/// A command that makes a token is no replica, and takes nothing from one.
#[test]
fn what_has_no_lease_writes_beside_whoever_has_it() {
    let Some(cluster) = Cluster::start() else { return };
    let url = cluster.database("beside");
    let leader = replica(&url, "http://leader");
    assert_eq!(leader.ask().unwrap(), Asked::Held);
    let command = Postgres::open(Access::new(&url, None).unwrap(), None).unwrap();
    command.note(&audit()).unwrap();
    leader.note(&audit()).unwrap();
    assert_eq!(leader.audit(&part()).unwrap().len(), 2);
    assert_eq!(command.plane(), leader.plane());
}

#[test]
fn a_database_that_was_away_is_used_again() {
    let Some(cluster) = Cluster::start() else { return };
    let url = cluster.database("away");
    let store = replica(&url, "http://one");
    assert_eq!(store.ask().unwrap(), Asked::Held);
    store.note(&audit()).unwrap();
    let mut client = postgres::Client::connect(&url, NoTls).unwrap();
    let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                  WHERE application_name = 'weft-control'";
    client.batch_execute(others).unwrap();
    eventually("it to read", || store.audit(&part()).is_ok());
    eventually("it to write", || store.note(&audit()).is_ok());
    assert!(store.audit(&part()).unwrap().len() >= 2);
}

#[test]
fn a_lease_that_is_given_back_is_anothers_at_once() {
    let Some(cluster) = Cluster::start() else { return };
    let url = cluster.database("given");
    let (first, second) = (replica(&url, "http://first"), replica(&url, "http://second"));
    second.give_back().unwrap();
    assert_eq!(first.ask().unwrap(), Asked::Held, "whoever has nothing gives nothing back");
    first.note(&audit()).unwrap();
    let waits = replica(&url, "http://third");
    let (told, won) = std::sync::mpsc::channel();
    waits.campaign(move || told.send(()).unwrap(), || {}).unwrap();
    first.give_back().unwrap();
    // Long before it would ask again of itself: the lease is an hour's.
    won.recv_timeout(DEADLINE).unwrap();
    assert_eq!(waits.leading(), Leading::Here);
    let late = first.note(&audit()).unwrap_err();
    assert!(matches!(late, StoreError::NotLeader(_)), "{late}");
    assert_eq!(first.ask().unwrap(), Asked::Lost, "it has had its term");
    assert_eq!(waits.audit(&part()).unwrap().len(), 1);
}

/// The address of a database over TCP and TLS.
fn over_tcp(port: u16) -> String {
    format!("postgres://weft@127.0.0.1:{port}/postgres")
}

#[test]
fn a_database_over_tls_is_the_one_it_says_it_is() {
    let Some((_cluster, port)) = Cluster::start_with_tls() else { return };
    let open = |authority: &str| {
        let access = Access::new(&over_tcp(port), Some(&certificate(authority)))?;
        Postgres::open(access, None)
    };
    let store = open("authority.pem").unwrap();
    store.note(&audit()).unwrap();
    assert_eq!(store.audit(&part()).unwrap().len(), 1);
    let stranger = open("stranger.pem").unwrap_err().to_string();
    assert!(stranger.contains("certificate"), "{stranger}");
    // What asks for TLS does not go without.
    let required = format!("{}?sslmode=require", over_tcp(port));
    let refused = Access::new(&required, None).unwrap_err().to_string();
    assert!(refused.contains("--database-ca"), "{refused}");
    let empty = Access::new(&required, Some(std::path::Path::new("/dev/null"))).unwrap_err();
    assert!(empty.to_string().contains("no certificate"), "{empty}");
    // The server takes connections without, so what was asked for is what was used.
    let over_tls = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                    WHERE application_name = 'weft-control' AND ssl";
    let mut client = postgres::Client::connect(&over_tcp(port), NoTls).unwrap();
    let connections: i64 = client.query_one(over_tls, &[]).unwrap().get(0);
    assert!(connections > 0);
}

fn with_database(cluster: &Cluster, name: &str) -> (Program, String) {
    let url = cluster.database(name);
    (Program::with(vec![("WEFT_CONTROL_DATABASE", url.clone())]), url)
}

fn client_of(program: &mut Program, replica: &Replica) -> Client {
    program.url.clone_from(&replica.url);
    program.client()
}

fn wait_until_it_leads(program: &mut Program, replica: &Replica) {
    let client = client_of(program, replica);
    eventually("the replica to have the lease", || {
        client.metrics().is_ok_and(|text| text.contains("weft_cloud_leads 1"))
    });
}

/// Two replicas, of which the first has the lease and ends or stops at a place.
fn two(program: &mut Program, place: (&str, &str)) -> [Replica; 2] {
    let first = program.replica(Some(place), &FLAGS);
    wait_until_it_leads(program, &first);
    set_up(program);
    let second = program.replica(None, &FLAGS);
    client_of(program, &second);
    [first, second]
}

#[track_caller]
fn wait_ended(replica: &mut Replica, signal: Option<i32>) {
    eventually("the replica to end", || replica.process.try_wait().unwrap().is_some());
    let status = replica.process.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), signal, "{status}");
    assert!(!status.success());
}

fn send(replica: &Replica, signal: Signal) {
    let number = i32::try_from(replica.process.id()).unwrap();
    kill_process(Pid::from_raw(number).unwrap(), signal).unwrap();
}

/// What is asked of one may never be answered.
fn ask_in_vain(client: &Client) {
    let mut new = shared(3, 512);
    new.project = Some("p".to_owned());
    let client = client.clone();
    thread::spawn(move || client.create_instance(Some("key"), &new));
}

#[test]
fn another_replica_finishes_what_the_leader_was_killed_at() {
    let Some(cluster) = Cluster::start() else { return };
    let places = ["before:address", "inside:grant", "after:create", "kept:rules", "after:confirm"];
    for (number, place) in places.into_iter().enumerate() {
        let (mut program, _) = with_database(&cluster, &format!("making{number}"));
        let [mut first, second] = two(&mut program, (crash::VARIABLE, place));
        ask_in_vain(&program.client());
        wait_ended(&mut first, Some(9));
        wait_until_it_leads(&mut program, &second);
        let id = begin(&program).id;
        wait_for(&program, &id, InstanceState::Ready);
        assert_eq!(program.client().instances().unwrap().len(), 1, "{place}: one, and no second");
        assert_eq!(program.node.names().len(), 3, "{place}");
        terminate(&program, &id);
        wait_gone(&program, &id);
        assert_empty(&program, place);
    }
}

#[test]
fn another_replica_removes_what_the_leader_was_killed_at() {
    let Some(cluster) = Cluster::start() else { return };
    for (number, place) in ["kept:unrule", "inside:revoke", "after:terminate"].iter().enumerate() {
        let (mut program, _) = with_database(&cluster, &format!("removing{number}"));
        let [mut first, second] = two(&mut program, (crash::VARIABLE, place));
        let id = begin(&program).id;
        wait_for(&program, &id, InstanceState::Ready);
        terminate(&program, &id);
        wait_ended(&mut first, Some(9));
        wait_until_it_leads(&mut program, &second);
        wait_gone(&program, &id);
        assert_empty(&program, place);
    }
}

/// With a lease of five minutes: whoever waits for it to end waits longer than this test.
#[test]
fn a_leader_that_is_told_to_end_lets_another_one_lead() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut program, _) = with_database(&cluster, "told");
    let flags = ["--lease-s", "300"];
    let mut first = program.replica(None, &flags);
    wait_until_it_leads(&mut program, &first);
    set_up(&program);
    let second = program.replica(None, &flags);
    let id = begin(&program).id;
    wait_for(&program, &id, InstanceState::Ready);
    send(&first, Signal::TERM);
    eventually("the leader to end", || first.process.try_wait().unwrap().is_some());
    let status = first.process.wait().unwrap();
    assert!(status.success(), "{status}: {}", program.log());
    wait_until_it_leads(&mut program, &second);
    terminate(&program, &id);
    wait_gone(&program, &id);
    assert_empty(&program, "after the leader");
    // One that waits has nothing to give back.
    let mut third = program.replica(None, &flags);
    send(&third, Signal::TERM);
    eventually("the third to end", || third.process.try_wait().unwrap().is_some());
    assert!(third.process.wait().unwrap().success());
}

#[test]
fn a_replica_that_does_not_lead_reads_and_says_who_does() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut program, _) = with_database(&cluster, "reads");
    let [first, second] = two(&mut program, (crash::VARIABLE, ""));
    let leader = first.url.clone();
    let client = client_of(&mut program, &second);
    assert_eq!(client.nodes().unwrap().len(), 1);
    client.ready().unwrap();
    assert!(client.metrics().unwrap().contains("weft_cloud_leads 0"));
    // The client goes to the leader by itself.
    let id = begin(&program).id;
    wait_for(&program, &id, InstanceState::Ready);
    terminate(&program, &id);
    wait_gone(&program, &id);
    // With the leader gone for good, and nobody in its place yet, there is nobody to go to.
    drop(first);
    let refused = client.delete_token("nobody").unwrap_err();
    match refused {
        ClientError::Refused(Problem { kind: Kind::NotLeader, .. }) => {}
        ClientError::Unreachable { base, .. } | ClientError::Unanswered { base, .. } => {
            assert_eq!(base, leader);
        }
        // It was slow, and the second one leads.
        ClientError::Refused(Problem { kind: Kind::NotFound, .. }) => {}
        ClientError::Refused(_)
        | ClientError::Address(_)
        | ClientError::Authorities(_)
        | ClientError::Token
        | ClientError::Key(_)
        | ClientError::Strange { .. } => panic!("{refused}"),
    }
    wait_until_it_leads(&mut program, &second);
    let missing = client.delete_token("nobody").unwrap_err();
    assert!(matches!(missing, ClientError::Refused(Problem { kind: Kind::NotFound, .. })));
    assert_empty(&program, "after the leader");
}

/// What a request of an administrator that changes nothing is answered.
fn ask_for_change(program: &Program, replica: &Replica) -> (u16, String) {
    let address = replica.url.strip_prefix("http://").unwrap().parse().unwrap();
    let token = program.token();
    let end = format!("Host: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n");
    raw(address, &format!("DELETE /v1/tokens/nobody HTTP/1.1\r\n{end}\r\n"))
}

#[test]
fn who_stands_by_says_who_has_the_lease_and_when_to_ask_again() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut program, url) = with_database(&cluster, "says");
    // Nobody takes over of himself while this test lasts.
    let flags = ["--lease-s", "300"];
    let first = program.replica(None, &flags);
    wait_until_it_leads(&mut program, &first);
    let second = program.replica(None, &flags);
    let leader = first.url.clone();
    drop(first);
    let (status, text) = ask_for_change(&program, &second);
    assert_eq!(status, 503, "{text}");
    let leads = format!("{leader} has the lease");
    for words in ["retry-after: 1", "urn:weft:not-leader", "when the lease is over", &leads] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // Who has time asks until somebody leads, of whichever replica.
    let both = format!("{leader},{}", second.url);
    let patient = Client::new(&both, program.token()).unwrap().patient(DEADLINE);
    thread::scope(|scope| {
        let asked = scope.spawn(|| patient.delete_token("nobody").unwrap_err());
        let_it_expire(&url);
        // Those that wait ask again within a quarter of a lease; here they are told.
        let mut client = postgres::Client::connect(&url, NoTls).unwrap();
        client.batch_execute("NOTIFY weft_lease").unwrap();
        let answer = asked.join().unwrap();
        assert!(
            matches!(&answer, ClientError::Refused(Problem { kind: Kind::NotFound, .. })),
            "{answer}"
        );
    });
}

#[test]
fn a_database_that_is_gone_is_said_to_be() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut program, _) = with_database(&cluster, "gone");
    let replica = program.replica(None, &FLAGS);
    wait_until_it_leads(&mut program, &replica);
    drop(cluster);
    let client = program.client();
    for answer in [client.ready().unwrap_err(), client.instances().unwrap_err()] {
        let ClientError::Refused(problem) = &answer else { panic!("{answer}") };
        assert_eq!((problem.kind, problem.status), (Kind::StoreAway, 503), "{problem}");
        assert!(problem.detail.contains("the store cannot be reached"), "{problem}");
    }
    let (status, text) = ask_for_change(&program, &replica);
    assert!(status == 503 && text.contains("urn:weft:store-away"), "{text}");
    assert!(text.contains("retry-after: 1"), "{text}");
}

#[test]
fn a_leader_that_was_stopped_writes_nothing_when_it_wakes() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut program, _) = with_database(&cluster, "stopped");
    let [mut first, second] = two(&mut program, (crash::STOP_VARIABLE, "after:grant"));
    ask_in_vain(&program.client());
    wait_until_it_leads(&mut program, &second);
    let begun = begin(&program);
    wait_for(&program, &begun.id, InstanceState::Ready);
    let before = program.client().operation(&begun.operation).unwrap();
    let grants = before.events.iter().filter(|event| event.step == "grant").count();
    assert_eq!(grants, 1, "{before:?}");
    send(&first, Signal::CONT);
    wait_ended(&mut first, None);
    assert!(program.log().contains("another replica has the lease now"), "{}", program.log());
    assert_eq!(program.client().operation(&begun.operation).unwrap(), before);
    wait_for(&program, &begun.id, InstanceState::Ready);
    terminate(&program, &begun.id);
    wait_gone(&program, &begun.id);
    assert_empty(&program, "after the leader woke up");
}

/// Stopped in the middle of a transaction, in which it has locked the lease, it keeps nobody from
/// taking it.
#[test]
fn a_leader_that_was_stopped_in_a_transaction_is_in_nobodys_way() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut program, url) = with_database(&cluster, "locked");
    let [mut first, second] = two(&mut program, (crash::VARIABLE, ""));
    let mut client = postgres::Client::connect(&url, NoTls).unwrap();
    client
        .batch_execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_sleep(1); RETURN NEW; END $$;
             CREATE TRIGGER slow BEFORE INSERT ON events
                 FOR EACH ROW WHEN (NEW.step = 'grant') EXECUTE FUNCTION slow();
             SET statement_timeout = '100s'",
        )
        .unwrap();
    ask_in_vain(&program.client());
    eventually("the leader to be in a transaction", || {
        let asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        client.query_opt(asleep, &[]).unwrap().is_some()
    });
    send(&first, Signal::STOP);
    // It waits for the leader's transaction, which has touched the table.
    client.batch_execute("DROP TRIGGER slow ON events").unwrap();
    wait_until_it_leads(&mut program, &second);
    let id = begin(&program).id;
    wait_for(&program, &id, InstanceState::Ready);
    send(&first, Signal::CONT);
    wait_ended(&mut first, None);
    terminate(&program, &id);
    wait_gone(&program, &id);
    assert_empty(&program, "after the leader woke up");
}
