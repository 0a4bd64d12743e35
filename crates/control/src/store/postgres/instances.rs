//! Instances, their cGPUs and operations.

use std::collections::BTreeMap;

use postgres::Row;
use serde::de::DeserializeOwned;
use weft_api::v1::{Event, Mode, OperationKind, OperationState};

use super::add_audit;
use super::link::{Link, Parameters, at, at_or_none, int, int_or_none, text, text_or_none};
use super::registry::project_for_update;
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
    link: &mut Link,
    reservation: &Reservation,
) -> Result<InstanceRow, StoreError> {
    let Reservation { id, name, project, spec, operation, taken, key, audit } = reservation;
    let now_ms = audit.at_ms;
    if let Some(key) = key {
        keep_key(link, key, id, now_ms)?;
    }
    charge(link, project, taken)?;
    take(link, taken)?;
    let slot = free_slot(link)?;
    link.change(
        "INSERT INTO instances (id, name, project, wanted, spec, slot, operation, created_ms)
         VALUES ($1, $2, $3, true, $4, $5, $6, $7)",
        &[
            id,
            &text(name),
            project,
            &serde_json::to_string(spec)?,
            &int(slot)?,
            operation,
            &int(now_ms)?,
        ],
    )?;
    for (ordinal, one) in taken.iter().enumerate() {
        link.change(
            "INSERT INTO cgpus (id, instance, project, ordinal, gpu, node, device, memory,
                                exclusive, weight, from_ms)
             SELECT $1::text, $2::text, $3::text, $4::bigint, id, node, device, $6::bigint,
                    $7::boolean, $8::bigint, $9::bigint FROM gpus WHERE id = $5",
            &[
                &format!("{id}-{ordinal}"),
                id,
                project,
                &int(ordinal)?,
                &i64::from(one.gpu),
                &int(one.memory_mib)?,
                &(one.mode == Mode::Exclusive),
                &i64::from(spec.weight),
                &int(now_ms)?,
            ],
        )?;
    }
    begin_operation(link, operation, OperationKind::Create, id, project, now_ms)?;
    add_audit(link, audit)?;
    find(link, id)?.ok_or_else(|| StoreError::Broken("an instance is lost".to_owned()))
}

/// The request has this key from here on, if it was not carried out before.
fn keep_key(link: &mut Link, key: &Key, instance: &str, now_ms: u64) -> Result<(), StoreError> {
    let forget = now_ms.saturating_sub(KEY_LIFE_MS);
    link.change("DELETE FROM keys WHERE created_ms < $1", &[&int(forget)?])?;
    if let Some(instance) = repeated(link, key)? {
        return Err(StoreError::Repeated(instance));
    }
    link.change(
        "INSERT INTO keys (owner, key, digest, instance, created_ms) VALUES ($1, $2, $3, $4, $5)",
        &[&text(&key.owner), &text(&key.key), &key.digest.as_slice(), &instance, &int(now_ms)?],
    )?;
    Ok(())
}

/// The instance of a request that was carried out before under this key.
pub(super) fn repeated(link: &mut Link, key: &Key) -> Result<Option<String>, StoreError> {
    let row = link.one(
        "SELECT digest, instance FROM keys WHERE owner = $1 AND key = $2",
        &[&text(&key.owner), &text(&key.key)],
    )?;
    let Some(row) = row else { return Ok(None) };
    let digest: Vec<u8> = row.try_get(0)?;
    if digest == key.digest { Ok(Some(row.try_get(1)?)) } else { Err(StoreError::KeyReused) }
}

/// The project has so much more, if its quota allows it.
fn charge(link: &mut Link, project: &str, taken: &[Taken]) -> Result<(), StoreError> {
    let found = project_for_update(link, project)?;
    let (quota, used) = found.ok_or_else(|| StoreError::Missing(format!("project {project}")))?;
    let used = charged(&quota, &used, taken)?;
    link.change(
        "UPDATE projects SET used_cgpus = $2, used_memory = $3, used_exclusive = $4
         WHERE name = $1",
        &[&project, &int(used.cgpus)?, &int(used.memory_mib)?, &int(used.exclusive_gpus)?],
    )?;
    Ok(())
}

/// Takes parts of GPUs that are still as they were decided on.
fn take(link: &mut Link, taken: &[Taken]) -> Result<(), StoreError> {
    for (gpu, sum) in by_gpu(taken) {
        let Sum { memory_mib, cgpus, is_exclusive, generation } = sum;
        let changed = link.change(
            "UPDATE gpus SET held = held + $2, cgpus = cgpus + $3, exclusive = $4,
                             generation = generation + 1
             WHERE id = $1 AND generation = $5 AND in_service AND NOT exclusive
               AND held + $2 <= memory AND (NOT $4 OR cgpus = 0)",
            &[
                &i64::from(gpu),
                &int(memory_mib)?,
                &i64::from(cgpus),
                &is_exclusive,
                &int(generation)?,
            ],
        )?;
        if changed == 0 {
            return Err(StoreError::Changed);
        }
    }
    Ok(())
}

