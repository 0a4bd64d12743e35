//! Projects, tokens, nodes, GPUs and the audit; and the trait, row by row.

use rusqlite::{Connection, OptionalExtension, Row, params};
use weft_api::v1::{AuditEntry, Event, Project, Quota};

use super::{Sqlite, add_audit, counts, instances};
use crate::clock;
use crate::plan::Step;
use crate::store::shared::{mode_of, number, parsed, word};
use crate::store::{
    Audit, CgpuRow, Counts, Effects, GpuFound, GpuRow, InstanceRow, Key, NodeRow, OperationRow,
    Part, Reservation, Store, StoreError, Taken, Ticket, TokenRow,
};

type Rows<T> = Result<Vec<(String, T)>, StoreError>;

impl Store for Sqlite {
    fn check(&self) -> Result<(), StoreError> {
        let ticket = self.writer.begin(|connection| {
            connection.execute("UPDATE written SET at_ms = ?", [clock::now_ms()])?;
            Ok(())
        });
        ticket.wait()
    }

    fn plane(&self) -> &str {
        &self.plane
    }

    fn token(&self, digest: &[u8; 32]) -> Result<Option<TokenRow>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT name, project, role, created_ms FROM tokens WHERE digest = ?",
            )?;
            let found = query.query_row([digest.as_slice()], token_columns).optional()?;
            found.map(token_row).transpose()
        })
    }

    fn tokens(&self, part: &Part) -> Rows<TokenRow> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT name, project, role, created_ms FROM tokens
                 WHERE name > coalesce(?, '') ORDER BY name LIMIT ?",
            )?;
            let rows = query.query_map((&part.after, part.limit), token_columns)?;
            rows.map(|row| named(token_row(row?)?)).collect()
        })
    }

    fn add_token(
        &self,
        token: &TokenRow,
        digest: [u8; 32],
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (token, audit) = (token.clone(), audit.cloned());
        let ticket = self.writer.begin(move |connection| {
            if let Some(project) = &token.project {
                project_of(connection, project)?
                    .ok_or_else(|| StoreError::Missing(format!("project {project}")))?;
            }
            let added = connection.execute(
                "INSERT OR IGNORE INTO tokens (name, digest, project, role, created_ms)
                 VALUES (?, ?, ?, ?, ?)",
                (
                    &token.name,
                    digest.as_slice(),
                    &token.project,
                    word(&token.role)?,
                    token.created_ms,
                ),
            )?;
            if added == 0 {
                return Err(StoreError::Exists(format!("token {}", token.name)));
            }
            audit.iter().try_for_each(|audit| add_audit(connection, audit))
        });
        ticket.wait()
    }

    fn remove_token(&self, name: &str, audit: &Audit) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.clone());
        let ticket = self.writer.begin(move |connection| {
            let removed = connection.execute("DELETE FROM tokens WHERE name = ?", [&name])?;
            if removed == 0 {
                return Err(StoreError::Missing(format!("token {name}")));
            }
            add_audit(connection, &audit)
        });
        ticket.wait()
    }

    fn project(&self, name: &str) -> Result<Option<(Quota, Quota)>, StoreError> {
        self.read(|connection| project_of(connection, name))
    }

    fn projects(&self, part: &Part) -> Rows<Project> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT name, quota_cgpus, quota_memory, quota_exclusive,
                        used_cgpus, used_memory, used_exclusive
                 FROM projects WHERE name > coalesce(?, '') ORDER BY name LIMIT ?",
            )?;
            let rows = query.query_map((&part.after, part.limit), |row| {
                Ok(Project { name: row.get(0)?, quota: quota(row, 1)?, used: quota(row, 4)? })
            })?;
            rows.map(|row| Ok(row?).map(|row: Project| (row.name.clone(), row))).collect()
        })
    }

    fn put_project(
        &self,
        name: &str,
        quota: Quota,
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.cloned());
        let ticket = self.writer.begin(move |connection| {
            connection.execute(
                "INSERT INTO projects (name, quota_cgpus, quota_memory, quota_exclusive)
                 VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (name) DO UPDATE
                 SET quota_cgpus = ?2, quota_memory = ?3, quota_exclusive = ?4",
                (&name, quota.cgpus, quota.memory_mib, quota.exclusive_gpus),
            )?;
            audit.iter().try_for_each(|audit| add_audit(connection, audit))
        });
        ticket.wait()
    }

    fn node(&self, name: &str) -> Result<Option<NodeRow>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(&format!("{NODES} WHERE name = ?"))?;
            Ok(query.query_row([name], node_row).optional()?)
        })
    }

    fn nodes(&self, part: &Part) -> Rows<NodeRow> {
        self.read(|connection| {
            let query = format!("{NODES} WHERE name > coalesce(?, '') ORDER BY name LIMIT ?");
            let mut query = connection.prepare_cached(&query)?;
            let rows = query.query_map((&part.after, part.limit), node_row)?;
            rows.map(|row| Ok(row?).map(|row: NodeRow| (row.name.clone(), row))).collect()
        })
    }

    fn put_node(
        &self,
        node: &NodeRow,
        gpus: &[GpuFound],
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (node, gpus, audit) = (node.clone(), gpus.to_vec(), audit.cloned());
        let ticket = self.writer.begin(move |connection| {
            keep_node(connection, &node, &gpus)?;
            audit.iter().try_for_each(|audit| add_audit(connection, audit))
        });
        ticket.wait()
    }

    fn set_gateway(&self, node: &str, gateway: &str) -> Result<(), StoreError> {
        let (node, gateway) = (node.to_owned(), gateway.to_owned());
        let ticket = self.writer.begin(move |connection| {
            let change = "UPDATE nodes SET gateway = ? WHERE name = ? AND gateway_given = 0";
            connection.execute(change, [&gateway, &node])?;
            Ok(())
        });
        ticket.wait()
    }

    fn remove_node(&self, name: &str, audit: &Audit) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.clone());
        let ticket = self.writer.begin(move |connection| {
            let query = "SELECT coalesce(sum(cgpus), 0) FROM gpus WHERE node = ?";
            let held: u64 = connection.query_row(query, [&name], |row| row.get(0))?;
            if held > 0 {
                return Err(StoreError::InUse(format!("node {name}: {held} cGPUs of it")));
            }
            connection.execute("DELETE FROM gpus WHERE node = ?", [&name])?;
            if connection.execute("DELETE FROM nodes WHERE name = ?", [&name])? == 0 {
                return Err(StoreError::Missing(format!("node {name}")));
            }
            add_audit(connection, &audit)
        });
        ticket.wait()
    }

    fn gpu(&self, id: u32) -> Result<Option<GpuRow>, StoreError> {
        self.read(|connection| gpu_of(connection, id))
    }

    fn gpus(&self, part: &Part) -> Rows<GpuRow> {
        let after = number(part)?;
        self.read(|connection| {
            let query = format!("{GPUS} WHERE id > ? ORDER BY id LIMIT ?");
            let mut query = connection.prepare_cached(&query)?;
            let rows = query.query_map((after, part.limit), gpu_row)?;
            rows.map(|row| Ok(row?).map(|row: GpuRow| (row.id.to_string(), row))).collect()
        })
    }

    fn inventory(&self) -> Ticket<Vec<(NodeRow, Vec<GpuRow>)>> {
        self.writer.begin(|connection| {
            let mut query = connection.prepare_cached(&format!("{NODES} ORDER BY name"))?;
            let nodes: Vec<NodeRow> = query.query_map([], node_row)?.collect::<Result<_, _>>()?;
            let mut query =
                connection.prepare_cached(&format!("{GPUS} WHERE node = ? ORDER BY id"))?;
            let with_gpus = |node: NodeRow| {
                let gpus = query.query_map([&node.name], gpu_row)?.collect::<Result<_, _>>()?;
                Ok((node, gpus))
            };
            nodes.into_iter().map(with_gpus).collect()
        })
    }

    fn taken(&self) -> Ticket<Vec<Taken>> {
        self.writer.begin(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT instance, gpu, memory, exclusive FROM cgpus WHERE to_ms IS NULL
                 ORDER BY instance, ordinal",
            )?;
            let rows = query.query_map([], |row| {
                let (memory_mib, mode) = (row.get(2)?, mode_of(row.get(3)?));
                let (instance, gpu) = (row.get(0)?, row.get(1)?);
                Ok(Taken { instance, gpu, memory_mib, mode, generation: 0 })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn set_gpu(&self, id: u32, in_service: bool, audit: &Audit) -> Ticket<GpuRow> {
        let audit = audit.clone();
        self.writer.begin(move |connection| {
            connection.execute(
                "UPDATE gpus SET in_service = ?2, generation = generation + 1
                 WHERE id = ?1 AND in_service <> ?2",
                (id, in_service),
            )?;
            add_audit(connection, &audit)?;
            gpu_of(connection, id)?.ok_or_else(|| StoreError::Missing(format!("GPU {id}")))
        })
    }

    fn reserve(&self, reservation: Reservation) -> Ticket<InstanceRow> {
        self.writer.begin(move |connection| instances::reserve(connection, &reservation))
    }

    fn repeated(&self, key: &Key) -> Result<Option<String>, StoreError> {
        self.read(|connection| instances::repeated(connection, key))
    }

    fn instance(&self, id: &str) -> Result<Option<InstanceRow>, StoreError> {
        self.read(|connection| instances::find(connection, id))
    }

    fn instances(&self, part: &Part) -> Rows<InstanceRow> {
        let after = number(part)?;
        self.read(|connection| instances::shown(connection, part, after))
    }

    fn unsettled(&self) -> Result<Vec<String>, StoreError> {
        self.read(|connection| {
            ids(
                connection,
                "SELECT id FROM instances
                 WHERE ended_ms IS NULL AND (wanted = 0 OR ready_ms IS NULL) ORDER BY seq",
            )
        })
    }

    fn live(&self) -> Result<Vec<String>, StoreError> {
        self.read(|connection| {
            ids(connection, "SELECT id FROM instances WHERE ended_ms IS NULL ORDER BY seq")
        })
    }

    fn instance_cgpus(&self, instance: &str) -> Result<Vec<CgpuRow>, StoreError> {
        self.read(|connection| instances::cgpus_of(connection, instance))
    }

    fn cgpus(&self, part: &Part) -> Rows<CgpuRow> {
        let after = number(part)?;
        self.read(|connection| instances::cgpus(connection, part, after, "to_ms IS NULL"))
    }

    fn usage(&self, part: &Part) -> Rows<CgpuRow> {
        let after = number(part)?;
        self.read(|connection| instances::cgpus(connection, part, after, "true"))
    }

    fn newest_usage(&self, project: Option<&str>, limit: u32) -> Result<Vec<CgpuRow>, StoreError> {
        self.read(|connection| instances::newest(connection, project, limit))
    }

    fn mark(
        &self,
        instance: &str,
        step: Step,
        effects: &Effects,
        event: &Event,
    ) -> Result<(), StoreError> {
        let (instance, effects, event) = (instance.to_owned(), effects.clone(), event.clone());
        let ticket = self.writer.begin(move |connection| {
            instances::mark(connection, &instance, step, &effects, &event)
        });
        ticket.wait()
    }

    fn keep_used(&self, used_ns: &[(String, u64)]) -> Result<(), StoreError> {
        let used_ns = used_ns.to_vec();
        self.writer.begin(move |connection| instances::keep_used(connection, &used_ns)).wait()
    }

    fn tell(&self, instance: &str, event: &Event) -> Result<(), StoreError> {
        let (instance, event) = (instance.to_owned(), event.clone());
        self.writer.begin(move |connection| instances::tell(connection, &instance, &event)).wait()
    }

    fn renounce(
        &self,
        instance: &str,
        failure: Option<&str>,
        audit: Option<&Audit>,
    ) -> Result<InstanceRow, StoreError> {
        let (instance, audit) = (instance.to_owned(), audit.cloned());
        let failure = failure.map(str::to_owned);
        let ticket = self.writer.begin(move |connection| {
            audit.iter().try_for_each(|audit| add_audit(connection, audit))?;
            instances::renounce(connection, &instance, failure.as_deref(), audit.as_ref())
        });
        ticket.wait()
    }

    fn release(&self, instance: &str, now_ms: u64, event: &Event) -> Ticket<()> {
        let (instance, event) = (instance.to_owned(), event.clone());
        self.writer
            .begin(move |connection| instances::release(connection, &instance, now_ms, &event))
    }

    fn hide(&self, instance: &str, audit: &Audit) -> Result<(), StoreError> {
        let (instance, audit) = (instance.to_owned(), audit.clone());
        let ticket = self.writer.begin(move |connection| {
            connection.execute(
                "UPDATE instances SET hidden = 1 WHERE id = ? AND ended_ms IS NOT NULL",
                [&instance],
            )?;
            add_audit(connection, &audit)
        });
        ticket.wait()
    }

    fn operation(&self, id: &str) -> Result<Option<(OperationRow, Vec<Event>)>, StoreError> {
        self.read(|connection| instances::operation(connection, id))
    }

    fn note(&self, audit: &Audit) -> Result<(), StoreError> {
        let audit = audit.clone();
        self.writer.begin(move |connection| add_audit(connection, &audit)).wait()
    }

    fn audit(&self, part: &Part) -> Rows<AuditEntry> {
        let after = number(part)?;
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT id, at_ms, actor, project, action, target, status FROM audit
                 WHERE id > ? ORDER BY id LIMIT ?",
            )?;
            let rows = query.query_map((after, part.limit), audit_row)?;
            rows.map(|row| Ok(row?).map(|row: AuditEntry| (row.id.to_string(), row))).collect()
        })
    }

    fn newest_audit(&self, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT id, at_ms, actor, project, action, target, status FROM audit
                 ORDER BY id DESC LIMIT ?",
            )?;
            let rows = query.query_map([limit], audit_row)?;
            rows.map(|row| Ok(row?)).collect()
        })
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        self.read(counts)
    }
}

