//! Instances, their cGPUs and operations.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use weft_api::v1::{Event, EventKind, Mode, OperationKind, OperationState, Quota};

use super::registry::{add_audit, project_of, set_used};
use super::{Link, Row, Value, int, int_or_none};
use crate::plan::Step;
use crate::store::shared::{
    DAY_MS, EVENTS_MAX, KEY_LIFE_MS, RETRIES_MAX, SLOTS, Sum, by_gpu, charged, demand,
    ensure_launches, mode_of, parsed, with, without, word,
};
use crate::store::{
    Audit, CgpuRow, Done, Effects, InstanceRow, Key, Marks, OperationRow, Part, Reservation, Spec,
    StoreError, TERMINATED, Taken, Wanted,
};

/// Reserves GPUs and makes the instance.
pub(super) fn reserve(
    link: &mut impl Link,
    reservation: &Reservation,
) -> Result<InstanceRow, StoreError> {
    let made = reserve_all(link, std::slice::from_ref(reservation))?;
    made.into_iter().next().ok_or_else(lost)
}

/// Reserves GPUs for the instances of one request, and makes them. What fails is undone with all
/// that came before it, by the savepoint that it is written in.
pub(super) fn reserve_all(
    link: &mut impl Link,
    wanted: &[Reservation],
) -> Result<Vec<InstanceRow>, StoreError> {
    let Some(Reservation { project, key, launches_per_day, audit, .. }) = wanted.first() else {
        return Ok(Vec::new());
    };
    if let Some(key) = key {
        let ids: Vec<&str> = wanted.iter().map(|one| one.id.as_str()).collect();
        keep_key(link, key, &ids, audit.at_ms)?;
    }
    let sum = wanted.iter().fold(Quota::default(), |sum, one| with(&sum, &demanded(one)));
    charge(link, project, &sum)?;
    if let Some(most) = launches_per_day {
        count_launches(link, project, audit.at_ms, wanted.len() as u64, *most)?;
    }
    take(link, wanted.iter().flat_map(|one| &one.taken))?;
    wanted.iter().map(|one| make(link, one)).collect()
}

fn demanded(reservation: &Reservation) -> Quota {
    let taken = &reservation.taken;
    let memory_mib = taken.iter().map(|one| one.memory_mib).sum();
    demand(&reservation.spec, taken.len() as u64, memory_mib)
}

fn lost() -> StoreError {
    StoreError::Broken("an instance is lost".to_owned())
}

/// Makes an instance whose GPUs are taken.
fn make(link: &mut impl Link, reservation: &Reservation) -> Result<InstanceRow, StoreError> {
    let Reservation { id, name, project, spec, operation, taken, audit, .. } = reservation;
    let now_ms = audit.at_ms;
    let slot = free_slot(link)?;
    link.change(
        "INSERT INTO instances (id, name, project, wanted, spec, slot, operation, created_ms)
         VALUES ($1, $2, $3, true, $4, $5, $6, $7)",
        &[
            id.into(),
            name.into(),
            project.into(),
            serde_json::to_string(spec)?.into(),
            int(slot)?.into(),
            operation.into(),
            int(now_ms)?.into(),
        ],
    )?;
    for (ordinal, one) in taken.iter().enumerate() {
        link.change(
            "INSERT INTO cgpus (id, instance, project, ordinal, gpu, node, device, memory,
                                exclusive, weight, from_ms)
             SELECT CAST($1 AS text), CAST($2 AS text), CAST($3 AS text), CAST($4 AS bigint), id,
                    node, device, CAST($6 AS bigint), CAST($7 AS boolean), CAST($8 AS bigint),
                    CAST($9 AS bigint) FROM gpus WHERE id = $5",
            &[
                format!("{id}-{ordinal}").into(),
                id.into(),
                project.into(),
                int(ordinal)?.into(),
                one.gpu.into(),
                int(one.memory_mib)?.into(),
                (one.mode == Mode::Exclusive).into(),
                spec.weight.into(),
                int(now_ms)?.into(),
            ],
        )?;
    }
    begin_operation(link, operation, OperationKind::Create, id, project, now_ms)?;
    add_audit(link, audit)?;
    find(link, id)?.ok_or_else(lost)
}

