//! How long VMs take, asked from outside.

use std::process::Command;
use std::time::Duration;

use weft_api::v1::{Client, NewToken, Role};
use weft_control::deployment::{Plan, drawing, run};

use crate::http::serve;
use crate::support::{Cloud, quota};

#[test]
fn the_parts_of_a_boot_are_within_what_a_clock_outside_sees() {
    let cloud = Cloud::new(&[4]);
    let (admin, address) = serve(&cloud);
    cloud.project("team");
    let asked = NewToken {
        name: "team".into(),
        project: Some("team".into()),
        role: Role::Member,
        valid_s: None,
    };
    let team = admin.create_token(&asked).unwrap().secret;
    let client = Client::new(&address.to_string(), &team).unwrap();
    let plan = Plan {
        cgpus: vec![1, 4],
        vms: vec![3],
        pace: Duration::from_millis(1),
        memory_mib: 16,
        repeats: 3,
    };
    let found = run(&client, &plan, "simulated".to_owned()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&found.text(true).unwrap()).unwrap();
    let figure = |name: &str| json["figures"][name].as_f64().unwrap();
    for cgpus in [1, 4] {
        let parts = ["boot", "check", "create", "port", "deploy", "manage"];
        let parts = parts.map(|part| figure(&format!("{part}_ms_{cgpus}")));
        let [boot, check, create, port, deploy, manage] = parts;
        assert!(0.0 < manage && manage <= boot && deploy <= boot, "{json}");
        assert!(0.0 < check && check <= boot && create <= deploy && port <= deploy, "{json}");
    }
    assert!(figure("boot_ms_median_of_3_vms") <= figure("boot_ms_longest_of_3_vms"));
    assert!(json["figures"].get("overhead_1").is_none(), "nothing boots here");
    assert!(drawing(&plan, &found).contains("4 cGPUs"));
    assert!(admin.cgpus().unwrap().is_empty(), "all are gone");
    // One that asks for more than there is is told why.
    let plan = Plan { cgpus: vec![4_000], ..plan };
    let refused = run(&client, &plan, "simulated".to_owned()).unwrap_err().to_string();
    assert!(refused.contains("cGPUs"), "{refused}");
}

#[test]
fn one_that_is_over_its_quota_says_which_and_what_to_do() {
    let cloud = Cloud::new(&[4]);
    let (admin, address) = serve(&cloud);
    cloud.store.put_project("team", quota(2, 8192, 0).into(), None).unwrap();
    let asked = NewToken {
        name: "team".into(),
        project: Some("team".into()),
        role: Role::Member,
        valid_s: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, admin.create_token(&asked).unwrap().secret).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft-control"));
    command.args(["deployment", "--what", "fake", "--cgpus", "1,3", "--vms", "1"]);
    command.arg("--url").arg(format!("http://{address}")).arg("--token-file").arg(&token);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    for words in ["project team would have 3 cGPUs, and its quota is 2", "hint: ask for less"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(admin.cgpus().unwrap().is_empty(), "nothing is left behind");
}
