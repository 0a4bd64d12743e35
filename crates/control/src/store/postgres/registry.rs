//! Projects, tokens, nodes, GPUs and the audit; and the trait, row by row.

use postgres::Row;
use weft_api::v1::{AuditEntry, Event, Project, Quota};

use super::instances::{self, Which};
use super::link::{Link, at, int, text, text_or_none};
use super::{Postgres, add_audit, counts};
use crate::clock;
use crate::plan::Step;
use crate::store::shared::{mode_of, number, parsed, word};
use crate::store::{
    Audit, CgpuRow, Counts, Effects, GpuFound, GpuRow, InstanceRow, Key, Leading, NodeRow,
    OperationRow, Part, Reservation, Store, StoreError, Taken, Ticket, TokenRow,
};

type Rows<T> = Result<Vec<(String, T)>, StoreError>;

impl Store for Postgres {
    fn check(&self) -> Result<(), StoreError> {
        // A replica that does not write is ready when it can read.
        if self.leading() != Leading::Here {
            return self.pool.read(|link| link.one("SELECT 1", &[]).map(|_| ()));
        }
        let ticket = self.writer.begin(|link| {
            link.change("UPDATE written SET at_ms = $1", &[&int(clock::now_ms())?])?;
            Ok(())
        });
        ticket.wait()
    }

    fn plane(&self) -> &str {
        &self.plane
    }

    fn leading(&self) -> Leading {
        self.lease.leading()
    }

    fn token(&self, digest: &[u8; 32]) -> Result<Option<TokenRow>, StoreError> {
        self.pool.read(|link| {
            let row = link.one(
                "SELECT name, project, role, created_ms FROM tokens WHERE digest = $1",
                &[&digest.as_slice()],
            )?;
            row.map(|row| token_row(&row)).transpose()
        })
    }

    fn tokens(&self, part: &Part) -> Rows<TokenRow> {
        self.pool.read(|link| {
            let rows = link.all(
                "SELECT name, project, role, created_ms FROM tokens
                 WHERE name > coalesce($1, '') ORDER BY name LIMIT $2",
                &[&text_or_none(part.after.as_deref()), &i64::from(part.limit)],
            )?;
            rows.iter().map(|row| Ok((row.try_get(0)?, token_row(row)?))).collect()
        })
    }

    fn add_token(
        &self,
        token: &TokenRow,
        digest: [u8; 32],
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (token, audit) = (token.clone(), audit.cloned());
        let ticket = self.writer.begin(move |link| {
            keep_token(link, &token, &digest)?;
            audit.iter().try_for_each(|audit| add_audit(link, audit))
        });
        ticket.wait()
    }

