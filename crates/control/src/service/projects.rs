//! Projects, tokens, usage and the audit.

use weft_api::v1::{
    CreatedToken, Kind, NewToken, Problem, Project, ProjectChange, Quota, Role, TOKEN_VALID_S_MAX,
    Token, UsageRecord,
};

use super::{Actor, Answer, Ask, Reply, Service, json, missing, named, page, parse, part};
use crate::allocate::broken;
use crate::clock;
use crate::random;
use crate::store::{CgpuRow, TokenRow};

/// Bytes of a secret that nobody can guess.
const SECRET_BYTES: usize = 24;

/// More of anything is no quota.
const QUOTA_MAX: u64 = 1 << 53;

impl Service {
    pub(super) fn project_list(&self, ask: &Ask) -> Answer {
        let part = part(ask)?;
        page(&part, self.store().projects(&part).map_err(broken)?, |project| project)
    }

    pub(super) fn project_put(&self, actor: &Actor, ask: &Ask) -> Answer {
        let ProjectChange { quota } = parse(ask)?;
        named(&ask.target)?;
        let quota = Quota::from(quota);
        let Quota { cgpus, memory_mib, exclusive_gpus, weight, user_facing } = quota;
        let most = cgpus.max(memory_mib).max(exclusive_gpus).max(weight).max(user_facing);
        if most > QUOTA_MAX {
            let words = format!("a quota of {most}: {QUOTA_MAX} is the most");
            return Err(Problem::new(Kind::Invalid, words));
        }
        let audit = actor.did(&ask.target);
        self.store().put_project(&ask.target, quota, Some(&audit)).map_err(broken)?;
        self.project_show(actor, ask)
    }

    pub(super) fn project_show(&self, actor: &Actor, ask: &Ask) -> Answer {
        let found = self.store().project(&ask.target).map_err(broken)?;
        let found = found.filter(|_| actor.reaches(&ask.target));
        let (quota, used) = found.ok_or_else(|| missing("project", &ask.target))?;
        json(&Project { name: ask.target.clone(), quota, used })
    }

    pub(super) fn usage_list(&self, actor: &Actor, ask: &Ask) -> Answer {
        let part = actor.part(ask)?;
        let found = self.store().usage(&part).map_err(broken)?;
        page(&part, found, usage_record)
    }

    pub(super) fn audit_list(&self, ask: &Ask) -> Answer {
        let part = part(ask)?;
        page(&part, self.store().audit(&part).map_err(broken)?, |entry| entry)
    }

    pub(super) fn token_list(&self, ask: &Ask) -> Answer {
        let part = part(ask)?;
        page(&part, self.store().tokens(&part).map_err(broken)?, shown)
    }

    pub(super) fn token_create(&self, actor: &Actor, ask: &Ask) -> Answer {
        let NewToken { name, project, role, valid_s } = parse(ask)?;
        named(&name)?;
        if valid_s.is_some_and(|valid_s| !(1..=TOKEN_VALID_S_MAX).contains(&valid_s)) {
            let words = format!("a token is good for 1 to {TOKEN_VALID_S_MAX} s");
            return Err(Problem::new(Kind::Invalid, words)
                .hint("leave `valid_s` out for one that does not end by itself"));
        }
        match (&project, role) {
            (None, Role::Reader | Role::Member) => {
                let words = format!("a {} is one of a project", role.name());
                return Err(Problem::new(Kind::Invalid, words).hint("say which project"));
            }
            (Some(_), Role::Admin) => {
                return Err(Problem::new(Kind::Invalid, "an admin is one of all projects")
                    .hint("leave the project out"));
            }
            (None, Role::Admin) | (Some(_), Role::Reader | Role::Member) => {}
        }
        let created_ms = clock::now_ms();
        let expires_ms = valid_s.map(|valid_s| created_ms + valid_s * 1_000);
        let token = TokenRow { name, project, role, created_ms, expires_ms };
        let audit = actor.did(&token.name);
        let internal = |error: std::io::Error| Problem::new(Kind::Internal, error.to_string());
        let secret = random::hex(SECRET_BYTES).map_err(internal)?;
        let digest = random::digest(secret.as_bytes());
        self.store().add_token(&token, digest, Some(&audit)).map_err(broken)?;
        json(&CreatedToken { token: shown(token), secret })
    }

    pub(super) fn token_delete(&self, actor: &Actor, ask: &Ask) -> Answer {
        let removed = self.store().remove_token(&ask.target, &actor.did(&ask.target));
        removed.map(|()| Reply::Nothing).map_err(broken)
    }
}

fn shown(row: TokenRow) -> Token {
    let TokenRow { name, project, role, created_ms, expires_ms } = row;
    Token { name, project, role, created_ms, expires_ms }
}

pub(super) fn usage_record(row: CgpuRow) -> UsageRecord {
    UsageRecord {
        cgpu: row.id,
        instance: row.instance,
        project: row.project,
        mode: row.mode,
        memory_mib: row.memory_mib,
        from_ms: row.from_ms,
        to_ms: row.to_ms,
        used_ns: row.used_ns,
    }
}