fn free_slot(link: &mut Link) -> Result<u64, StoreError> {
    let row = link.one("SELECT coalesce(max(seq), 0) + 1 FROM instances", &[])?;
    let mut slot: u64 = row.map_or(Ok(1), |row| at(&row, 0))?;
    let used = "SELECT 1 FROM instances WHERE slot = $1 AND ended_ms IS NULL";
    while link.one(used, &[&int(slot % SLOTS)?])?.is_some() {
        slot += 1;
    }
    Ok(slot % SLOTS)
}

fn begin_operation(
    link: &mut Link,
    id: &str,
    kind: OperationKind,
    instance: &str,
    project: &str,
    now_ms: u64,
) -> Result<(), StoreError> {
    link.change(
        "INSERT INTO operations (id, kind, instance, project, state, created_ms)
         VALUES ($1, $2, $3, $4, $5, $6)",
        &[&id, &word(&kind)?, &instance, &project, &word(&OperationState::Running)?, &int(now_ms)?],
    )?;
    Ok(())
}

fn end_operations(
    link: &mut Link,
    instance: &str,
    state: OperationState,
    failure: Option<&str>,
) -> Result<(), StoreError> {
    link.change(
        "UPDATE operations SET state = $2, failure = $3 WHERE instance = $1 AND state = $4",
        &[&instance, &word(&state)?, &text_or_none(failure), &word(&OperationState::Running)?],
    )?;
    Ok(())
}

/// A query of instances.
macro_rules! instances {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, project, wanted, marks, spec, slot, found, failure, operation,
                    created_ms, ready_ms, ended_ms, seq FROM instances ",
            $rest
        )
    };
}

/// A column with a JSON document.
fn document<T: DeserializeOwned>(row: &Row, column: usize) -> Result<T, StoreError> {
    let text: &str = row.try_get(column)?;
    Ok(serde_json::from_str(text)?)
}

fn instance_row(row: &Row) -> Result<InstanceRow, StoreError> {
    let is_wanted: bool = row.try_get(3)?;
    Ok(InstanceRow {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        project: row.try_get(2)?,
        wanted: if is_wanted { Wanted::Present } else { Wanted::Absent },
        marks: Marks(at(row, 4)?),
        spec: document(row, 5)?,
        slot: at(row, 6)?,
        generation: at(row, 13)?,
        found: document(row, 7)?,
        failure: row.try_get(8)?,
        operation: row.try_get(9)?,
        created_ms: at(row, 10)?,
        ready_ms: at_or_none(row, 11)?,
        ended_ms: at_or_none(row, 12)?,
    })
}

/// An instance.
pub(super) fn find(link: &mut Link, id: &str) -> Result<Option<InstanceRow>, StoreError> {
    let row = link.one(instances!("WHERE id = $1"), &[&text(id)])?;
    row.map(|row| instance_row(&row)).transpose()
}

/// Instances that somebody may see.
pub(super) fn shown(
    link: &mut Link,
    part: &Part,
    after: i64,
) -> Result<Vec<(String, InstanceRow)>, StoreError> {
    let rows = link.all(
        instances!(
            "WHERE NOT hidden AND seq > $1 AND ($2::text IS NULL OR project = $2)
             ORDER BY seq LIMIT $3"
        ),
        &[&after, &text_or_none(part.project.as_deref()), &i64::from(part.limit)],
    )?;
    let with_cursor = |row| {
        let instance = instance_row(row)?;
        Ok((instance.generation.to_string(), instance))
    };
    rows.iter().map(with_cursor).collect()
}

/// A query of cGPUs.
macro_rules! cgpus {
    ($rest:literal) => {
        concat!(
            "SELECT seq, id, instance, project, ordinal, gpu, node, device, memory, exclusive,
                    weight, masked, token, from_ms, to_ms, used_ns FROM cgpus ",
            $rest
        )
    };
}

fn cgpu_row(row: &Row) -> Result<CgpuRow, StoreError> {
    Ok(CgpuRow {
        id: row.try_get(1)?,
        instance: row.try_get(2)?,
        project: row.try_get(3)?,
        ordinal: at(row, 4)?,
        gpu: at(row, 5)?,
        node: row.try_get(6)?,
        device: row.try_get(7)?,
        memory_mib: at(row, 8)?,
        mode: mode_of(row.try_get(9)?),
        weight: at(row, 10)?,
        masked: row.try_get(11)?,
        token: row.try_get(12)?,
        from_ms: at(row, 13)?,
        to_ms: at_or_none(row, 14)?,
        used_ns: at_or_none(row, 15)?,
    })
}