/// What stands between ids of instances, which are words.
const BETWEEN_IDS: &str = " ";

/// The request has this key from here on, if it was not carried out before.
fn keep_key(
    link: &mut impl Link,
    key: &Key,
    instances: &[&str],
    now_ms: u64,
) -> Result<(), StoreError> {
    let forget = int(now_ms.saturating_sub(KEY_LIFE_MS))?;
    link.change("DELETE FROM keys WHERE created_ms < $1", &[forget.into()])?;
    let before = repeated(link, key, now_ms)?;
    if !before.is_empty() {
        return Err(StoreError::Repeated(before));
    }
    link.change(
        "INSERT INTO keys (owner, key, digest, instance, created_ms) VALUES ($1, $2, $3, $4, $5)",
        &[
            (&key.owner).into(),
            (&key.key).into(),
            Value::Bytes(&key.digest),
            instances.join(BETWEEN_IDS).into(),
            int(now_ms)?.into(),
        ],
    )?;
    Ok(())
}

/// The instances of a request that was carried out under this key, less than a day ago.
pub(super) fn repeated(
    link: &mut impl Link,
    key: &Key,
    now_ms: u64,
) -> Result<Vec<String>, StoreError> {
    let row = link.one(
        "SELECT digest, instance FROM keys WHERE owner = $1 AND key = $2 AND created_ms >= $3",
        &[(&key.owner).into(), (&key.key).into(), int(now_ms.saturating_sub(KEY_LIFE_MS))?.into()],
    )?;
    let Some(row) = row else { return Ok(Vec::new()) };
    if row.bytes(0)? != key.digest {
        return Err(StoreError::KeyReused);
    }
    Ok(row.text(1)?.split(BETWEEN_IDS).map(str::to_owned).collect())
}

/// The project has so much more, if its quota allows it.
fn charge(link: &mut impl Link, project: &str, more: &Quota) -> Result<(), StoreError> {
    let found = project_of(link, project)?;
    let (quota, used) = found.ok_or_else(|| StoreError::Missing(format!("project {project}")))?;
    set_used(link, project, &charged(project, &quota, &used, more)?)
}

/// So many more instances that the project makes on that day, if it may make so many.
fn count_launches(
    link: &mut impl Link,
    project: &str,
    now_ms: u64,
    more: u64,
    most: u32,
) -> Result<(), StoreError> {
    let row = link.one(
        "UPDATE projects
         SET launches = CASE WHEN launch_day - CAST($2 AS bigint) BETWEEN 0 AND CAST($4 AS bigint)
                             THEN launches + CAST($3 AS bigint) ELSE CAST($3 AS bigint) END,
             launch_day = CASE WHEN launch_day - CAST($2 AS bigint) BETWEEN 0 AND CAST($4 AS bigint)
                               THEN launch_day ELSE CAST($2 AS bigint) END
         WHERE name = $1 RETURNING launches",
        &[
            project.into(),
            int(now_ms / DAY_MS)?.into(),
            int(more)?.into(),
            days_ahead(now_ms).into(),
        ],
    )?;
    let with_them: u64 = row.map_or(Ok(more), |row| row.int(0))?;
    ensure_launches(project, with_them.saturating_sub(more), more, most)
}

/// By how many days what was counted may be ahead: another request may have been just in the next
/// one. What a clock counted that was ahead of the world is not gone on with.
fn days_ahead(now_ms: u64) -> u32 {
    (now_ms % DAY_MS >= DAY_MS - MIDNIGHT_MS).into()
}

/// So long before midnight another one's clock may have the next day.
const MIDNIGHT_MS: u64 = 5 * 60_000;

/// How many instances a project has made on that day.
pub(super) fn launches(
    link: &mut impl Link,
    project: &str,
    now_ms: u64,
) -> Result<u64, StoreError> {
    let row = link.one(
        "SELECT launches FROM projects
         WHERE name = $1 AND launch_day - CAST($2 AS bigint) BETWEEN 0 AND CAST($3 AS bigint)",
        &[project.into(), int(now_ms / DAY_MS)?.into(), days_ahead(now_ms).into()],
    )?;
    row.map_or(Ok(0), |row| row.int(0))
}

