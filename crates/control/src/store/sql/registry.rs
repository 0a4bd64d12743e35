//! Projects, tokens, nodes, GPUs and the audit.

use weft_api::v1::{AuditEntry, Project, Quota, Role};

use super::{Link, Row, Value, int, int_or_none};
use crate::store::shared::{number, parsed, word};
use crate::store::{Audit, Counts, GpuFound, GpuRow, NodeRow, Part, StoreError, TokenRow};
use crate::words::counted;

/// Adds to the audit.
pub(super) fn add_audit(link: &mut impl Link, audit: &Audit) -> Result<(), StoreError> {
    let Audit { at_ms, actor, project, action, target, status } = audit;
    link.change(
        "INSERT INTO audit (at_ms, actor, project, action, target, status)
         VALUES ($1, $2, $3, $4, $5, $6)",
        &[
            int(*at_ms)?.into(),
            actor.into(),
            project.as_deref().into(),
            action.into(),
            target.into(),
            u32::from(*status).into(),
        ],
    )?;
    Ok(())
}

/// A query of the audit.
macro_rules! audit {
    ($rest:literal) => {
        concat!("SELECT id, at_ms, actor, project, action, target, status FROM audit ", $rest)
    };
}

fn audit_row(row: &Row) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        id: row.int(0)?,
        at_ms: row.int(1)?,
        actor: row.text(2)?,
        project: row.text_or_none(3)?,
        action: row.text(4)?,
        target: row.text(5)?,
        status: row.int(6)?,
    })
}

/// The audit in order.
pub(super) fn audit(
    link: &mut impl Link,
    part: &Part,
) -> Result<Vec<(String, AuditEntry)>, StoreError> {
    let parameters = &[number(part)?.into(), part.limit.into()];
    let rows = link.all(audit!("WHERE id > $1 ORDER BY id LIMIT $2"), parameters)?;
    let with_cursor = |row| audit_row(row).map(|entry| (entry.id.to_string(), entry));
    rows.iter().map(with_cursor).collect()
}

/// The last of it, the newest first.
pub(super) fn newest_audit(
    link: &mut impl Link,
    limit: u32,
) -> Result<Vec<AuditEntry>, StoreError> {
    let rows = link.all(audit!("ORDER BY id DESC LIMIT $1"), &[limit.into()])?;
    rows.iter().map(audit_row).collect()
}

/// How much of everything there is.
pub(super) fn counts(link: &mut impl Link) -> Result<Counts, StoreError> {
    let mut one = |query: &'static str| -> Result<u64, StoreError> {
        link.one(query, &[])?.map_or(Ok(0), |row| row.int(0))
    };
    Ok(Counts {
        instances: one("SELECT count(*) FROM instances WHERE NOT hidden")?,
        unsettled: one("SELECT count(*) FROM instances
                        WHERE ended_ms IS NULL AND (NOT wanted OR ready_ms IS NULL)")?,
        cgpus: one("SELECT count(*) FROM cgpus WHERE to_ms IS NULL")?,
        gpus: one("SELECT count(*) FROM gpus")?,
        memory_mib: one("SELECT CAST(coalesce(sum(memory), 0) AS bigint) FROM gpus")?,
        held_mib: one("SELECT CAST(coalesce(sum(held), 0) AS bigint) FROM gpus")?,
    })
}

/// A query of tokens.
macro_rules! tokens {
    ($rest:literal) => {
        concat!("SELECT name, project, role, created_ms, expires_ms FROM tokens ", $rest)
    };
}

fn token_row(row: &Row) -> Result<TokenRow, StoreError> {
    Ok(TokenRow {
        name: row.text(0)?,
        project: row.text_or_none(1)?,
        role: parsed(&row.text(2)?)?,
        created_ms: row.int(3)?,
        expires_ms: row.int_or_none(4)?,
    })
}

/// The token with this digest.
pub(super) fn token(
    link: &mut impl Link,
    digest: &[u8; 32],
) -> Result<Option<TokenRow>, StoreError> {
    let row = link.one(tokens!("WHERE digest = $1"), &[Value::Bytes(digest)])?;
    row.map(|row| token_row(&row)).transpose()
}

