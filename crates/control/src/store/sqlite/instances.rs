//! Instances, their cGPUs and operations.

use std::collections::BTreeMap;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;
use weft_api::v1::{Event, EventKind, Mode, OperationKind, OperationState};

use super::add_audit;
use super::registry::project_of;
use crate::plan::Step;
use crate::store::shared::{
    EVENTS_MAX, KEY_LIFE_MS, SLOTS, Sum, by_gpu, charged, mode_of, parsed, word,
};
use crate::store::{
    Audit, CgpuRow, Effects, InstanceRow, Key, Marks, OperationRow, Part, Reservation, StoreError,
    Taken, Wanted,
};

/// Reserves GPUs and makes the instance.
pub(super) fn reserve(
    connection: &Connection,
    reservation: &Reservation,
) -> Result<InstanceRow, StoreError> {
    let Reservation { id, name, project, spec, operation, taken, key, audit } = reservation;
    let now_ms = audit.at_ms;
    if let Some(key) = key {
        let forget = now_ms.saturating_sub(KEY_LIFE_MS);
        connection.execute("DELETE FROM keys WHERE created_ms < ?", [forget])?;
        if let Some(instance) = repeated(connection, key)? {
            return Err(StoreError::Repeated(instance));
        }
        connection.execute(
            "INSERT INTO keys (owner, key, digest, instance, created_ms) VALUES (?, ?, ?, ?, ?)",
            (&key.owner, &key.key, key.digest.as_slice(), id, now_ms),
        )?;
    }
    charge(connection, project, taken)?;
    take(connection, taken)?;
    let slot = free_slot(connection)?;
    connection.execute(
        "INSERT INTO instances (id, name, project, wanted, spec, slot, operation, created_ms)
         VALUES (?, ?, ?, 1, ?, ?, ?, ?)",
        (id, name, project, serde_json::to_string(spec)?, slot, operation, now_ms),
    )?;
    let mut insert = connection.prepare_cached(
        "INSERT INTO cgpus (id, instance, project, ordinal, gpu, node, device, memory, exclusive,
                            weight, from_ms)
         SELECT ?1, ?2, ?3, ?4, id, node, device, ?6, ?7, ?8, ?9 FROM gpus WHERE id = ?5",
    )?;
    for (ordinal, one) in taken.iter().enumerate() {
        let is_exclusive = one.mode == Mode::Exclusive;
        let cgpu = format!("{id}-{ordinal}");
        let weight = spec.weight;
        insert.execute(params![
            cgpu,
            id,
            project,
            ordinal,
            one.gpu,
            one.memory_mib,
            is_exclusive,
            weight,
            now_ms
        ])?;
    }
    begin_operation(connection, operation, OperationKind::Create, id, project, now_ms)?;
    add_audit(connection, audit)?;
    find(connection, id)?.ok_or_else(|| StoreError::Broken("an instance is lost".to_owned()))
}

/// The instance of a request that was carried out before under this key.
pub(super) fn repeated(connection: &Connection, key: &Key) -> Result<Option<String>, StoreError> {
    let mut query = connection
        .prepare_cached("SELECT digest, instance FROM keys WHERE owner = ? AND key = ?")?;
    let found = query.query_row((&key.owner, &key.key), |row| {
        Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?))
    });
    match found.optional()? {
        Some((digest, instance)) if digest == key.digest => Ok(Some(instance)),
        Some(_) => Err(StoreError::KeyReused),
        None => Ok(None),
    }
}

/// The project has so much more, if its quota allows it.
fn charge(connection: &Connection, project: &str, taken: &[Taken]) -> Result<(), StoreError> {
    let found = project_of(connection, project)?;
    let (quota, used) = found.ok_or_else(|| StoreError::Missing(format!("project {project}")))?;
    let used = charged(&quota, &used, taken)?;
    connection.execute(
        "UPDATE projects SET used_cgpus = ?, used_memory = ?, used_exclusive = ? WHERE name = ?",
        (used.cgpus, used.memory_mib, used.exclusive_gpus, project),
    )?;
    Ok(())
}

/// Takes parts of GPUs that are still as they were decided on.
fn take(connection: &Connection, taken: &[Taken]) -> Result<(), StoreError> {
    let mut update = connection.prepare_cached(
        "UPDATE gpus SET held = held + ?2, cgpus = cgpus + ?3, exclusive = ?4,
                         generation = generation + 1
         WHERE id = ?1 AND generation = ?5 AND in_service = 1 AND exclusive = 0
           AND held + ?2 <= memory AND (NOT ?4 OR cgpus = 0)",
    )?;
    for (gpu, sum) in by_gpu(taken) {
        let Sum { memory_mib, cgpus, is_exclusive, generation } = sum;
        if update.execute((gpu, memory_mib, cgpus, is_exclusive, generation))? == 0 {
            return Err(StoreError::Changed);
        }
    }
    Ok(())
}