    fn remove_token(&self, name: &str, audit: &Audit) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.clone());
        let ticket = self.writer.begin(move |link| {
            if link.change("DELETE FROM tokens WHERE name = $1", &[&text(&name)])? == 0 {
                return Err(StoreError::Missing(format!("token {name}")));
            }
            add_audit(link, &audit)
        });
        ticket.wait()
    }

    fn project(&self, name: &str) -> Result<Option<(Quota, Quota)>, StoreError> {
        self.pool.read(|link| {
            let row = link.one(projects!("WHERE name = $1"), &[&text(name)])?;
            row.map(|row| Ok((quota(&row, 1)?, quota(&row, 4)?))).transpose()
        })
    }

    fn projects(&self, part: &Part) -> Rows<Project> {
        self.pool.read(|link| {
            let rows = link.all(
                projects!("WHERE name > coalesce($1, '') ORDER BY name LIMIT $2"),
                &[&text_or_none(part.after.as_deref()), &i64::from(part.limit)],
            )?;
            let project = |row: &Row| {
                let name: String = row.try_get(0)?;
                let (quota, used) = (quota(row, 1)?, quota(row, 4)?);
                Ok((name.clone(), Project { name, quota, used }))
            };
            rows.iter().map(project).collect()
        })
    }

    fn put_project(
        &self,
        name: &str,
        quota: Quota,
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.cloned());
        let ticket = self.writer.begin(move |link| {
            link.change(
                "INSERT INTO projects (name, quota_cgpus, quota_memory, quota_exclusive)
                 VALUES ($1, $2, $3, $4)
                 ON CONFLICT (name) DO UPDATE
                 SET quota_cgpus = $2, quota_memory = $3, quota_exclusive = $4",
                &[&name, &int(quota.cgpus)?, &int(quota.memory_mib)?, &int(quota.exclusive_gpus)?],
            )?;
            audit.iter().try_for_each(|audit| add_audit(link, audit))
        });
        ticket.wait()
    }

    fn node(&self, name: &str) -> Result<Option<NodeRow>, StoreError> {
        self.pool.read(|link| {
            let row = link.one(nodes!("WHERE name = $1"), &[&text(name)])?;
            row.map(|row| node_row(&row)).transpose()
        })
    }

    fn nodes(&self, part: &Part) -> Rows<NodeRow> {
        self.pool.read(|link| {
            let rows = link.all(
                nodes!("WHERE name > coalesce($1, '') ORDER BY name LIMIT $2"),
                &[&text_or_none(part.after.as_deref()), &i64::from(part.limit)],
            )?;
            rows.iter().map(|row| Ok((row.try_get(0)?, node_row(row)?))).collect()
        })
    }

    fn put_node(
        &self,
        node: &NodeRow,
        gpus: &[GpuFound],
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (node, gpus, audit) = (node.clone(), gpus.to_vec(), audit.cloned());
        let ticket = self.writer.begin(move |link| {
            keep_node(link, &node)?;
            gpus.iter().try_for_each(|gpu| keep_gpu(link, &node.name, gpu))?;
            drain_lost(link, &node.name, &gpus)?;
            audit.iter().try_for_each(|audit| add_audit(link, audit))
        });
        ticket.wait()
    }

    fn set_gateway(&self, node: &str, gateway: &str) -> Result<(), StoreError> {
        let (node, gateway) = (node.to_owned(), gateway.to_owned());
        let ticket = self.writer.begin(move |link| {
            let change = "UPDATE nodes SET gateway = $2 WHERE name = $1 AND NOT gateway_given";
            link.change(change, &[&node, &text(&gateway)])?;
            Ok(())
        });
        ticket.wait()
    }

    fn remove_node(&self, name: &str, audit: &Audit) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.clone());
        let ticket = self.writer.begin(move |link| {
            let query = "SELECT coalesce(sum(cgpus), 0)::bigint FROM gpus WHERE node = $1";
            let row = link.one(query, &[&text(&name)])?;
            let held: u64 = row.map_or(Ok(0), |row| at(&row, 0))?;
            if held > 0 {
                return Err(StoreError::InUse(format!("node {name}: {held} cGPUs of it")));
            }
            link.change("DELETE FROM gpus WHERE node = $1", &[&text(&name)])?;
            if link.change("DELETE FROM nodes WHERE name = $1", &[&text(&name)])? == 0 {
                return Err(StoreError::Missing(format!("node {name}")));
            }
            add_audit(link, &audit)
        });
        ticket.wait()
    }

    fn gpu(&self, id: u32) -> Result<Option<GpuRow>, StoreError> {
        self.pool.read(|link| gpu_of(link, id))
    }

    fn gpus(&self, part: &Part) -> Rows<GpuRow> {
        let after = number(part)?;
        self.pool.read(|link| {
            let rows = link.all(
                gpus!("WHERE id > $1 ORDER BY id LIMIT $2"),
                &[&after, &i64::from(part.limit)],
            )?;
            let with_cursor = |row| gpu_row(row).map(|gpu| (gpu.id.to_string(), gpu));
            rows.iter().map(with_cursor).collect()
        })
    }

    fn inventory(&self) -> Ticket<Vec<(NodeRow, Vec<GpuRow>)>> {
        self.writer.begin(|link| {
            let nodes = link.all(nodes!("ORDER BY name"), &[])?;
            let mut found = Vec::with_capacity(nodes.len());
            for row in &nodes {
                let node = node_row(row)?;
                let gpus = link.all(gpus!("WHERE node = $1 ORDER BY id"), &[&node.name])?;
                let gpus: Result<Vec<GpuRow>, StoreError> = gpus.iter().map(gpu_row).collect();
                found.push((node, gpus?));
            }
            Ok(found)
        })
    }

    fn taken(&self) -> Ticket<Vec<Taken>> {
        self.writer.begin(|link| {
            let rows = link.all(
                "SELECT instance, gpu, memory, exclusive FROM cgpus WHERE to_ms IS NULL
                 ORDER BY instance, ordinal",
                &[],
            )?;
            let taken = |row: &Row| {
                let (instance, gpu) = (row.try_get(0)?, at(row, 1)?);
                let (memory_mib, mode) = (at(row, 2)?, mode_of(row.try_get(3)?));
                Ok(Taken { instance, gpu, memory_mib, mode, generation: 0 })
            };
            rows.iter().map(taken).collect()
        })
    }

    fn set_gpu(&self, id: u32, in_service: bool, audit: &Audit) -> Ticket<GpuRow> {
        let audit = audit.clone();
        self.writer.begin(move |link| {
            link.change(
                "UPDATE gpus SET in_service = $2, generation = generation + 1
                 WHERE id = $1 AND in_service <> $2",
                &[&i64::from(id), &in_service],
            )?;
            add_audit(link, &audit)?;
            gpu_of(link, id)?.ok_or_else(|| StoreError::Missing(format!("GPU {id}")))
        })
    }

    fn reserve(&self, reservation: Reservation) -> Ticket<InstanceRow> {
        self.writer.begin(move |link| instances::reserve(link, &reservation))
    }

    fn repeated(&self, key: &Key) -> Result<Option<String>, StoreError> {
        self.pool.read(|link| instances::repeated(link, key))
    }

    fn instance(&self, id: &str) -> Result<Option<InstanceRow>, StoreError> {
        self.pool.read(|link| instances::find(link, id))
    }

    fn instances(&self, part: &Part) -> Rows<InstanceRow> {
        let after = number(part)?;
        self.pool.read(|link| instances::shown(link, part, after))
    }

    fn unsettled(&self) -> Result<Vec<String>, StoreError> {
        self.pool.read(|link| {
            ids(
                link,
                "SELECT id FROM instances
                 WHERE ended_ms IS NULL AND (NOT wanted OR ready_ms IS NULL) ORDER BY seq",
            )
        })
    }

    fn live(&self) -> Result<Vec<String>, StoreError> {
        self.pool
            .read(|link| ids(link, "SELECT id FROM instances WHERE ended_ms IS NULL ORDER BY seq"))
    }

    fn instance_cgpus(&self, instance: &str) -> Result<Vec<CgpuRow>, StoreError> {
        self.pool.read(|link| instances::cgpus_of(link, instance))
    }

    fn cgpus(&self, part: &Part) -> Rows<CgpuRow> {
        let after = number(part)?;
        self.pool.read(|link| instances::cgpus(link, part, after, Which::Live))
    }

    fn usage(&self, part: &Part) -> Rows<CgpuRow> {
        let after = number(part)?;
        self.pool.read(|link| instances::cgpus(link, part, after, Which::All))
    }

    fn newest_usage(&self, project: Option<&str>, limit: u32) -> Result<Vec<CgpuRow>, StoreError> {
        self.pool.read(|link| instances::newest(link, project, limit))
    }

    fn mark(
        &self,
        instance: &str,
        step: Step,
        effects: &Effects,
        event: &Event,
    ) -> Result<(), StoreError> {
        let (instance, effects, event) = (instance.to_owned(), effects.clone(), event.clone());
        let ticket =
            self.writer.begin(move |link| instances::mark(link, &instance, step, &effects, &event));
        ticket.wait()
    }

    fn keep_used(&self, used_ns: &[(String, u64)]) -> Result<(), StoreError> {
        let used_ns = used_ns.to_vec();
        self.writer.begin(move |link| instances::keep_used(link, &used_ns)).wait()
    }

    fn tell(&self, instance: &str, event: &Event) -> Result<(), StoreError> {
        let (instance, event) = (instance.to_owned(), event.clone());
        self.writer.begin(move |link| instances::tell(link, &instance, &event)).wait()
    }

    fn renounce(
        &self,
        instance: &str,
        failure: Option<&str>,
        audit: Option<&Audit>,
    ) -> Result<InstanceRow, StoreError> {
        let (instance, audit) = (instance.to_owned(), audit.cloned());
        let failure = failure.map(str::to_owned);
        let ticket = self.writer.begin(move |link| {
            audit.iter().try_for_each(|audit| add_audit(link, audit))?;
            instances::renounce(link, &instance, failure.as_deref(), audit.as_ref())
        });
        ticket.wait()
    }

    fn release(&self, instance: &str, now_ms: u64, event: &Event) -> Ticket<()> {
        let (instance, event) = (instance.to_owned(), event.clone());
        self.writer.begin(move |link| instances::release(link, &instance, now_ms, &event))
    }

    fn hide(&self, instance: &str, audit: &Audit) -> Result<(), StoreError> {
        let (instance, audit) = (instance.to_owned(), audit.clone());
        let ticket = self.writer.begin(move |link| {
            link.change(
                "UPDATE instances SET hidden = true WHERE id = $1 AND ended_ms IS NOT NULL",
                &[&instance],
            )?;
            add_audit(link, &audit)
        });
        ticket.wait()
    }

    fn operation(&self, id: &str) -> Result<Option<(OperationRow, Vec<Event>)>, StoreError> {
        self.pool.snapshot(|link| instances::operation(link, id))
    }

    fn note(&self, audit: &Audit) -> Result<(), StoreError> {
        let audit = audit.clone();
        self.writer.begin(move |link| add_audit(link, &audit)).wait()
    }

    fn audit(&self, part: &Part) -> Rows<AuditEntry> {
        let after = number(part)?;
        self.pool.read(|link| {
            let rows = link.all(
                "SELECT id, at_ms, actor, project, action, target, status FROM audit
                 WHERE id > $1 ORDER BY id LIMIT $2",
                &[&after, &i64::from(part.limit)],
            )?;
            let with_cursor = |row| audit_row(row).map(|entry| (entry.id.to_string(), entry));
            rows.iter().map(with_cursor).collect()
        })
    }

    fn newest_audit(&self, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        self.pool.read(|link| {
            let rows = link.all(
                "SELECT id, at_ms, actor, project, action, target, status FROM audit
                 ORDER BY id DESC LIMIT $1",
                &[&i64::from(limit)],
            )?;
            rows.iter().map(audit_row).collect()
        })
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        self.pool.read(counts)
    }
}

