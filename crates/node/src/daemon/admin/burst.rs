//! Requests that a client sends one behind the other, without waiting for each answer: what they
//! make comes to disk together, and no answer goes out before.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Caller, Daemon, refused};
use crate::admin::{Answer, Request, VgpuReport};

/// A request that was done, but for the disk.
#[derive(Debug)]
pub(super) enum Begun {
    /// This is its answer.
    Answered(Box<Answer>),
    /// It made the vGPU of this name, which is not saved.
    Made(String),
}

impl Daemon {
    /// Does what is asked. Nobody hears of it before
    /// [`Self::finish_requests`].
    pub(super) fn begin_request(self: &Arc<Self>, request: Request, caller: Caller) -> Begun {
        let refusal = |error| Begun::Answered(Box::new(refused(format!("{error:#}"))));
        self.act(request, caller).unwrap_or_else(refusal)
    }

    /// The answers to requests that were begun, in their order, once what they made is saved.
    pub(super) fn finish_requests(&self, begun: Vec<Begun>) -> Vec<Answer> {
        let has_made = begun.iter().any(|one| matches!(one, Begun::Made(_)));
        let made =
            if has_made { self.keep().and_then(|()| self.reports()) } else { Ok(BTreeMap::new()) };
        let answer = |one| match one {
            Begun::Answered(answer) => *answer,
            Begun::Made(name) => match made.as_ref().map(|made| made.get(&name)) {
                Ok(Some(report)) => Answer::Vgpu(report.clone()),
                Ok(None) => refused(format!("vGPU `{name}` was removed meanwhile")),
                Err(error) => refused(format!("{error:#}")),
            },
        };
        begun.into_iter().map(answer).collect()
    }

    /// Every vGPU by its name.
    fn reports(&self) -> anyhow::Result<BTreeMap<String, VgpuReport>> {
        let all = self.stats()?.vgpus.into_iter();
        Ok(all.map(|vgpu| (vgpu.name.clone(), vgpu)).collect())
    }
}