fn free_slot(connection: &Connection) -> Result<u64, StoreError> {
    let query = "SELECT coalesce(max(seq), 0) + 1 FROM instances";
    let mut slot: u64 = connection.query_row(query, [], |row| row.get(0))?;
    let mut used =
        connection.prepare_cached("SELECT 1 FROM instances WHERE slot = ? AND ended_ms IS NULL")?;
    while used.exists([slot % SLOTS])? {
        slot += 1;
    }
    Ok(slot % SLOTS)
}

fn begin_operation(
    connection: &Connection,
    id: &str,
    kind: OperationKind,
    instance: &str,
    project: &str,
    now_ms: u64,
) -> Result<(), StoreError> {
    connection.execute(
        "INSERT INTO operations (id, kind, instance, project, state, created_ms)
         VALUES (?, ?, ?, ?, ?, ?)",
        (id, word(&kind)?, instance, project, word(&OperationState::Running)?, now_ms),
    )?;
    Ok(())
}

fn end_operations(
    connection: &Connection,
    instance: &str,
    state: OperationState,
    failure: Option<&str>,
) -> Result<(), StoreError> {
    connection.execute(
        "UPDATE operations SET state = ?, failure = ? WHERE instance = ? AND state = ?",
        (word(&state)?, failure, instance, word(&OperationState::Running)?),
    )?;
    Ok(())
}

const INSTANCES: &str = "SELECT id, name, project, wanted, marks, spec, slot, found, failure,
    operation, created_ms, ready_ms, ended_ms, seq FROM instances";

/// A column with a JSON document.
fn document<T: DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let text: String = row.get(at)?;
    let wrong = |error| rusqlite::Error::FromSqlConversionFailure(at, Type::Text, Box::new(error));
    serde_json::from_str(&text).map_err(wrong)
}

fn instance_row(row: &Row<'_>) -> rusqlite::Result<(i64, InstanceRow)> {
    let is_wanted: bool = row.get(3)?;
    let instance = InstanceRow {
        id: row.get(0)?,
        name: row.get(1)?,
        project: row.get(2)?,
        wanted: if is_wanted { Wanted::Present } else { Wanted::Absent },
        marks: Marks(row.get(4)?),
        spec: document(row, 5)?,
        slot: row.get(6)?,
        generation: row.get(13)?,
        found: document(row, 7)?,
        failure: row.get(8)?,
        operation: row.get(9)?,
        created_ms: row.get(10)?,
        ready_ms: row.get(11)?,
        ended_ms: row.get(12)?,
    };
    Ok((row.get(13)?, instance))
}

/// An instance.
pub(super) fn find(connection: &Connection, id: &str) -> Result<Option<InstanceRow>, StoreError> {
    let mut query = connection.prepare_cached(&format!("{INSTANCES} WHERE id = ?"))?;
    let found = query.query_row([id], instance_row).optional()?;
    Ok(found.map(|(_, instance)| instance))
}

/// Instances that somebody may see.
pub(super) fn shown(
    connection: &Connection,
    part: &Part,
    after: i64,
) -> Result<Vec<(String, InstanceRow)>, StoreError> {
    let query = format!(
        "{INSTANCES} WHERE hidden = 0 AND seq > ?1 AND (?2 IS NULL OR project = ?2)
         ORDER BY seq LIMIT ?3"
    );
    let mut query = connection.prepare_cached(&query)?;
    let rows = query.query_map((after, &part.project, part.limit), instance_row)?;
    rows.map(|row| Ok(row?).map(|(seq, instance)| (seq.to_string(), instance))).collect()
}

const CGPUS: &str = "SELECT seq, id, instance, project, ordinal, gpu, node, device, memory,
    exclusive, weight, masked, token, from_ms, to_ms, used_ns FROM cgpus";

fn cgpu_row(row: &Row<'_>) -> rusqlite::Result<(i64, CgpuRow)> {
    let cgpu = CgpuRow {
        id: row.get(1)?,
        instance: row.get(2)?,
        project: row.get(3)?,
        ordinal: row.get(4)?,
        gpu: row.get(5)?,
        node: row.get(6)?,
        device: row.get(7)?,
        memory_mib: row.get(8)?,
        mode: mode_of(row.get(9)?),
        weight: row.get(10)?,
        masked: row.get(11)?,
        token: row.get(12)?,
        from_ms: row.get(13)?,
        to_ms: row.get(14)?,
        used_ns: row.get(15)?,
    };
    Ok((row.get(0)?, cgpu))
}