/// The project has its instance's part of the quota back, if it did not before; whether that is so.
fn uncharge(
    link: &mut impl Link,
    found: &InstanceRow,
    cgpus: &[CgpuRow],
) -> Result<bool, StoreError> {
    let changed = link.change(
        "UPDATE instances SET uncharged = true WHERE id = $1 AND NOT uncharged",
        &[(&found.id).into()],
    )?;
    if changed == 0 {
        return Ok(false);
    }
    let memory_mib = cgpus.iter().map(|cgpu| cgpu.memory_mib).sum();
    let less = demand(&found.spec, cgpus.len() as u64, memory_mib);
    let missing = || StoreError::Missing(format!("project {}", found.project));
    let (_, used) = project_of(link, &found.project)?.ok_or_else(missing)?;
    set_used(link, &found.project, &without(&used, &less))?;
    Ok(true)
}

/// What cannot be removed now does not count for its project any longer. Its GPUs stay taken.
pub(super) fn give_quota_back(
    link: &mut impl Link,
    instance: &str,
    event: &Event,
) -> Result<(), StoreError> {
    let found = find(link, instance)?.filter(|found| found.wanted == Wanted::Absent);
    let Some(found) = found.filter(|found| found.ended_ms.is_none()) else { return Ok(()) };
    let cgpus = cgpus_of(link, instance)?;
    if uncharge(link, &found, &cgpus)? { tell(link, instance, event) } else { Ok(()) }
}

/// Counts anew what every project has: a replica of an earlier version, which knows neither
/// weights nor whose quota was given back, may have written meanwhile.
pub(super) fn recount(link: &mut impl Link) -> Result<(), StoreError> {
    let mut used: BTreeMap<String, Quota> = BTreeMap::new();
    for row in link.all("SELECT name FROM projects", &[])? {
        used.insert(row.text(0)?, Quota::default());
    }
    let rows = link.all(
        "SELECT instances.project, instances.spec, count(*), CAST(sum(memory) AS bigint)
         FROM instances JOIN cgpus ON cgpus.instance = instances.id
         WHERE ended_ms IS NULL AND NOT uncharged GROUP BY instances.seq",
        &[],
    )?;
    for row in &rows {
        let spec: Spec = document(row, 1)?;
        let of_project = used.entry(row.text(0)?).or_default();
        *of_project = with(of_project, &demand(&spec, row.int(2)?, row.int(3)?));
    }
    used.iter().try_for_each(|(project, used)| set_used(link, project, used))
}

/// Takes parts of GPUs that are still as they were decided on.
fn take<'a>(
    link: &mut impl Link,
    taken: impl Iterator<Item = &'a Taken>,
) -> Result<(), StoreError> {
    for (gpu, sum) in by_gpu(taken) {
        let Sum { memory_mib, cgpus, is_exclusive, generation } = sum;
        let changed = link.change(
            "UPDATE gpus SET held = held + $2, cgpus = cgpus + $3, exclusive = $4,
                             generation = generation + 1
             WHERE id = $1 AND generation = $5 AND in_service AND lost_ms IS NULL
               AND NOT exclusive
               AND held + $2 <= memory AND (NOT $4 OR cgpus = 0)",
            &[
                gpu.into(),
                int(memory_mib)?.into(),
                cgpus.into(),
                is_exclusive.into(),
                int(generation)?.into(),
            ],
        )?;
        if changed == 0 {
            return Err(StoreError::Changed);
        }
    }
    Ok(())
}

fn free_slot(link: &mut impl Link) -> Result<u64, StoreError> {
    let row = link.one("SELECT coalesce(max(seq), 0) + 1 FROM instances", &[])?;
    let mut slot: u64 = row.map_or(Ok(1), |row| row.int(0))?;
    let used = "SELECT 1 FROM instances WHERE slot = $1 AND ended_ms IS NULL";
    while link.one(used, &[int(slot % SLOTS)?.into()])?.is_some() {
        slot += 1;
    }
    Ok(slot % SLOTS)
}

