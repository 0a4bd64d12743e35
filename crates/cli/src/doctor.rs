//! `weft doctor`: what works on this machine, and what to do about the rest.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use weft_node::admin::{AdminError, DoctorCheck, DoctorReport, Finding};

use crate::args::Sockets;
use crate::output::line;
use crate::programs;

/// `weft doctor`; exit code 1 if something is bad.
pub(crate) fn doctor(sockets: &Sockets, json: bool) -> Result<ExitCode> {
    let mut checks = vec![shim_check()];
    match sockets.connect().and_then(|mut client| Ok(client.doctor()?)) {
        Ok(report) => {
            checks.extend(report.checks);
            checks.extend(weft_node::gpu_checks());
        }
        Err(error) => {
            let next = match error.downcast_ref::<AdminError>() {
                Some(AdminError::NotRunning { .. }) => {
                    "`weft run` starts one for its run, `weft node` for everybody"
                }
                Some(AdminError::Stranger { .. }) => {
                    "it is not used; start one of your own elsewhere"
                }
                Some(AdminError::Permission { .. }) => {
                    "programs may attach all the same; ask its user about the node"
                }
                _ => "restart it",
            };
            checks.push(check("node daemon", Finding::Warning, format!("{error}; {next}")));
            checks.extend(weft_node::local_checks());
        }
    }
    let bad = checks.iter().any(|item| item.finding == Finding::Bad);
    if json {
        line(&serde_json::to_string_pretty(&DoctorReport { checks })?);
        return Ok(ExitCode::from(u8::from(bad)));
    }
    for item in &checks {
        let mark = match item.finding {
            Finding::Good => "ok     ",
            Finding::Warning => "warning",
            Finding::Bad => "BAD    ",
        };
        line(&format!("{mark}  {}: {}", item.subject, item.detail));
    }
    Ok(ExitCode::from(u8::from(bad)))
}

fn shim_check() -> DoctorCheck {
    let scratch = std::env::temp_dir().join(format!("weft-doctor-{}", std::process::id()));
    let found = programs::library_dir(&scratch);
    let answer = match &found {
        Ok(folder) => check("shim", Finding::Good, shown(&folder.join("libcuda.so.1"))),
        Err(error) => check("shim", Finding::Bad, error.to_string()),
    };
    let _ = std::fs::remove_dir_all(&scratch);
    answer
}

fn shown(path: &Path) -> String {
    path.canonicalize().unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn check(subject: &str, finding: Finding, detail: String) -> DoctorCheck {
    DoctorCheck { subject: subject.to_owned(), finding, detail }
}
