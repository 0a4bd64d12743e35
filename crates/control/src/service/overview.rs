//! Everything at once, for people: what each may see is what the calls show.

use std::net::IpAddr;

use weft_api::v1::{
    AuditEntry, Call, Cgpu, Gpu, Instance, InstanceState, PAGE_MAX, Page, Problem, Project, Role,
    UsageRecord,
};

use super::{Actor, Answer, Ask, Reply, Service, instances, projects};
use crate::allocate::broken;

/// Records of usage and audit that are shown.
const NEWEST: u32 = 20;

/// Instances of the queue that are shown.
const QUEUE_MAX: usize = 50;

/// What a token's bearer sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    /// The token's name.
    pub who: String,
    /// Its project, none for an administrator.
    pub project: Option<String>,
    /// GPUs, for administrators: the first thousand.
    pub gpus: Option<Vec<Gpu>>,
    /// cGPUs that somebody has: the first thousand.
    pub cgpus: Vec<Cgpu>,
    /// Instances that something is to be done about.
    pub queue: Vec<Instance>,
    /// How many there are in all.
    pub queue_length: usize,
    /// Projects with their quotas.
    pub projects: Vec<Project>,
    /// The newest usage records.
    pub usage: Vec<UsageRecord>,
    /// The newest audit records, for administrators.
    pub audit: Option<Vec<AuditEntry>>,
}

impl Service {
    /// What a token's bearer sees.
    ///
    /// # Errors
    /// If the token is not known, or the store does not work.
    pub fn overview(&self, token: &str, from: Option<IpAddr>) -> Result<Overview, Problem> {
        let ask = Ask { token: Some(token.to_owned()), from, ..Ask::default() };
        let call = Call::CgpuList;
        let actor = Actor { token: self.bearer(call, &ask)?, call };
        actor.may(Role::Reader)?;
        let _place = self.places.take(actor.token.project.as_deref())?;
        let all = Ask { limit: Some(PAGE_MAX), ..ask };
        let is_admin = actor.administrates();
        let gpus = is_admin.then(|| items(self.gpu_list(&all))).transpose()?;
        let cgpus = items(self.cgpu_list(&actor, &all))?;
        let projects = match &actor.token.project {
            None => items(self.project_list(&all))?,
            Some(own) => {
                let found = self.store().project(own).map_err(broken)?;
                let shown = |(quota, used)| Project { name: own.clone(), quota, used };
                found.map(shown).into_iter().collect()
            }
        };
        let own = actor.token.project.as_deref();
        let usage = self.store().newest_usage(own, NEWEST).map_err(broken)?;
        let newest = || self.store().newest_audit(NEWEST).map_err(broken);
        let (queue, queue_length) = self.queue(&actor)?;
        Ok(Overview {
            who: actor.token.name.clone(),
            project: actor.token.project.clone(),
            gpus,
            cgpus,
            queue,
            queue_length,
            projects,
            usage: usage.into_iter().map(projects::usage_record).collect(),
            audit: is_admin.then(newest).transpose()?,
        })
    }

    fn queue(&self, actor: &Actor) -> Result<(Vec<Instance>, usize), Problem> {
        let (mut queue, mut length) = (Vec::new(), 0);
        for id in self.store().unsettled().map_err(broken)? {
            let Some(row) = self.store().instance(&id).map_err(broken)? else { continue };
            // It may have become ready since.
            let is_queued = match row.state() {
                InstanceState::Building | InstanceState::Terminating => true,
                InstanceState::Ready | InstanceState::Failed | InstanceState::Terminated => false,
            };
            if is_queued && actor.reaches(&row.project) {
                length += 1;
                if queue.len() < QUEUE_MAX {
                    queue.push(instances::shown(actor, row));
                }
            }
        }
        Ok((queue, length))
    }
}

fn items<T: serde::de::DeserializeOwned>(answer: Answer) -> Result<Vec<T>, Problem> {
    let failed = |why: String| Problem::new(weft_api::v1::Kind::Internal, why);
    match answer? {
        Reply::Json(bytes) => {
            let page: Result<Page<T>, _> = serde_json::from_slice(&bytes);
            page.map(|page| page.items).map_err(|error| failed(error.to_string()))
        }
        Reply::Passing(_) | Reply::Nothing | Reply::Text(_) => {
            Err(failed("a list is JSON".to_owned()))
        }
    }
}