fn begin_operation(
    link: &mut impl Link,
    id: &str,
    kind: OperationKind,
    instance: &str,
    project: &str,
    now_ms: u64,
) -> Result<(), StoreError> {
    link.change(
        "INSERT INTO operations (id, kind, instance, project, state, created_ms)
         VALUES ($1, $2, $3, $4, $5, $6)",
        &[
            id.into(),
            word(&kind)?.into(),
            instance.into(),
            project.into(),
            word(&OperationState::Running)?.into(),
            int(now_ms)?.into(),
        ],
    )?;
    Ok(())
}

fn end_operations(
    link: &mut impl Link,
    instance: &str,
    state: OperationState,
    failure: Option<&str>,
) -> Result<(), StoreError> {
    link.change(
        "UPDATE operations SET state = $2, failure = $3 WHERE instance = $1 AND state = $4",
        &[
            instance.into(),
            word(&state)?.into(),
            failure.into(),
            word(&OperationState::Running)?.into(),
        ],
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
    Ok(serde_json::from_str(&row.text(column)?)?)
}

fn instance_row(row: &Row) -> Result<InstanceRow, StoreError> {
    Ok(InstanceRow {
        id: row.text(0)?,
        name: row.text(1)?,
        project: row.text(2)?,
        wanted: if row.flag(3)? { Wanted::Present } else { Wanted::Absent },
        marks: Marks(row.int(4)?),
        spec: document(row, 5)?,
        slot: row.int(6)?,
        generation: row.int(13)?,
        found: document(row, 7)?,
        failure: row.text_or_none(8)?,
        operation: row.text(9)?,
        created_ms: row.int(10)?,
        ready_ms: row.int_or_none(11)?,
        ended_ms: row.int_or_none(12)?,
    })
}

/// An instance.
pub(super) fn find(link: &mut impl Link, id: &str) -> Result<Option<InstanceRow>, StoreError> {
    let row = link.one(instances!("WHERE id = $1"), &[id.into()])?;
    row.map(|row| instance_row(&row)).transpose()
}

/// Instances that somebody may see.
pub(super) fn shown(
    link: &mut impl Link,
    part: &Part,
    after: i64,
) -> Result<Vec<(String, InstanceRow)>, StoreError> {
    // Of one project by the index of it, which a condition that may be none would not use.
    let rows = match part.project.as_deref() {
        Some(project) => link.all(
            instances!("WHERE NOT hidden AND project = $2 AND seq > $1 ORDER BY seq LIMIT $3"),
            &[after.into(), project.into(), part.limit.into()],
        ),
        None => link.all(
            instances!("WHERE NOT hidden AND seq > $1 ORDER BY seq LIMIT $2"),
            &[after.into(), part.limit.into()],
        ),
    }?;
    let with_cursor = |row| {
        let instance = instance_row(row)?;
        Ok((instance.generation.to_string(), instance))
    };
    rows.iter().map(with_cursor).collect()
}

/// Instances with something to be done, those that are removed first.
pub(super) fn unsettled(link: &mut impl Link) -> Result<Vec<String>, StoreError> {
    ids(
        link,
        "SELECT id FROM instances
         WHERE ended_ms IS NULL AND (NOT wanted OR ready_ms IS NULL)
         ORDER BY wanted, seq",
    )
}

/// Instances of which something may be there.
pub(super) fn live(link: &mut impl Link) -> Result<Vec<String>, StoreError> {
    ids(link, "SELECT id FROM instances WHERE ended_ms IS NULL ORDER BY seq")
}

fn ids(link: &mut impl Link, query: &'static str) -> Result<Vec<String>, StoreError> {
    link.all(query, &[])?.iter().map(|row| row.text(0)).collect()
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
        id: row.text(1)?,
        instance: row.text(2)?,
        project: row.text(3)?,
        ordinal: row.int(4)?,
        gpu: row.int(5)?,
        node: row.text(6)?,
        device: row.text(7)?,
        memory_mib: row.int(8)?,
        mode: mode_of(row.flag(9)?),
        weight: row.int(10)?,
        masked: row.text_or_none(11)?,
        token: row.text_or_none(12)?,
        from_ms: row.int(13)?,
        to_ms: row.int_or_none(14)?,
        used_ns: row.int_or_none(15)?,
    })
}