/// Tokens by name.
pub(super) fn tokens(
    link: &mut impl Link,
    part: &Part,
) -> Result<Vec<(String, TokenRow)>, StoreError> {
    let rows = link.all(
        tokens!("WHERE name > coalesce($1, '') ORDER BY name LIMIT $2"),
        &[part.after.as_deref().into(), part.limit.into()],
    )?;
    rows.iter().map(|row| Ok((row.text(0)?, token_row(row)?))).collect()
}

/// Keeps a token.
pub(super) fn add_token(
    link: &mut impl Link,
    token: &TokenRow,
    digest: &[u8; 32],
) -> Result<(), StoreError> {
    if let Some(project) = &token.project {
        project_of(link, project)?
            .ok_or_else(|| StoreError::Missing(format!("project {project}")))?;
    }
    let added = link.change(
        "INSERT INTO tokens (name, digest, project, role, created_ms, expires_ms)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        &[
            (&token.name).into(),
            Value::Bytes(digest),
            token.project.as_deref().into(),
            word(&token.role)?.into(),
            int(token.created_ms)?.into(),
            int_or_none(token.expires_ms)?.into(),
        ],
    )?;
    if added == 0 {
        return Err(StoreError::Exists(format!("token {}", token.name)));
    }
    Ok(())
}

/// Another secret for a token, which is made if it is not there.
pub(super) fn replace_token(
    link: &mut impl Link,
    token: &TokenRow,
    digest: &[u8; 32],
) -> Result<(), StoreError> {
    link.change("DELETE FROM tokens WHERE name = $1", &[(&token.name).into()])?;
    add_token(link, token, digest)
}

/// Forgets a token, if there is another administrator's than that which has not expired.
pub(super) fn remove_token(
    link: &mut impl Link,
    name: &str,
    now_ms: u64,
) -> Result<(), StoreError> {
    let admins = link.all(
        "SELECT name FROM tokens
         WHERE role = $1 AND (expires_ms IS NULL OR expires_ms > $2) ORDER BY name LIMIT 2",
        &[word(&Role::Admin)?.into(), int(now_ms)?.into()],
    )?;
    if let [only] = &*admins
        && only.text(0)? == name
    {
        return Err(StoreError::LastAdmin(name.to_owned()));
    }
    match link.change("DELETE FROM tokens WHERE name = $1", &[name.into()])? {
        0 => Err(StoreError::Missing(format!("token {name}"))),
        _ => Ok(()),
    }
}

/// A query of projects.
macro_rules! projects {
    ($rest:literal) => {
        concat!(
            "SELECT name, quota_cgpus, quota_memory, quota_exclusive,
                    coalesce(quota_weight, quota_cgpus), quota_user_facing, used_cgpus, used_memory,
                    used_exclusive, used_weight, used_user_facing FROM projects ",
            $rest
        )
    };
}

fn quota(row: &Row, column: usize) -> Result<Quota, StoreError> {
    Ok(Quota {
        cgpus: row.int(column)?,
        memory_mib: row.int(column + 1)?,
        exclusive_gpus: row.int(column + 2)?,
        weight: row.int(column + 3)?,
        user_facing: row.int(column + 4)?,
    })
}

/// A project's quota and what it has. Within a write nobody else changes it: there is one writer.
pub(super) fn project_of(
    link: &mut impl Link,
    name: &str,
) -> Result<Option<(Quota, Quota)>, StoreError> {
    let row = link.one(projects!("WHERE name = $1"), &[name.into()])?;
    row.map(|row| Ok((quota(&row, 1)?, quota(&row, 6)?))).transpose()
}

/// Projects by name.
pub(super) fn projects(
    link: &mut impl Link,
    part: &Part,
) -> Result<Vec<(String, Project)>, StoreError> {
    let rows = link.all(
        projects!("WHERE name > coalesce($1, '') ORDER BY name LIMIT $2"),
        &[part.after.as_deref().into(), part.limit.into()],
    )?;
    let project = |row: &Row| {
        let (name, quota, used) = (row.text(0)?, quota(row, 1)?, quota(row, 6)?);
        Ok((name.clone(), Project { name, quota, used }))
    };
    rows.iter().map(project).collect()
}