fn audit_row(row: &Row) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        id: at(row, 0)?,
        at_ms: at(row, 1)?,
        actor: row.try_get(2)?,
        project: row.try_get(3)?,
        action: row.try_get(4)?,
        target: row.try_get(5)?,
        status: at(row, 6)?,
    })
}

/// A query of projects.
macro_rules! projects {
    ($rest:literal) => {
        concat!(
            "SELECT name, quota_cgpus, quota_memory, quota_exclusive, used_cgpus, used_memory,
                    used_exclusive FROM projects ",
            $rest
        )
    };
}
use projects;

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
use nodes;

/// A query of GPUs.
macro_rules! gpus {
    ($rest:literal) => {
        concat!(
            "SELECT id, node, device, product, memory, held, cgpus, exclusive, in_service,
                    generation FROM gpus ",
            $rest
        )
    };
}
use gpus;

fn ids(link: &mut Link, query: &'static str) -> Result<Vec<String>, StoreError> {
    let rows = link.all(query, &[])?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

fn token_row(row: &Row) -> Result<TokenRow, StoreError> {
    Ok(TokenRow {
        name: row.try_get(0)?,
        project: row.try_get(1)?,
        role: parsed(row.try_get(2)?)?,
        created_ms: at(row, 3)?,
    })
}

fn node_row(row: &Row) -> Result<NodeRow, StoreError> {
    Ok(NodeRow {
        name: row.try_get(0)?,
        admin: row.try_get(1)?,
        gateway: row.try_get(2)?,
        host: row.try_get(3)?,
        created_ms: at(row, 4)?,
        gpus: at(row, 5)?,
        identity: row.try_get(6)?,
        gateway_given: row.try_get(7)?,
    })
}

fn gpu_row(row: &Row) -> Result<GpuRow, StoreError> {
    let found =
        GpuFound { device: row.try_get(2)?, product: row.try_get(3)?, memory_mib: at(row, 4)? };
    Ok(GpuRow {
        id: at(row, 0)?,
        node: row.try_get(1)?,
        found,
        held_mib: at(row, 5)?,
        cgpus: at(row, 6)?,
        exclusive: row.try_get(7)?,
        in_service: row.try_get(8)?,
        generation: at(row, 9)?,
    })
}

fn gpu_of(link: &mut Link, id: u32) -> Result<Option<GpuRow>, StoreError> {
    let row = link.one(gpus!("WHERE id = $1"), &[&i64::from(id)])?;
    row.map(|row| gpu_row(&row)).transpose()
}

fn quota(row: &Row, column: usize) -> Result<Quota, StoreError> {
    Ok(Quota {
        cgpus: at(row, column)?,
        memory_mib: at(row, column + 1)?,
        exclusive_gpus: at(row, column + 2)?,
    })
}

/// A project's quota and what it has, which nobody else changes before the transaction's end.
pub(super) fn project_for_update(
    link: &mut Link,
    name: &str,
) -> Result<Option<(Quota, Quota)>, StoreError> {
    let row = link.one(projects!("WHERE name = $1 FOR UPDATE"), &[&text(name)])?;
    row.map(|row| Ok((quota(&row, 1)?, quota(&row, 4)?))).transpose()
}

fn keep_token(link: &mut Link, token: &TokenRow, digest: &[u8]) -> Result<(), StoreError> {
    if let Some(project) = &token.project {
        project_for_update(link, project)?
            .ok_or_else(|| StoreError::Missing(format!("project {project}")))?;
    }
    let added = link.change(
        "INSERT INTO tokens (name, digest, project, role, created_ms)
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
        &[&token.name, &digest, &token.project, &word(&token.role)?, &int(token.created_ms)?],
    )?;
    if added == 0 {
        return Err(StoreError::Exists(format!("token {}", token.name)));
    }
    Ok(())
}

fn keep_node(link: &mut Link, node: &NodeRow) -> Result<(), StoreError> {
    let same = link.one(
        "SELECT name FROM nodes WHERE identity = $1 AND identity <> '' AND name <> $2",
        &[&text(&node.identity), &node.name],
    )?;
    if let Some(same) = same {
        let same: String = same.try_get(0)?;
        return Err(StoreError::Exists(format!("this node, as {same},")));
    }
    link.change(
        "INSERT INTO nodes (name, admin, gateway, host, created_ms, identity, gateway_given)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (name) DO UPDATE
         SET admin = $2, gateway = $3, host = $4, identity = $6, gateway_given = $7",
        &[
            &node.name,
            &text(&node.admin),
            &text(&node.gateway),
            &text(&node.host),
            &int(node.created_ms)?,
            &text(&node.identity),
            &node.gateway_given,
        ],
    )?;
    Ok(())
}

fn keep_gpu(link: &mut Link, node: &str, gpu: &GpuFound) -> Result<(), StoreError> {
    let GpuFound { device, product, memory_mib } = gpu;
    let (device, product, memory) = (text(device), text(product), int(*memory_mib)?);
    // One that has another memory is another one: what is on it must not be more.
    link.change(
        "UPDATE gpus SET product = $3, memory = greatest(held, $4), generation = generation + 1
         WHERE node = $1 AND device = $2 AND (product <> $3 OR memory <> $4)",
        &[&node, &device, &product, &memory],
    )?;
    // Not an upsert: that would use up a number each time.
    link.change(
        "INSERT INTO gpus (node, device, product, memory)
         SELECT $1::text, $2::text, $3::text, $4::bigint
         WHERE NOT EXISTS (SELECT 1 FROM gpus WHERE node = $1 AND device = $2)",
        &[&node, &device, &product, &memory],
    )?;
    Ok(())
}

/// Nothing new is put on GPUs that the node has no longer.
fn drain_lost(link: &mut Link, node: &str, gpus: &[GpuFound]) -> Result<(), StoreError> {
    let devices: Vec<_> = gpus.iter().map(|gpu| text(&gpu.device)).collect();
    link.change(
        "UPDATE gpus SET in_service = false, generation = generation + 1
         WHERE node = $1 AND in_service AND device <> ALL ($2)",
        &[&node, &devices],
    )?;
    Ok(())
}