/// An instance's cGPUs.
pub(super) fn cgpus_of(link: &mut impl Link, instance: &str) -> Result<Vec<CgpuRow>, StoreError> {
    let rows = link.all(cgpus!("WHERE instance = $1 ORDER BY ordinal"), &[instance.into()])?;
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
    link: &mut impl Link,
    part: &Part,
    after: i64,
    which: Which,
) -> Result<Vec<(String, CgpuRow)>, StoreError> {
    let project = part.project.as_deref();
    let text = match (which, project) {
        (Which::Live, Some(_)) => {
            cgpus!("WHERE to_ms IS NULL AND project = $3 AND seq > $1 ORDER BY seq LIMIT $2")
        }
        (Which::Live, None) => cgpus!("WHERE to_ms IS NULL AND seq > $1 ORDER BY seq LIMIT $2"),
        (Which::All, Some(_)) => cgpus!("WHERE project = $3 AND seq > $1 ORDER BY seq LIMIT $2"),
        (Which::All, None) => cgpus!("WHERE seq > $1 ORDER BY seq LIMIT $2"),
    };
    let mut parameters: Vec<Value<'_>> = vec![after.into(), part.limit.into()];
    parameters.extend(project.map(Value::from));
    let rows = link.all(text, &parameters)?;
    rows.iter().map(|row| Ok((row.int::<i64>(0)?.to_string(), cgpu_row(row)?))).collect()
}

/// The last cGPUs that anybody had, the newest first.
pub(super) fn newest(
    link: &mut impl Link,
    project: Option<&str>,
    limit: u32,
) -> Result<Vec<CgpuRow>, StoreError> {
    let rows = match project {
        Some(project) => link.all(
            cgpus!("WHERE project = $1 ORDER BY seq DESC LIMIT $2"),
            &[project.into(), limit.into()],
        ),
        None => link.all(cgpus!("ORDER BY seq DESC LIMIT $1"), &[limit.into()]),
    }?;
    rows.iter().map(cgpu_row).collect()
}

/// What live cGPUs take of GPUs.
pub(super) fn taken(link: &mut impl Link) -> Result<Vec<Taken>, StoreError> {
    let rows = link.all(
        // Those of an instance come together, for they are written together; ordered by it, all
        // that anybody ever had would be looked at.
        "SELECT instance, gpu, memory, exclusive FROM cgpus WHERE to_ms IS NULL ORDER BY seq",
        &[],
    )?;
    let taken = |row: &Row| {
        let (instance, gpu) = (row.text(0)?, row.int(1)?);
        let (memory_mib, mode) = (row.int(2)?, mode_of(row.flag(3)?));
        Ok(Taken { instance, gpu, memory_mib, mode, generation: 0 })
    };
    rows.iter().map(taken).collect()
}

/// A step was done.
pub(super) fn mark(
    link: &mut impl Link,
    instance: &str,
    Done { step, effects, event }: &Done,
) -> Result<(), StoreError> {
    let Effects { masked, tokens, found, ready_ms } = effects;
    let found = found.as_ref().map(serde_json::to_string).transpose()?;
    link.change(
        "UPDATE instances SET marks = marks | $2, found = coalesce($3, found),
                              ready_ms = coalesce($4, ready_ms) WHERE id = $1",
        &[instance.into(), step.bit().into(), found.into(), int_or_none(*ready_ms)?.into()],
    )?;
    for (cgpu, masked) in masked {
        let change = "UPDATE cgpus SET masked = $2 WHERE id = $1";
        link.change(change, &[cgpu.into(), masked.into()])?;
    }
    for (cgpu, token) in tokens {
        let change = "UPDATE cgpus SET token = $2 WHERE id = $1";
        link.change(change, &[cgpu.into(), token.into()])?;
    }
    // What runs may be its removal by now.
    if ready_ms.is_some() && is_wanted(link, instance)? {
        end_operations(link, instance, OperationState::Succeeded, None)?;
    }
    tell(link, instance, event)
}