fn audit_row(row: &Row<'_>) -> rusqlite::Result<AuditEntry> {
    let (id, at_ms, actor, project) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
    let (action, target, status) = (row.get(4)?, row.get(5)?, row.get(6)?);
    Ok(AuditEntry { id, at_ms, actor, project, action, target, status })
}

const NODES: &str = "SELECT name, admin, gateway, host, created_ms,
    (SELECT count(*) FROM gpus WHERE node = nodes.name), identity, gateway_given FROM nodes";

const GPUS: &str = "SELECT id, node, device, product, memory, held, cgpus, exclusive, in_service,
    generation FROM gpus";

fn ids(connection: &Connection, query: &str) -> Result<Vec<String>, StoreError> {
    let mut query = connection.prepare_cached(query)?;
    Ok(query.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
}

fn named(token: TokenRow) -> Result<(String, TokenRow), StoreError> {
    Ok((token.name.clone(), token))
}

type TokenColumns = (String, Option<String>, String, u64);

fn token_columns(row: &Row<'_>) -> rusqlite::Result<TokenColumns> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

fn token_row((name, project, role, created_ms): TokenColumns) -> Result<TokenRow, StoreError> {
    Ok(TokenRow { name, project, role: parsed(&role)?, created_ms })
}

fn node_row(row: &Row<'_>) -> rusqlite::Result<NodeRow> {
    Ok(NodeRow {
        name: row.get(0)?,
        admin: row.get(1)?,
        gateway: row.get(2)?,
        host: row.get(3)?,
        created_ms: row.get(4)?,
        gpus: row.get(5)?,
        identity: row.get(6)?,
        gateway_given: row.get(7)?,
    })
}

fn gpu_row(row: &Row<'_>) -> rusqlite::Result<GpuRow> {
    Ok(GpuRow {
        id: row.get(0)?,
        node: row.get(1)?,
        found: GpuFound { device: row.get(2)?, product: row.get(3)?, memory_mib: row.get(4)? },
        held_mib: row.get(5)?,
        cgpus: row.get(6)?,
        exclusive: row.get(7)?,
        in_service: row.get(8)?,
        generation: row.get(9)?,
    })
}

fn gpu_of(connection: &Connection, id: u32) -> Result<Option<GpuRow>, StoreError> {
    let mut query = connection.prepare_cached(&format!("{GPUS} WHERE id = ?"))?;
    Ok(query.query_row([id], gpu_row).optional()?)
}

fn quota(row: &Row<'_>, at: usize) -> rusqlite::Result<Quota> {
    let (cgpus, memory_mib) = (row.get(at)?, row.get(at + 1)?);
    Ok(Quota { cgpus, memory_mib, exclusive_gpus: row.get(at + 2)? })
}

/// A project's quota and what it has.
pub(super) fn project_of(
    connection: &Connection,
    name: &str,
) -> Result<Option<(Quota, Quota)>, StoreError> {
    let mut query = connection.prepare_cached(
        "SELECT quota_cgpus, quota_memory, quota_exclusive, used_cgpus, used_memory,
                used_exclusive FROM projects WHERE name = ?",
    )?;
    let found = query.query_row([name], |row| Ok((quota(row, 0)?, quota(row, 3)?)));
    Ok(found.optional()?)
}

fn keep_node(connection: &Connection, node: &NodeRow, gpus: &[GpuFound]) -> Result<(), StoreError> {
    let query = "SELECT name FROM nodes WHERE identity = ? AND identity <> '' AND name <> ?";
    let same = connection.query_row(query, [&node.identity, &node.name], |row| row.get(0));
    if let Some::<String>(same) = same.optional()? {
        return Err(StoreError::Exists(format!("this node, as {same},")));
    }
    connection.execute(
        "INSERT INTO nodes (name, admin, gateway, host, created_ms, identity, gateway_given)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (name) DO UPDATE
         SET admin = ?2, gateway = ?3, host = ?4, identity = ?6, gateway_given = ?7",
        params![
            node.name,
            node.admin,
            node.gateway,
            node.host,
            node.created_ms,
            node.identity,
            node.gateway_given
        ],
    )?;
    for gpu in gpus {
        let GpuFound { device, product, memory_mib } = gpu;
        // One that has another memory is another one: what is on it must not be more.
        connection.execute(
            "INSERT INTO gpus (node, device, product, memory) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (node, device) DO UPDATE
             SET product = ?3, memory = max(held, ?4), generation = generation + 1
             WHERE product <> ?3 OR memory <> ?4",
            params![node.name, device, product, memory_mib],
        )?;
    }
    let mut known = connection.prepare_cached("SELECT device FROM gpus WHERE node = ?")?;
    let known: Vec<String> =
        known.query_map([&node.name], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for lost in known.iter().filter(|known| gpus.iter().all(|gpu| gpu.device != **known)) {
        connection.execute(
            "UPDATE gpus SET in_service = 0, generation = generation + 1
             WHERE node = ? AND device = ? AND in_service = 1",
            (&node.name, lost),
        )?;
    }
    Ok(())
}
