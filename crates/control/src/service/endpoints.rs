//! Endpoints of compute hosts.

use std::path::Path;
use std::thread;

use weft_api::v1::{Endpoint, EndpointChange, Kind, Problem};

use super::{Actor, Answer, Ask, Reply, Service, json, missing, page, parse, part};
use crate::allocate::broken;
use crate::hosts;
use crate::store::{EndpointRow, Part, StoreError};

/// Endpoints that are asked at once whether they answer.
const ASKED_MAX: usize = 64;

impl Service {
    pub(super) fn endpoint_list(&self, ask: &Ask) -> Answer {
        let part = part(ask)?;
        let found = self.store().endpoints(&part).map_err(broken)?;
        let placed = self.placed()?;
        let mut shown = Vec::with_capacity(found.len());
        for some in found.chunks(ASKED_MAX) {
            let away = why_away(some);
            let some = some.iter().cloned().zip(away);
            shown.extend(some.map(|((cursor, row), why)| (cursor, self::shown(row, &placed, why))));
        }
        page(&part, shown, |endpoint| endpoint)
    }

    pub(super) fn endpoint_change(&self, actor: &Actor, ask: &Ask) -> Answer {
        let EndpointChange { in_service } = parse(ask)?;
        let changed = self.store().set_endpoint(&ask.target, in_service, &actor.did(&ask.target));
        let row = changed.map_err(broken)?;
        let unreachable = hosts::why_away(Path::new(&row.socket));
        json(&shown(row, &self.placed()?, unreachable))
    }

    /// What it led is removed. Nobody waits for one that is away: rules that it still has lead to
    /// grants that the nodes take back.
    pub(super) fn endpoint_delete(&self, actor: &Actor, ask: &Ask) -> Answer {
        let store = self.store();
        let host = &ask.target;
        let found = store.endpoint(host).map_err(broken)?;
        let found = found.ok_or_else(|| missing("endpoint of host", host))?;
        let ended = store.remove_endpoint(host, &actor.did(host)).map_err(in_use)?;
        self.world().provisioner.endpoint_removed(host);
        ended.iter().for_each(|instance| self.engine.remove(instance));
        match hosts::clear(Path::new(&found.socket), &store.instance_prefix()) {
            Ok(rules) => tracing::info!(host, rules, "the endpoint was taken out of service"),
            Err(failure) => {
                let why = failure.words;
                tracing::warn!(host, why, "an endpoint out of service may still have rules");
            }
        }
        Ok(Reply::Nothing)
    }

    /// Refuses a VM that nobody would lead, before anything is made.
    pub(super) fn ensure_led(&self) -> Result<(), Problem> {
        let part = Part { limit: u32::MAX, after: None, project: None };
        let all = self.store().endpoints(&part).map_err(broken)?;
        if all.is_empty() || all.iter().any(|(_, endpoint)| endpoint.in_service) {
            return Ok(());
        }
        let words = "no compute host takes new VMs now: the endpoints of all of them are drained";
        Err(Problem::new(Kind::NoCapacity, words)
            .hint("try again later; an administrator puts one back: gsaas -undrain -endpoint=HOST"))
    }

    fn placed(&self) -> Result<Vec<(String, String)>, Problem> {
        self.store().placed().map_err(broken)
    }
}

/// Why endpoints do not answer: one that hangs keeps nobody else waiting.
fn why_away(endpoints: &[(String, EndpointRow)]) -> Vec<Option<String>> {
    thread::scope(|scope| {
        let ask = |(_, row): &(String, EndpointRow)| hosts::why_away(Path::new(&row.socket));
        // All are asked before the first is awaited.
        let asked: Vec<_> = endpoints.iter().map(|one| scope.spawn(move || ask(one))).collect();
        let ended = || Some("a thread ended before its time".to_owned());
        asked.into_iter().map(|one| one.join().unwrap_or_else(|_| ended())).collect()
    })
}

fn shown(row: EndpointRow, placed: &[(String, String)], unreachable: Option<String>) -> Endpoint {
    let EndpointRow { host, socket, in_service, created_ms } = row;
    let instances = placed.iter().filter(|(_, on)| *on == host).count();
    let instances = u32::try_from(instances).unwrap_or(u32::MAX);
    Endpoint { host, socket, in_service, instances, unreachable, created_ms }
}

fn in_use(error: StoreError) -> Problem {
    let is_used = matches!(error, StoreError::InUse(_));
    let problem = broken(error);
    if !is_used {
        return problem;
    }
    debug_assert_eq!(problem.kind, Kind::Conflict);
    problem.hint("terminate them, or drain the endpoint: then its removal ends them")
}