/// Device time that cGPUs used, which never becomes less: a node that lost its state begins anew.
pub(super) fn keep_used(link: &mut impl Link, used_ns: &[(String, u64)]) -> Result<(), StoreError> {
    for (cgpu, used_ns) in used_ns {
        let used_ns = i64::try_from(*used_ns).unwrap_or(i64::MAX);
        link.change(
            "UPDATE cgpus SET used_ns = $2 WHERE id = $1 AND (used_ns IS NULL OR used_ns < $2)",
            &[cgpu.into(), used_ns.into()],
        )?;
    }
    Ok(())
}

/// Whether an instance is still to be there.
fn is_wanted(link: &mut impl Link, instance: &str) -> Result<bool, StoreError> {
    let row = link.one("SELECT wanted FROM instances WHERE id = $1", &[instance.into()])?;
    row.ok_or_else(|| StoreError::Missing(format!("instance {instance}")))?.flag(0)
}

/// Something happened.
pub(super) fn tell(link: &mut impl Link, instance: &str, event: &Event) -> Result<(), StoreError> {
    let Event { at_ms, step, kind, took_us, detail } = event;
    link.change(
        "INSERT INTO events (operation, at_ms, step, kind, took_us, detail)
         SELECT operation, CAST($2 AS bigint), CAST($3 AS text), CAST($4 AS text),
                CAST($5 AS bigint), CAST($6 AS text) FROM instances WHERE id = $1",
        &[
            instance.into(),
            int(*at_ms)?.into(),
            step.into(),
            word(kind)?.into(),
            int(*took_us)?.into(),
            detail.as_deref().into(),
        ],
    )?;
    if *kind == EventKind::Retry { forget_retries(link, instance) } else { Ok(()) }
}

/// Of what is tried again without end the first retries are forgotten.
fn forget_retries(link: &mut impl Link, instance: &str) -> Result<(), StoreError> {
    let retry = word(&EventKind::Retry)?;
    link.change(
        "DELETE FROM events
         WHERE operation = (SELECT operation FROM instances WHERE id = $1) AND kind = $2
           AND seq <= (SELECT seq FROM events
                       WHERE operation = (SELECT operation FROM instances WHERE id = $1)
                         AND kind = $2 ORDER BY seq DESC LIMIT 1 OFFSET $3)",
        &[instance.into(), retry.into(), RETRIES_MAX.into()],
    )?;
    Ok(())
}

/// An instance is to be removed from here on.
pub(super) fn renounce(
    link: &mut impl Link,
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
        &[instance.into(), failure.into()],
    )?;
    if let Some(audit) = audit {
        // What made it, if it still does, has come to nothing.
        end_operations(link, instance, OperationState::Failed, Some(TERMINATED))?;
        let operation = format!("{}-end", found.operation);
        let kind = OperationKind::Terminate;
        begin_operation(link, &operation, kind, instance, &found.project, audit.at_ms)?;
        let change = "UPDATE instances SET operation = $2 WHERE id = $1";
        link.change(change, &[instance.into(), operation.into()])?;
    }
    find(link, instance)?.ok_or_else(missing)
}

/// Nothing of an instance is left. Repeated, it does nothing.
pub(super) fn release(
    link: &mut impl Link,
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
    give_back(link, &found)?;
    link.change(
        "UPDATE cgpus SET to_ms = $2, token = NULL WHERE instance = $1",
        &[instance.into(), int(now_ms)?.into()],
    )?;
    // Nobody needs what its VM was to run any longer: it may be long, and secret.
    let spec = Spec { user_data: String::new(), ..found.spec.clone() };
    link.change(
        "UPDATE instances SET ended_ms = $2, marks = marks | $3, hidden = $4, spec = $5
         WHERE id = $1",
        &[
            instance.into(),
            int(now_ms)?.into(),
            Step::Release.bit().into(),
            found.failure.is_none().into(),
            serde_json::to_string(&spec)?.into(),
        ],
    )?;
    tell(link, instance, event)?;
    let state = match found.failure {
        None => OperationState::Succeeded,
        Some(_) => OperationState::Failed,
    };
    end_operations(link, instance, state, found.failure.as_deref())
}

