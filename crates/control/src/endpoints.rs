//! The endpoints of compute hosts, through their sockets.

use std::collections::BTreeMap;
use std::path::PathBuf;

use weft_api::endpoint::{self, Answer, Client, EndpointError, Request};

use crate::provision::Failure;
use crate::rules::{Endpoint, GrantRow};

/// Compute hosts with the sockets of their endpoints: on this host, or led here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(BTreeMap<String, PathBuf>);

impl From<EndpointError> for Failure {
    fn from(error: EndpointError) -> Self {
        let is_permanent = match &error {
            EndpointError::Refused { is_permanent, .. } => *is_permanent,
            EndpointError::Stranger { .. } | EndpointError::Unexpected(_) => true,
            EndpointError::NotRunning { .. } | EndpointError::Io(_) => false,
        };
        Self { is_permanent, words: error.to_string() }
    }
}

impl Hosts {
    /// Of these hosts.
    #[must_use]
    pub fn new(sockets: BTreeMap<String, PathBuf>) -> Self {
        Self(sockets)
    }

    fn call(&self, host: &str, request: Request) -> Result<Answer, Failure> {
        let unknown = || {
            Failure::permanent(format!(
                "the endpoint of compute host `{host}` is not known: say --host {host}=SOCKET"
            ))
        };
        let socket = self.0.get(host).ok_or_else(unknown)?;
        let said = Client::connect(socket).and_then(|mut client| client.call(request));
        said.map_err(|error| {
            let failure = Failure::from(error);
            Failure { words: format!("host {host}: {}", failure.words), ..failure }
        })
    }
}

/// What is said to endpoints has types of its own, so that the store's may change.
fn said(row: &GrantRow) -> endpoint::GrantRow {
    endpoint::GrantRow {
        instance: row.instance.clone(),
        host: row.host.clone(),
        tap: row.tap.clone(),
        mac: row.mac.clone(),
        ip: row.ip.clone(),
        masked: row.masked.clone(),
        node: row.node.clone(),
        generation: row.generation,
    }
}

fn strange<T>(answer: &Answer) -> Result<T, Failure> {
    Err(Failure::permanent(format!("an endpoint answers something else: {answer:?}")))
}

impl Endpoint for Hosts {
    fn put(&self, instance: &str, rows: &[GrantRow]) -> Result<(), Failure> {
        let Some(first) = rows.first() else { return self.withdraw(instance) };
        let request =
            Request::Put { instance: instance.to_owned(), rows: rows.iter().map(said).collect() };
        self.call(&first.host, request).map(drop)
    }

    fn holds(&self, instance: &str, rows: &[GrantRow]) -> Result<bool, Failure> {
        let Some(first) = rows.first() else { return Ok(true) };
        let request =
            Request::Holds { instance: instance.to_owned(), rows: rows.iter().map(said).collect() };
        match self.call(&first.host, request)? {
            Answer::Holds { holds } => Ok(holds),
            other => strange(&other),
        }
    }

    /// On all hosts: a VM may have been moved.
    fn withdraw(&self, instance: &str) -> Result<(), Failure> {
        for host in self.0.keys() {
            self.call(host, Request::Withdraw { instance: instance.to_owned() })?;
        }
        Ok(())
    }

    fn instances(&self) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for host in self.0.keys() {
            match self.call(host, Request::Instances)? {
                Answer::Instances { mut instances } => found.append(&mut instances),
                other => return strange(&other),
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }
}