/// An instance's cGPUs.
pub(super) fn cgpus_of(link: &mut Link, instance: &str) -> Result<Vec<CgpuRow>, StoreError> {
    let rows = link.all(cgpus!("WHERE instance = $1 ORDER BY ordinal"), &[&text(instance)])?;
    rows.iter().map(cgpu_row).collect()
}

/// Which cGPUs are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that somebody has.
    Live,
    /// Those that anybody ever had.
    All,
}

/// cGPUs with their cursors.
pub(super) fn cgpus(
    link: &mut Link,
    part: &Part,
    after: i64,
    which: Which,
) -> Result<Vec<(String, CgpuRow)>, StoreError> {
    let project = text_or_none(part.project.as_deref());
    let limit = i64::from(part.limit);
    let parameters: Parameters<'_> = &[&after, &project, &limit];
    let rows = match which {
        Which::Live => link.all(
            cgpus!(
                "WHERE to_ms IS NULL AND seq > $1 AND ($2::text IS NULL OR project = $2)
                 ORDER BY seq LIMIT $3"
            ),
            parameters,
        ),
        Which::All => link.all(
            cgpus!("WHERE seq > $1 AND ($2::text IS NULL OR project = $2) ORDER BY seq LIMIT $3"),
            parameters,
        ),
    }?;
    let with_cursor = |row| Ok((at::<i64>(row, 0)?.to_string(), cgpu_row(row)?));
    rows.iter().map(with_cursor).collect()
}

/// The last cGPUs that anybody had, the newest first.
pub(super) fn newest(
    link: &mut Link,
    project: Option<&str>,
    limit: u32,
) -> Result<Vec<CgpuRow>, StoreError> {
    let rows = link.all(
        cgpus!("WHERE ($1::text IS NULL OR project = $1) ORDER BY seq DESC LIMIT $2"),
        &[&text_or_none(project), &i64::from(limit)],
    )?;
    rows.iter().map(cgpu_row).collect()
}

/// A step was done.
pub(super) fn mark(
    link: &mut Link,
    instance: &str,
    step: Step,
    effects: &Effects,
    event: &Event,
) -> Result<(), StoreError> {
    let Effects { masked, tokens, used_ns, found, ready_ms } = effects;
    let found = found.as_ref().map(serde_json::to_string).transpose()?;
    link.change(
        "UPDATE instances SET marks = marks | $2, found = coalesce($3, found),
                              ready_ms = coalesce($4, ready_ms) WHERE id = $1",
        &[&instance, &i64::from(step.bit()), &found, &int_or_none(*ready_ms)?],
    )?;
    for (cgpu, masked) in masked {
        link.change("UPDATE cgpus SET masked = $2 WHERE id = $1", &[cgpu, &text(masked)])?;
    }
    for (cgpu, token) in tokens {
        link.change("UPDATE cgpus SET token = $2 WHERE id = $1", &[cgpu, &text(token)])?;
    }
    keep_used(link, used_ns)?;
    // What runs may be its removal by now.
    if ready_ms.is_some() && is_wanted(link, instance)? {
        end_operations(link, instance, OperationState::Succeeded, None)?;
    }
    tell(link, instance, event)
}

/// Device time that cGPUs used.
pub(super) fn keep_used(link: &mut Link, used_ns: &[(String, u64)]) -> Result<(), StoreError> {
    for (cgpu, used_ns) in used_ns {
        let used_ns = i64::try_from(*used_ns).unwrap_or(i64::MAX);
        link.change("UPDATE cgpus SET used_ns = $2 WHERE id = $1", &[cgpu, &used_ns])?;
    }
    Ok(())
}

/// Whether an instance is still to be there.
fn is_wanted(link: &mut Link, instance: &str) -> Result<bool, StoreError> {
    let row = link.one("SELECT wanted FROM instances WHERE id = $1", &[&instance])?;
    let row = row.ok_or_else(|| StoreError::Missing(format!("instance {instance}")))?;
    Ok(row.try_get(0)?)
}

/// Something happened.
pub(super) fn tell(link: &mut Link, instance: &str, event: &Event) -> Result<(), StoreError> {
    let Event { at_ms, step, kind, took_us, detail } = event;
    link.change(
        "INSERT INTO events (operation, at_ms, step, kind, took_us, detail)
         SELECT operation, $2::bigint, $3::text, $4::text, $5::bigint, $6::text
         FROM instances WHERE id = $1",
        &[
            &instance,
            &int(*at_ms)?,
            step,
            &word(kind)?,
            &int(*took_us)?,
            &text_or_none(detail.as_deref()),
        ],
    )?;
    Ok(())
}