/// An instance's cGPUs.
pub(super) fn cgpus_of(
    connection: &Connection,
    instance: &str,
) -> Result<Vec<CgpuRow>, StoreError> {
    let query = format!("{CGPUS} WHERE instance = ? ORDER BY ordinal");
    let mut query = connection.prepare_cached(&query)?;
    let rows = query.query_map([instance], cgpu_row)?;
    rows.map(|row| Ok(row?.1)).collect()
}

/// cGPUs of which something holds.
pub(super) fn cgpus(
    connection: &Connection,
    part: &Part,
    after: i64,
    which: &str,
) -> Result<Vec<(String, CgpuRow)>, StoreError> {
    let query = format!(
        "{CGPUS} WHERE {which} AND seq > ?1 AND (?2 IS NULL OR project = ?2) ORDER BY seq LIMIT ?3"
    );
    let mut query = connection.prepare_cached(&query)?;
    let rows = query.query_map((after, &part.project, part.limit), cgpu_row)?;
    rows.map(|row| Ok(row?).map(|(seq, cgpu)| (seq.to_string(), cgpu))).collect()
}

/// The last cGPUs that anybody had, the newest first.
pub(super) fn newest(
    connection: &Connection,
    project: Option<&str>,
    limit: u32,
) -> Result<Vec<CgpuRow>, StoreError> {
    let query = format!("{CGPUS} WHERE (?1 IS NULL OR project = ?1) ORDER BY seq DESC LIMIT ?2");
    let mut query = connection.prepare_cached(&query)?;
    let rows = query.query_map((project, limit), cgpu_row)?;
    rows.map(|row| Ok(row?.1)).collect()
}

/// A step was done.
pub(super) fn mark(
    connection: &Connection,
    instance: &str,
    step: Step,
    effects: &Effects,
    event: &Event,
) -> Result<(), StoreError> {
    let Effects { masked, tokens, used_ns, found, ready_ms } = effects;
    let found = found.as_ref().map(serde_json::to_string).transpose()?;
    connection
        .prepare_cached(
            "UPDATE instances SET marks = marks | ?2, found = coalesce(?3, found),
                                  ready_ms = coalesce(?4, ready_ms) WHERE id = ?1",
        )?
        .execute((instance, step.bit(), found, ready_ms))?;
    let mut set = connection.prepare_cached("UPDATE cgpus SET masked = ? WHERE id = ?")?;
    for (cgpu, masked) in masked {
        set.execute((masked, cgpu))?;
    }
    let mut set = connection.prepare_cached("UPDATE cgpus SET token = ? WHERE id = ?")?;
    for (cgpu, token) in tokens {
        set.execute((token, cgpu))?;
    }
    keep_used(connection, used_ns)?;
    // What runs may be its removal by now.
    if ready_ms.is_some() && is_wanted(connection, instance)? {
        end_operations(connection, instance, OperationState::Succeeded, None)?;
    }
    tell(connection, instance, event)
}

/// Device time that cGPUs used.
pub(super) fn keep_used(
    connection: &Connection,
    used_ns: &[(String, u64)],
) -> Result<(), StoreError> {
    let mut set = connection.prepare_cached("UPDATE cgpus SET used_ns = ? WHERE id = ?")?;
    for (cgpu, used_ns) in used_ns {
        set.execute((i64::try_from(*used_ns).unwrap_or(i64::MAX), cgpu))?;
    }
    Ok(())
}

/// Whether an instance is still to be there.
fn is_wanted(connection: &Connection, instance: &str) -> Result<bool, StoreError> {
    let mut asked = connection.prepare_cached("SELECT wanted FROM instances WHERE id = ?")?;
    Ok(asked.query_row([instance], |row| row.get(0))?)
}

/// Something happened.
pub(super) fn tell(
    connection: &Connection,
    instance: &str,
    event: &Event,
) -> Result<(), StoreError> {
    let Event { at_ms, step, kind, took_us, detail } = event;
    connection
        .prepare_cached(
            "INSERT INTO events (operation, at_ms, step, kind, took_us, detail)
             SELECT operation, ?2, ?3, ?4, ?5, ?6 FROM instances WHERE id = ?1",
        )?
        .execute((instance, at_ms, step, word(kind)?, took_us, detail))?;
    Ok(())
}