/// Makes a project, or changes its quota.
pub(super) fn put_project(
    link: &mut impl Link,
    name: &str,
    quota: Quota,
) -> Result<(), StoreError> {
    link.change(
        "INSERT INTO projects (name, quota_cgpus, quota_memory, quota_exclusive, quota_weight,
                               quota_user_facing)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (name) DO UPDATE
         SET quota_cgpus = $2, quota_memory = $3, quota_exclusive = $4, quota_weight = $5,
             quota_user_facing = $6",
        &amounts(name, &quota)?,
    )?;
    Ok(())
}

/// What a project has.
pub(super) fn set_used(link: &mut impl Link, name: &str, used: &Quota) -> Result<(), StoreError> {
    link.change(
        "UPDATE projects SET used_cgpus = $2, used_memory = $3, used_exclusive = $4,
                             used_weight = $5, used_user_facing = $6
         WHERE name = $1",
        &amounts(name, used)?,
    )?;
    Ok(())
}

fn amounts<'a>(name: &'a str, amounts: &Quota) -> Result<[Value<'a>; 6], StoreError> {
    let Quota { cgpus, memory_mib, exclusive_gpus, weight, user_facing } = *amounts;
    Ok([
        name.into(),
        int(cgpus)?.into(),
        int(memory_mib)?.into(),
        int(exclusive_gpus)?.into(),
        int(weight)?.into(),
        int(user_facing)?.into(),
    ])
}

/// A query of nodes.
macro_rules! nodes {
    ($rest:literal) => {
        concat!(
            "SELECT name, admin, gateway, host, created_ms,
                    (SELECT count(*) FROM gpus WHERE node = nodes.name), identity, gateway_given
             FROM nodes ",
            $rest
        )
    };
}

fn node_row(row: &Row) -> Result<NodeRow, StoreError> {
    Ok(NodeRow {
        name: row.text(0)?,
        admin: row.text(1)?,
        gateway: row.text(2)?,
        host: row.text(3)?,
        created_ms: row.int(4)?,
        gpus: row.int(5)?,
        identity: row.text(6)?,
        gateway_given: row.flag(7)?,
    })
}

/// A node.
pub(super) fn node(link: &mut impl Link, name: &str) -> Result<Option<NodeRow>, StoreError> {
    let row = link.one(nodes!("WHERE name = $1"), &[name.into()])?;
    row.map(|row| node_row(&row)).transpose()
}

/// Nodes by name.
pub(super) fn nodes(
    link: &mut impl Link,
    part: &Part,
) -> Result<Vec<(String, NodeRow)>, StoreError> {
    let rows = link.all(
        nodes!("WHERE name > coalesce($1, '') ORDER BY name LIMIT $2"),
        &[part.after.as_deref().into(), part.limit.into()],
    )?;
    let with_cursor = |row| node_row(row).map(|node| (node.name.clone(), node));
    rows.iter().map(with_cursor).collect()
}

/// Makes a node, or changes it: new GPUs are added, and nothing new is put on those that it does
/// not have in service.
pub(super) fn put_node(
    link: &mut impl Link,
    node: &NodeRow,
    gpus: &[GpuFound],
    now_ms: u64,
) -> Result<(), StoreError> {
    keep_node(link, node)?;
    gpus.iter().try_for_each(|gpu| keep_gpu(link, &node.name, gpu))?;
    see_gpus(link, &node.name, gpus, now_ms)
}

fn keep_node(link: &mut impl Link, node: &NodeRow) -> Result<(), StoreError> {
    let same = link.one(
        "SELECT name FROM nodes WHERE identity = $1 AND identity <> '' AND name <> $2",
        &[(&node.identity).into(), (&node.name).into()],
    )?;
    if let Some(same) = same {
        return Err(StoreError::Exists(format!("this node, as {},", same.text(0)?)));
    }
    link.change(
        "INSERT INTO nodes (name, admin, gateway, host, created_ms, identity, gateway_given)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (name) DO UPDATE
         SET admin = $2, gateway = $3, host = $4, identity = $6, gateway_given = $7",
        &[
            (&node.name).into(),
            (&node.admin).into(),
            (&node.gateway).into(),
            (&node.host).into(),
            int(node.created_ms)?.into(),
            (&node.identity).into(),
            node.gateway_given.into(),
        ],
    )?;
    Ok(())
}