/// An instance is to be removed from here on.
pub(super) fn renounce(
    link: &mut Link,
    instance: &str,
    failure: Option<&str>,
    audit: Option<&Audit>,
) -> Result<InstanceRow, StoreError> {
    let missing = || StoreError::Missing(format!("instance {instance}"));
    let found = find(link, instance)?.ok_or_else(missing)?;
    if found.wanted == Wanted::Absent {
        return Ok(found);
    }
    link.change(
        "UPDATE instances SET wanted = false, failure = $2 WHERE id = $1",
        &[&instance, &text_or_none(failure)],
    )?;
    if let Some(audit) = audit {
        // What made it, if it still does, has come to nothing.
        let why = "it was terminated";
        end_operations(link, instance, OperationState::Failed, Some(why))?;
        let operation = format!("{}-end", found.operation);
        let kind = OperationKind::Terminate;
        begin_operation(link, &operation, kind, instance, &found.project, audit.at_ms)?;
        link.change("UPDATE instances SET operation = $2 WHERE id = $1", &[&instance, &operation])?;
    }
    find(link, instance)?.ok_or_else(missing)
}

/// Nothing of an instance is left. Repeated, it does nothing.
pub(super) fn release(
    link: &mut Link,
    instance: &str,
    now_ms: u64,
    event: &Event,
) -> Result<(), StoreError> {
    let Some(found) = find(link, instance)? else {
        return Err(StoreError::Missing(format!("instance {instance}")));
    };
    if found.ended_ms.is_some() {
        return Ok(());
    }
    if found.wanted == Wanted::Present {
        return Err(StoreError::InUse(format!("instance {instance}")));
    }
    give_back(link, instance, &found.project)?;
    link.change(
        "UPDATE cgpus SET to_ms = $2, token = NULL WHERE instance = $1",
        &[&instance, &int(now_ms)?],
    )?;
    link.change(
        "UPDATE instances SET ended_ms = $2, marks = marks | $3, hidden = $4 WHERE id = $1",
        &[&instance, &int(now_ms)?, &i64::from(Step::Release.bit()), &found.failure.is_none()],
    )?;
    tell(link, instance, event)?;
    let state = match found.failure {
        None => OperationState::Succeeded,
        Some(_) => OperationState::Failed,
    };
    end_operations(link, instance, state, found.failure.as_deref())
}

/// GPUs and the project's account are without what an instance has.
fn give_back(link: &mut Link, instance: &str, project: &str) -> Result<(), StoreError> {
    let cgpus = cgpus_of(link, instance)?;
    let mut of_gpu: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    for cgpu in &cgpus {
        let sum = of_gpu.entry(cgpu.gpu).or_default();
        *sum = (sum.0 + cgpu.memory_mib, sum.1 + 1);
    }
    for (gpu, (memory, count)) in of_gpu {
        link.change(
            "UPDATE gpus SET held = held - $2, cgpus = cgpus - $3, exclusive = false,
                             generation = generation + 1 WHERE id = $1",
            &[&i64::from(gpu), &int(memory)?, &i64::from(count)],
        )?;
    }
    let exclusive = cgpus.iter().filter(|cgpu| cgpu.mode == Mode::Exclusive).count();
    let memory: u64 = cgpus.iter().map(|cgpu| cgpu.memory_mib).sum();
    link.change(
        "UPDATE projects SET used_cgpus = used_cgpus - $2, used_memory = used_memory - $3,
                             used_exclusive = used_exclusive - $4 WHERE name = $1",
        &[&project, &int(cgpus.len())?, &int(memory)?, &int(exclusive)?],
    )?;
    Ok(())
}

/// An operation and what happened.
pub(super) fn operation(
    link: &mut Link,
    id: &str,
) -> Result<Option<(OperationRow, Vec<Event>)>, StoreError> {
    let row = link.one(
        "SELECT kind, instance, project, state, created_ms, failure FROM operations
         WHERE id = $1",
        &[&text(id)],
    )?;
    let Some(row) = row else { return Ok(None) };
    let found = OperationRow {
        id: id.to_owned(),
        kind: parsed(row.try_get(0)?)?,
        instance: row.try_get(1)?,
        project: row.try_get(2)?,
        state: parsed(row.try_get(3)?)?,
        created_ms: at(&row, 4)?,
        failure: row.try_get(5)?,
    };
    let rows = link.all(
        "SELECT at_ms, step, kind, took_us, detail FROM events WHERE operation = $1
         ORDER BY seq DESC LIMIT $2",
        &[&text(id), &i64::from(EVENTS_MAX)],
    )?;
    let event = |row: &Row| {
        Ok(Event {
            at_ms: at(row, 0)?,
            step: row.try_get(1)?,
            kind: parsed(row.try_get(2)?)?,
            took_us: at(row, 3)?,
            detail: row.try_get(4)?,
        })
    };
    let events: Result<Vec<Event>, StoreError> = rows.iter().rev().map(event).collect();
    Ok(Some((found, events?)))
}
