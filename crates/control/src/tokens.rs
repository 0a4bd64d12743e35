//! `weft-control token` and `weft-control tokens`: what is done by hand stands in the audit.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use weft_api::v1::{Role, check_name};
use weft_control::clock;
use weft_control::store::{Audit, Part, Store, StoreError, TokenRow};

use crate::args::{Database, State, TokenOptions, TokensOptions};
use crate::{line, serve};

/// Tokens that are read at once.
const PART: u32 = 1_000;

/// `weft-control token`
pub(crate) fn token(options: &TokenOptions) -> Result<()> {
    let TokenOptions { state, database, name, role, valid, revoke, project } = options;
    check_name(name)?;
    project.iter().try_for_each(|project| check_name(project))?;
    let role = match role {
        Some(role) => *role,
        None if *revoke => return take_back(store(state, database)?.as_ref(), name),
        None => bail!("say what its bearer may: --role reader, member or admin"),
    };
    ensure!(
        (role == Role::Admin) == project.is_none(),
        "an admin is one of all projects, a reader or member of one (--project)"
    );
    let store = store(state, database)?;
    if let Some(project) = project
        && store.project(project)?.is_none()
    {
        store.put_project(project, weft_api::v1::Quota::default(), None)?;
    }
    let (secret, digest) = serve::new_secret()?;
    let (project, created_ms) = (project.clone(), clock::now_ms());
    let valid_ms = valid.map(|valid| valid.as_secs() * 1_000);
    let expires_ms = valid_ms.map(|valid_ms| created_ms + valid_ms);
    let token = TokenRow { name: name.clone(), project, role, created_ms, expires_ms };
    store.add_token(&token, digest, Some(&audit("token made", name))).map_err(|error| {
        let is_there = matches!(error, StoreError::Exists(_));
        let hint =
            if is_there { ": choose another name, or take it back with --revoke" } else { "" };
        anyhow::anyhow!("token `{name}` was not made: {error}{hint}")
    })?;
    line(&secret)
}

fn take_back(store: &dyn Store, name: &str) -> Result<()> {
    store.remove_token(name, &audit("token taken back", name)).map_err(|error| {
        let is_last = matches!(error, StoreError::LastAdmin(_));
        let hint = if is_last { ": make another one first" } else { "" };
        anyhow::anyhow!("token `{name}` was not taken back: {error}{hint}")
    })
}

/// `weft-control tokens`
pub(crate) fn list(options: &TokensOptions) -> Result<()> {
    let store = store(&options.state, &options.database)?;
    let (mut after, now_ms) = (None, clock::now_ms());
    loop {
        let part = Part { limit: PART, after, project: None };
        let found = store.tokens(&part)?;
        for (_, token) in &found {
            line(&shown(token, now_ms))?;
        }
        after = found.last().map(|(cursor, _)| cursor.clone());
        if found.len() < PART as usize {
            return Ok(());
        }
    }
}

fn shown(token: &TokenRow, now_ms: u64) -> String {
    let of = token.project.as_deref().map_or_else(String::new, |project| format!(" of {project}"));
    let end = match token.expires_ms {
        None => "for ever".to_owned(),
        Some(end) if end <= now_ms => "expired".to_owned(),
        Some(end) => match (end - now_ms).div_ceil(3_600_000) {
            hours @ 0..=48 => format!("for {hours} h more"),
            hours => format!("for {} days more", hours / 24),
        },
    };
    format!("{}: {}{of}, {end}", token.name, token.role.name())
}

/// The store of a control plane, whether that runs or not: it takes nothing from whoever has the
/// lease.
fn store(state: &State, database: &Database) -> Result<Arc<dyn Store>> {
    if let Some(access) = database.access()? {
        return Ok(Arc::new(serve::open(access, None)?));
    }
    state.ensure_there()?;
    State::store(&state.folder()?).context("its store cannot be opened")
}

/// By whom: a user of this host.
fn audit(action: &str, name: &str) -> Audit {
    Audit {
        at_ms: clock::now_ms(),
        actor: format!("weft-control, user {}", rustix::process::getuid().as_raw()),
        project: None,
        action: action.to_owned(),
        target: name.to_owned(),
        status: 200,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_how_long_tokens_are_good() {
        let token = |expires_ms| TokenRow {
            name: "ann".to_owned(),
            project: Some("p".to_owned()),
            role: Role::Member,
            created_ms: 0,
            expires_ms,
        };
        let (hour, now_ms) = (3_600_000, 5);
        assert_eq!(shown(&token(None), now_ms), "ann: member of p, for ever");
        assert_eq!(shown(&token(Some(5)), now_ms), "ann: member of p, expired");
        assert_eq!(shown(&token(Some(6)), now_ms), "ann: member of p, for 1 h more");
        assert_eq!(shown(&token(Some(720 * hour)), 0), "ann: member of p, for 30 days more");
    }
}