fn keep_gpu(link: &mut impl Link, node: &str, gpu: &GpuFound) -> Result<(), StoreError> {
    let GpuFound { device, product, memory_mib } = gpu;
    let parameters: &[Value<'_>] =
        &[node.into(), device.into(), product.into(), int(*memory_mib)?.into()];
    // One that has another memory is another one: what is on it must not be more.
    link.change(
        "UPDATE gpus SET product = $3, generation = generation + 1,
                         memory = CASE WHEN held > $4 THEN held ELSE $4 END
         WHERE node = $1 AND device = $2 AND (product <> $3 OR memory <> $4)",
        parameters,
    )?;
    // Not an upsert: that would use up a number each time.
    link.change(
        "INSERT INTO gpus (node, device, product, memory)
         SELECT CAST($1 AS text), CAST($2 AS text), CAST($3 AS text), CAST($4 AS bigint)
         WHERE NOT EXISTS (SELECT 1 FROM gpus WHERE node = $1 AND device = $2)",
        parameters,
    )?;
    Ok(())
}

/// The devices of a node that are lost now and were not, and that were and are not any longer. What
/// is known of a GPU's memory is sold: one that has less is lost, and a lost one comes back as it
/// was. Another one in its place is for whoever makes the node known anew.
fn differing(
    link: &mut impl Link,
    node: &str,
    gpus: &[GpuFound],
) -> Result<Vec<(String, bool)>, StoreError> {
    let query = "SELECT device, memory, lost_ms FROM gpus WHERE node = $1";
    let mut differing = Vec::new();
    for row in link.all(query, &[node.into()])? {
        let (device, memory_mib) = (row.text(0)?, row.int::<u64>(1)?);
        let was_lost = row.int_or_none::<u64>(2)?.is_some();
        let seen = gpus.iter().find(|gpu| gpu.device == device).map(|gpu| gpu.memory_mib);
        let is_lost = match seen {
            None => true,
            Some(seen_mib) if was_lost => seen_mib != memory_mib,
            Some(seen_mib) => seen_mib < memory_mib,
        };
        if is_lost != was_lost {
            differing.push((device, is_lost));
        }
    }
    Ok(differing)
}

/// Whether what a node has in service is known, and what it has not is known as lost.
pub(super) fn are_seen(
    link: &mut impl Link,
    node: &str,
    gpus: &[GpuFound],
) -> Result<bool, StoreError> {
    Ok(differing(link, node, gpus)?.is_empty())
}

/// A node has these GPUs in service: others of it are lost.
pub(super) fn see_gpus(
    link: &mut impl Link,
    node: &str,
    gpus: &[GpuFound],
    now_ms: u64,
) -> Result<(), StoreError> {
    for (device, is_lost) in differing(link, node, gpus)? {
        let lost_ms = is_lost.then_some(now_ms);
        link.change(
            "UPDATE gpus SET lost_ms = $3, generation = generation + 1
             WHERE node = $1 AND device = $2",
            &[node.into(), (&device).into(), int_or_none(lost_ms)?.into()],
        )?;
    }
    Ok(())
}

/// A node's gateway listens elsewhere now, if nobody said where it is reached.
pub(super) fn set_gateway(
    link: &mut impl Link,
    node: &str,
    gateway: &str,
) -> Result<(), StoreError> {
    let change = "UPDATE nodes SET gateway = $2 WHERE name = $1 AND NOT gateway_given";
    link.change(change, &[node.into(), gateway.into()]).map(drop)
}

/// Forgets a node without cGPUs.
pub(super) fn remove_node(link: &mut impl Link, name: &str) -> Result<(), StoreError> {
    let query = "SELECT CAST(coalesce(sum(cgpus), 0) AS bigint) FROM gpus WHERE node = $1";
    let held: u64 = link.one(query, &[name.into()])?.map_or(Ok(0), |row| row.int(0))?;
    if held > 0 {
        return Err(StoreError::InUse(format!("node {name}: {} of it", counted(held, "cGPU"))));
    }
    link.change("DELETE FROM gpus WHERE node = $1", &[name.into()])?;
    match link.change("DELETE FROM nodes WHERE name = $1", &[name.into()])? {
        0 => Err(StoreError::Missing(format!("node {name}"))),
        _ => Ok(()),
    }
}

/// A query of GPUs.
macro_rules! gpus {
    ($rest:literal) => {
        concat!(
            "SELECT id, node, device, product, memory, held, cgpus, exclusive, in_service,
                    generation, lost_ms FROM gpus ",
            $rest
        )
    };
}

fn gpu_row(row: &Row) -> Result<GpuRow, StoreError> {
    let found = GpuFound { device: row.text(2)?, product: row.text(3)?, memory_mib: row.int(4)? };
    Ok(GpuRow {
        id: row.int(0)?,
        node: row.text(1)?,
        found,
        held_mib: row.int(5)?,
        cgpus: row.int(6)?,
        exclusive: row.flag(7)?,
        in_service: row.flag(8)?,
        generation: row.int(9)?,
        lost_ms: row.int_or_none(10)?,
    })
}

/// A GPU.
pub(super) fn gpu(link: &mut impl Link, id: u32) -> Result<Option<GpuRow>, StoreError> {
    let row = link.one(gpus!("WHERE id = $1"), &[id.into()])?;
    row.map(|row| gpu_row(&row)).transpose()
}

/// GPUs by number.
pub(super) fn gpus(link: &mut impl Link, part: &Part) -> Result<Vec<(String, GpuRow)>, StoreError> {
    let parameters = &[number(part)?.into(), part.limit.into()];
    let rows = link.all(gpus!("WHERE id > $1 ORDER BY id LIMIT $2"), parameters)?;
    let with_cursor = |row| gpu_row(row).map(|gpu| (gpu.id.to_string(), gpu));
    rows.iter().map(with_cursor).collect()
}

/// Nodes with their GPUs.
pub(super) fn inventory(link: &mut impl Link) -> Result<Vec<(NodeRow, Vec<GpuRow>)>, StoreError> {
    let nodes = link.all(nodes!("ORDER BY name"), &[])?;
    let mut found = Vec::with_capacity(nodes.len());
    for row in &nodes {
        let node = node_row(row)?;
        let gpus = link.all(gpus!("WHERE node = $1 ORDER BY id"), &[(&node.name).into()])?;
        let gpus: Result<Vec<GpuRow>, StoreError> = gpus.iter().map(gpu_row).collect();
        found.push((node, gpus?));
    }
    Ok(found)
}

/// Takes a GPU out of service, or puts it back.
pub(super) fn set_gpu(
    link: &mut impl Link,
    id: u32,
    in_service: bool,
) -> Result<GpuRow, StoreError> {
    let found = found_gpu(link, id)?;
    if in_service && found.lost_ms.is_some() {
        let (node, device) = (found.node, found.found.device);
        return Err(StoreError::Refused(format!(
            "node {node} does not have GPU {id} ({device}) in service, or has it with another \
             memory: it is used again by itself once the node has it as it was, and one with \
             another memory once the node was made known again"
        )));
    }
    link.change(
        "UPDATE gpus SET in_service = $2, generation = generation + 1
         WHERE id = $1 AND in_service <> $2",
        &[id.into(), in_service.into()],
    )?;
    found_gpu(link, id)
}

fn found_gpu(link: &mut impl Link, id: u32) -> Result<GpuRow, StoreError> {
    gpu(link, id)?.ok_or_else(|| StoreError::Missing(format!("GPU {id}")))
}

/// Forgets a GPU that is lost and that nobody has a cGPU of.
pub(super) fn remove_gpu(link: &mut impl Link, id: u32) -> Result<(), StoreError> {
    let found = found_gpu(link, id)?;
    if found.cgpus > 0 {
        let words = format!("GPU {id}: {} of it", counted(found.cgpus, "cGPU"));
        return Err(StoreError::InUse(words));
    }
    if found.lost_ms.is_none() {
        return Err(StoreError::Refused(format!(
            "node {} has GPU {id} in service: drain it to put nothing new on it",
            found.node
        )));
    }
    link.change("DELETE FROM gpus WHERE id = $1", &[id.into()]).map(drop)
}