/// An instance is to be removed from here on.
pub(super) fn renounce(
    connection: &Connection,
    instance: &str,
    failure: Option<&str>,
    audit: Option<&Audit>,
) -> Result<InstanceRow, StoreError> {
    let missing = || StoreError::Missing(format!("instance {instance}"));
    let found = find(connection, instance)?.ok_or_else(missing)?;
    if found.wanted == Wanted::Absent {
        return Ok(found);
    }
    connection.execute(
        "UPDATE instances SET wanted = 0, failure = ? WHERE id = ?",
        (failure, instance),
    )?;
    if let Some(audit) = audit {
        // What made it, if it still does, has come to nothing.
        let why = "it was terminated";
        end_operations(connection, instance, OperationState::Failed, Some(why))?;
        let operation = format!("{}-end", found.operation);
        let kind = OperationKind::Terminate;
        begin_operation(connection, &operation, kind, instance, &found.project, audit.at_ms)?;
        connection
            .execute("UPDATE instances SET operation = ? WHERE id = ?", (&operation, instance))?;
    }
    find(connection, instance)?.ok_or_else(missing)
}

/// Nothing of an instance is left. Repeated, it does nothing.
pub(super) fn release(
    connection: &Connection,
    instance: &str,
    now_ms: u64,
    event: &Event,
) -> Result<(), StoreError> {
    let Some(found) = find(connection, instance)? else {
        return Err(StoreError::Missing(format!("instance {instance}")));
    };
    if found.ended_ms.is_some() {
        return Ok(());
    }
    if found.wanted == Wanted::Present {
        return Err(StoreError::InUse(format!("instance {instance}")));
    }
    let cgpus = cgpus_of(connection, instance)?;
    let mut of_gpu: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    for cgpu in &cgpus {
        let sum = of_gpu.entry(cgpu.gpu).or_default();
        *sum = (sum.0 + cgpu.memory_mib, sum.1 + 1);
    }
    let mut update = connection.prepare_cached(
        "UPDATE gpus SET held = held - ?2, cgpus = cgpus - ?3, exclusive = 0,
                         generation = generation + 1 WHERE id = ?1",
    )?;
    for (gpu, (memory, count)) in of_gpu {
        update.execute((gpu, memory, count))?;
    }
    let exclusive = cgpus.iter().filter(|cgpu| cgpu.mode == Mode::Exclusive).count();
    let memory: u64 = cgpus.iter().map(|cgpu| cgpu.memory_mib).sum();
    connection
        .prepare_cached(
            "UPDATE projects SET used_cgpus = used_cgpus - ?2, used_memory = used_memory - ?3,
                                 used_exclusive = used_exclusive - ?4 WHERE name = ?1",
        )?
        .execute((&found.project, cgpus.len(), memory, exclusive))?;
    connection
        .prepare_cached("UPDATE cgpus SET to_ms = ?2, token = NULL WHERE instance = ?1")?
        .execute((instance, now_ms))?;
    connection
        .prepare_cached(
            "UPDATE instances SET ended_ms = ?2, marks = marks | ?3, hidden = ?4 WHERE id = ?1",
        )?
        .execute((instance, now_ms, Step::Release.bit(), found.failure.is_none()))?;
    tell(connection, instance, event)?;
    let state = match found.failure {
        None => OperationState::Succeeded,
        Some(_) => OperationState::Failed,
    };
    end_operations(connection, instance, state, found.failure.as_deref())
}

/// An operation and what happened.
pub(super) fn operation(
    connection: &Connection,
    id: &str,
) -> Result<Option<(OperationRow, Vec<Event>)>, StoreError> {
    let mut query = connection.prepare_cached(
        "SELECT kind, instance, project, state, created_ms, failure FROM operations WHERE id = ?",
    )?;
    let found = query.query_row([id], |row| {
        let (kind, state): (String, String) = (row.get(0)?, row.get(3)?);
        Ok((kind, row.get(1)?, row.get(2)?, state, row.get(4)?, row.get(5)?))
    });
    let Some((kind, instance, project, state, created_ms, failure)) = found.optional()? else {
        return Ok(None);
    };
    let (kind, state) = (parsed(&kind)?, parsed(&state)?);
    let id = id.to_owned();
    let row = OperationRow { id, kind, instance, project, state, created_ms, failure };
    let mut query = connection.prepare_cached(
        "SELECT at_ms, step, kind, took_us, detail FROM events WHERE operation = ?
         ORDER BY seq DESC LIMIT ?",
    )?;
    let rows = query.query_map((&row.id, EVENTS_MAX), |row| {
        let kind: String = row.get(2)?;
        Ok((row.get(0)?, row.get(1)?, kind, row.get(3)?, row.get(4)?))
    })?;
    let mut events = Vec::new();
    for columns in rows {
        let (at_ms, step, kind, took_us, detail) = columns?;
        let kind: EventKind = parsed(&kind)?;
        events.push(Event { at_ms, step, kind, took_us, detail });
    }
    events.reverse();
    Ok(Some((row, events)))
}