/// GPUs and the project's account are without what an instance has.
fn give_back(link: &mut impl Link, found: &InstanceRow) -> Result<(), StoreError> {
    let cgpus = cgpus_of(link, &found.id)?;
    uncharge(link, found, &cgpus)?;
    let mut of_gpu: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    for cgpu in &cgpus {
        let sum = of_gpu.entry(cgpu.gpu).or_default();
        *sum = (sum.0 + cgpu.memory_mib, sum.1 + 1);
    }
    for (gpu, (memory, count)) in of_gpu {
        link.change(
            "UPDATE gpus SET held = held - $2, cgpus = cgpus - $3, exclusive = false,
                             generation = generation + 1 WHERE id = $1",
            &[gpu.into(), int(memory)?.into(), count.into()],
        )?;
    }
    Ok(())
}

/// A failed instance is not shown any longer; whether it was shown before.
pub(super) fn hide(link: &mut impl Link, instance: &str) -> Result<bool, StoreError> {
    let changed = link.change(
        "UPDATE instances SET hidden = true WHERE id = $1 AND ended_ms IS NOT NULL AND NOT hidden",
        &[instance.into()],
    )?;
    Ok(changed > 0)
}

/// A statement about instances that ended first, before `$1`, and are `$2` at most. One that began
/// later ended when the clock was behind.
macro_rules! of_ended {
    ($before:literal, $behind:literal) => {
        concat!(
            $before,
            "(SELECT id FROM instances WHERE ended_ms < $1 AND created_ms < $1
              ORDER BY ended_ms, seq LIMIT $2)",
            $behind
        )
    };
}

/// Forgets instances that ended before then, and what there is of them; how many they were.
pub(super) fn forget(link: &mut impl Link, before_ms: u64, most: u32) -> Result<u64, StoreError> {
    let parameters: [Value<'_>; 2] = [int(before_ms)?.into(), most.into()];
    for change in [
        of_ended!(
            "DELETE FROM events WHERE operation IN
             (SELECT id FROM operations WHERE instance IN ",
            ")"
        ),
        of_ended!("DELETE FROM operations WHERE instance IN ", ""),
        of_ended!("DELETE FROM cgpus WHERE instance IN ", ""),
    ] {
        link.change(change, &parameters)?;
    }
    link.change(of_ended!("DELETE FROM instances WHERE id IN ", ""), &parameters)
}

/// An operation and what happened.
pub(super) fn operation(
    link: &mut impl Link,
    id: &str,
) -> Result<Option<(OperationRow, Vec<Event>)>, StoreError> {
    let row = link.one(
        "SELECT kind, instance, project, state, created_ms, failure FROM operations
         WHERE id = $1",
        &[id.into()],
    )?;
    let Some(row) = row else { return Ok(None) };
    let found = OperationRow {
        id: id.to_owned(),
        kind: parsed(&row.text(0)?)?,
        instance: row.text(1)?,
        project: row.text(2)?,
        state: parsed(&row.text(3)?)?,
        created_ms: row.int(4)?,
        failure: row.text_or_none(5)?,
    };
    let rows = link.all(
        "SELECT at_ms, step, kind, took_us, detail FROM events WHERE operation = $1
         ORDER BY seq DESC LIMIT $2",
        &[id.into(), EVENTS_MAX.into()],
    )?;
    let event = |row: &Row| {
        Ok(Event {
            at_ms: row.int(0)?,
            step: row.text(1)?,
            kind: parsed(&row.text(2)?)?,
            took_us: row.int(3)?,
            detail: row.text_or_none(4)?,
        })
    };
    let events: Result<Vec<Event>, StoreError> = rows.iter().rev().map(event).collect();
    Ok(Some((found, events?)))
}
