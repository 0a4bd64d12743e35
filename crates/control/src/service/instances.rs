//! Instances, their cGPUs and operations.

use weft_api::v1::{
    BATCH_MAX, Batch, Cgpu, CgpuState, Event, EventKind, Instance, InstanceState, Kind, Locality,
    Mode, NewBatch, NewInstance, Operation, Problem, SLA_US, USER_DATA_BYTES_MAX, WEIGHTS,
    check_key,
};
use weft_sched::placement::{AMOUNT_MAX, CGPUS_MAX};

use super::{Actor, Answer, Ask, Reply, Service, json, missing, named, page, parse, written};
use crate::allocate::broken;
use crate::clock;
use crate::engine::{GIVEN_BACK, QUOTA};
use crate::execute::{self, DRAINED};
use crate::plan::Step;
use crate::provision::{Delivery, Failure, UNSHARED};
use crate::random;
use crate::store::shared::{charged, demand, ensure_launches};
use crate::store::{
    CgpuRow, InstanceRow, Key, Machine, Part, REMOVED, Reservation, Spec, TERMINATED, Wanted,
};
use crate::sweep::{VGPU_GONE, VM_GONE};
use crate::words::counted;

/// Clients are told of the same number.
const _: () = assert!(CGPUS_MAX == weft_api::v1::CGPUS_MAX);

impl Service {
    pub(super) fn instance_list(&self, actor: &Actor, ask: &Ask) -> Answer {
        let part = actor.part(ask)?;
        let found = self.store().instances(&part).map_err(broken)?;
        page(&part, found, |row| shown(actor, row))
    }

    /// An instance that the actor may see; others are not there.
    fn find(&self, actor: &Actor, ask: &Ask) -> Result<InstanceRow, Problem> {
        let found = self.store().instance(&ask.target).map_err(broken)?;
        found
            .filter(|row| actor.reaches(&row.project))
            .ok_or_else(|| missing("instance", &ask.target))
    }

    pub(super) fn instance_show(&self, actor: &Actor, ask: &Ask) -> Answer {
        let instance = self.seen(actor, ask)?;
        let bytes = written(&instance)?;
        let is_passing =
            matches!(instance.state, InstanceState::Building | InstanceState::Terminating);
        Ok(if is_passing { Reply::Passing(bytes) } else { Reply::Json(bytes) })
    }

    fn seen(&self, actor: &Actor, ask: &Ask) -> Result<Instance, Problem> {
        let row = self.find(actor, ask)?;
        let ending = self.ending(actor, &row)?;
        Ok(Instance { ending, ..shown(actor, row) })
    }

    /// What a removal waits for, if somebody did not answer at a step that is not done since, and
    /// what that means for the project's quota.
    fn ending(&self, actor: &Actor, row: &InstanceRow) -> Result<Option<String>, Problem> {
        if row.state() != InstanceState::Terminating {
            return Ok(None);
        }
        let found = self.store().operation(&row.operation).map_err(broken)?;
        let events = found.map(|(_, events)| events).unwrap_or_default();
        let has_ended = self.world().has_ended(row);
        Ok(waits(&events, has_ended).map(|(who, quota)| match actor.administrates() {
            true => format!("{who}; {quota}"),
            false => format!("somebody does not answer (an administrator sees who); {quota}"),
        }))
    }

    pub(super) fn instance_create(&self, actor: &Actor, ask: &Ask) -> Answer {
        let asked: NewInstance = parse(ask)?;
        let made = self.launch(actor, ask, &asked, std::slice::from_ref(&asked.name))?;
        json(made.first().ok_or_else(|| Problem::new(Kind::Internal, "nothing was made"))?)
    }

    pub(super) fn batch_create(&self, actor: &Actor, ask: &Ask) -> Answer {
        let NewBatch { count, instance } = parse(ask)?;
        if !(1..=BATCH_MAX).contains(&count) {
            let words = format!("a batch of {count}: a batch has 1 to {BATCH_MAX} instances");
            return Err(Problem::new(Kind::Invalid, words));
        }
        if u64::from(count) * u64::from(instance.cgpus) > u64::from(CGPUS_MAX) {
            let each = counted(instance.cgpus, "cGPU");
            let words =
                format!("{count} instances with {each}: a batch has up to {CGPUS_MAX} in all");
            return Err(Problem::new(Kind::Invalid, words).hint("ask for several batches"));
        }
        let numbered = |number| instance.name.as_ref().map(|name| format!("{name}-{number}"));
        let names: Vec<Option<String>> = (1..=count).map(numbered).collect();
        json(&Batch { instances: self.launch(actor, ask, &instance, &names)? })
    }

    /// Makes instances that are equal but for their names, all of them or none; one without a name
    /// has its id.
    fn launch(
        &self,
        actor: &Actor,
        ask: &Ask,
        asked: &NewInstance,
        names: &[Option<String>],
    ) -> Result<Vec<Instance>, Problem> {
        let project = project(actor, asked)?;
        let spec = spec(asked)?;
        names.iter().flatten().try_for_each(|name| named(name))?;
        let key = ask.key.as_ref().map(|key| self::key(actor, key, ask)).transpose()?;
        // A request that was carried out before takes nothing, whether there is room now or not.
        if let Some(key) = &key {
            let before = self.store().repeated(key, clock::now_ms()).map_err(broken)?;
            if !before.is_empty() {
                return self.again(actor, &before);
            }
        }
        self.ensure_led()?;
        self.world().provisioner.fits(&execute::outline(&spec)).map_err(|failure| {
            Problem::new(Kind::Invalid, failure.words)
                .hint("shorten the script, or have it fetch what it runs; or ask for fewer cGPUs")
        })?;
        let reservation = |name: &Option<String>| -> Result<Reservation, Problem> {
            let internal = |error: std::io::Error| Problem::new(Kind::Internal, error.to_string());
            // Whose it is stands in its vGPUs' names.
            let id = self.store().instance_prefix() + &random::hex(5).map_err(internal)?;
            Ok(Reservation {
                operation: format!("op-{id}"),
                taken: Vec::new(),
                launches_per_day: self.launches_per_day,
                audit: actor.did(&id),
                name: name.clone().unwrap_or_else(|| id.clone()),
                id,
                project: project.clone(),
                spec: spec.clone(),
                key: key.clone(),
            })
        };
        let wanted: Vec<Reservation> = names.iter().map(reservation).collect::<Result<_, _>>()?;
        let quota = self.check_quota(&project, &spec, names.len() as u64);
        let offered = quota.and_then(|()| self.ensure_offered(actor, &project, &spec));
        match offered.and_then(|()| self.world().allocator.reserve_all(&wanted)) {
            Ok(rows) => {
                rows.iter().for_each(|row| self.engine.kick(&row.id));
                Ok(rows.into_iter().map(|row| shown(actor, row)).collect())
            }
            // The same may have been carried out meanwhile, and have taken what is missing now.
            Err(problem) => {
                let now_ms = clock::now_ms();
                let before = key.as_ref().and_then(|key| self.store().repeated(key, now_ms).ok());
                match before.as_deref() {
                    Some(before @ [_, ..]) => self.again(actor, before),
                    Some([]) | None => Err(problem),
                }
            }
        }
    }

    /// What has become of the instances of a request that was carried out before.
    fn again(&self, actor: &Actor, instances: &[String]) -> Result<Vec<Instance>, Problem> {
        let now = |instance: &String| {
            // Whoever was told that the store is away may have been heard all the same.
            self.engine.remind(instance);
            self.seen(actor, &Ask { target: instance.clone(), ..Ask::default() })
        };
        instances.iter().map(now).collect()
    }

    /// Asks the cloud, if something of its is named, whether the project may have it. What a cloud
    /// that fails says is not the tenant's to see.
    fn ensure_offered(&self, actor: &Actor, project: &str, spec: &Spec) -> Result<(), Problem> {
        let local = (spec.locality == Locality::Local).then_some(spec.cgpus);
        let offered = self.world().provisioner.offers(project, &spec.machine, local);
        offered.map_err(|failure| {
            if failure.is_permanent {
                return Problem::new(Kind::Invalid, failure.words)
                    .hint("leave it out for the control plane's own, or ask the cloud for others");
            }
            let what = "the cloud does not say now whether the project may have that";
            Problem::new(Kind::Busy, hidden(actor, "", what, failure))
        })
    }

    /// Before anything is decided: the store checks again when it reserves.
    fn check_quota(&self, project: &str, spec: &Spec, instances: u64) -> Result<(), Problem> {
        let found = self.store().project(project).map_err(broken)?;
        let (quota, used) = found.ok_or_else(|| missing("project", project))?;
        let count = u64::from(spec.cgpus) * instances;
        let more = demand(spec, count, spec.memory_mib * count);
        charged(project, &quota, &used, &more).map_err(broken)?;
        let Some(most) = self.launches_per_day else { return Ok(()) };
        let made = self.store().launches(project, clock::now_ms()).map_err(broken)?;
        ensure_launches(project, made, instances, most).map_err(broken)
    }

    pub(super) fn instance_delete(&self, actor: &Actor, ask: &Ask) -> Answer {
        let found = self.find(actor, ask)?;
        let audit = actor.did(&found.id);
        if found.ended_ms.is_some() {
            self.store().hide(&found.id, &audit).map_err(broken)?;
            return json(&shown(actor, found));
        }
        if found.wanted == Wanted::Absent {
            self.engine.remind(&found.id);
            return json(&shown(actor, found));
        }
        let row = self.store().renounce(&found.id, None, Some(&audit)).map_err(broken)?;
        self.engine.remove(&row.id);
        json(&shown(actor, row))
    }

    pub(super) fn instance_cgpus(&self, actor: &Actor, ask: &Ask) -> Answer {
        let row = self.find(actor, ask)?;
        let cgpus = self.store().instance_cgpus(&row.id).map_err(broken)?;
        // There are no more than a few pages of them, and they are read at once.
        let with_cursor = |cgpu: CgpuRow| (String::new(), cgpu);
        let part = Part { limit: u32::MAX, after: None, project: None };
        let state = state(&row);
        page(&part, cgpus.into_iter().map(with_cursor).collect(), |cgpu| {
            cgpu_shown(actor, cgpu, state)
        })
    }

    /// What a job must know that was not made with it.
    pub(super) fn instance_attachment(&self, actor: &Actor, ask: &Ask) -> Answer {
        let row = self.find(actor, ask)?;
        if self.world().provisioner.delivery() == Delivery::WithVm {
            let words = "VMs are made with what they must know, and nobody else is told";
            return Err(Problem::new(Kind::Conflict, words));
        }
        if row.state() != InstanceState::Ready {
            let words = format!("{} is not ready", row.id);
            return Err(Problem::new(Kind::Conflict, words).hint("wait until it is"));
        }
        let attachment = self.world().attachment(&row);
        let unknown = "what the VM is to know cannot be read for now";
        let failed = |failure: Failure| {
            Problem::new(Kind::Internal, hidden(actor, &row.id, unknown, failure))
        };
        json(&attachment.map_err(failed)?)
    }

    pub(super) fn instance_console(&self, actor: &Actor, ask: &Ask) -> Answer {
        let row = self.find(actor, ask)?;
        let text = self.world().provisioner.console(&row.id);
        let unread = "the VM's console cannot be read for now";
        let failed = |failure: Failure| {
            Problem::new(Kind::Conflict, hidden(actor, &row.id, unread, failure))
        };
        text.map(Reply::Text).map_err(failed)
    }

    pub(super) fn cgpu_list(&self, actor: &Actor, ask: &Ask) -> Answer {
        let part = actor.part(ask)?;
        let found = self.store().cgpus(&part).map_err(broken)?;
        let mut states = std::collections::BTreeMap::new();
        for (_, cgpu) in &found {
            if !states.contains_key(&cgpu.instance) {
                let row = self.store().instance(&cgpu.instance).map_err(broken)?;
                states
                    .insert(cgpu.instance.clone(), row.as_ref().map_or(CgpuState::Released, state));
            }
        }
        page(&part, found, |cgpu| {
            let state = states.get(&cgpu.instance).copied().unwrap_or(CgpuState::Released);
            cgpu_shown(actor, cgpu, state)
        })
    }

    pub(super) fn operation_show(&self, actor: &Actor, ask: &Ask) -> Answer {
        let found = self.store().operation(&ask.target).map_err(broken)?;
        let found = found.filter(|(row, _)| actor.reaches(&row.project));
        let (row, mut events) = found.ok_or_else(|| missing("operation", &ask.target))?;
        if !actor.administrates() {
            // They name nodes.
            events.iter_mut().for_each(|event| event.detail = None);
        }
        json(&Operation {
            id: row.id,
            kind: row.kind,
            instance: row.instance,
            project: row.project,
            state: row.state,
            created_ms: row.created_ms,
            failure: row.failure.map(|why| told(actor, why)),
            events,
        })
    }
}

/// Whose the instance will be.
fn project(actor: &Actor, asked: &NewInstance) -> Result<String, Problem> {
    match (&asked.project, &actor.token.project) {
        (Some(asked), _) if actor.administrates() => Ok(asked.clone()),
        (Some(asked), Some(own)) if asked != own => {
            let words = format!("the token is project {own}'s, not {asked}'s");
            Err(Problem::new(Kind::Forbidden, words))
        }
        (_, Some(own)) => Ok(own.clone()),
        (_, None) => Err(Problem::new(Kind::Invalid, "an administrator's token has no project")
            .hint("say which project the instance is of")),
    }
}

/// What is asked for, if it can be.
fn spec(asked: &NewInstance) -> Result<Spec, Problem> {
    let invalid = |words: String| Err(Problem::new(Kind::Invalid, words));
    let mode = asked.mode.unwrap_or(Mode::Exclusive);
    let memory_mib = asked.memory_mib.unwrap_or(0);
    let weight = asked.weight.unwrap_or(1);
    if !(1..=CGPUS_MAX).contains(&asked.cgpus) {
        return invalid(format!("{} cGPUs: an instance has 1 to {CGPUS_MAX}", asked.cgpus));
    }
    if memory_mib > AMOUNT_MAX {
        return invalid(format!("{memory_mib} MiB: no GPU has more than {AMOUNT_MAX}"));
    }
    if mode == Mode::Shared && memory_mib == 0 {
        return Err(Problem::new(
            Kind::Invalid,
            "a shared cGPU needs to know how much memory it has",
        )
        .hint("say memory_mib (-poolmem=MB)"));
    }
    if !WEIGHTS.contains(&weight) {
        let (least, most) = (WEIGHTS.start(), WEIGHTS.end());
        return invalid(format!("a weight of {weight}: weights are {least} to {most}"));
    }
    if mode == Mode::Exclusive && weight != 1 {
        let words = format!("a weight of {weight} against others on GPUs that nobody else has");
        return Err(Problem::new(Kind::Invalid, words)
            .hint("leave `weight` out, or say \"mode\": \"shared\" (-mode=shared)"));
    }
    if let Some(sla_us) = asked.sla_us.filter(|sla_us| !SLA_US.contains(sla_us)) {
        let (least, most) = (SLA_US.start(), SLA_US.end());
        let words = format!("an SLA of {sla_us} us: {least} to {most} us can be met");
        return Err(Problem::new(Kind::Invalid, words)
            .hint("leave `sla_us` (-sla) out for cGPUs that are not user-facing"));
    }
    let user_data = asked.user_data.clone().unwrap_or_default();
    if user_data.len() > USER_DATA_BYTES_MAX {
        let words =
            format!("{} bytes of user-data: {USER_DATA_BYTES_MAX} are the most", user_data.len());
        return invalid(words);
    }
    if user_data.contains('\0') {
        return invalid("user-data is a script: it has a NUL byte".to_owned());
    }
    let machine = machine(asked)?;
    let locality = asked.locality.unwrap_or(Locality::Remote);
    let (cgpus, sla_us) = (asked.cgpus, asked.sla_us.unwrap_or(0));
    Ok(Spec { cgpus, memory_mib, mode, locality, weight, sla_us, user_data, host: None, machine })
}

/// Bytes of a name or an id of the cloud's.
const CLOUD_NAME_BYTES_MAX: usize = 255;

/// What the VM is to be made of, as far as that is known here: the cloud says whether it is there.
fn machine(asked: &NewInstance) -> Result<Machine, Problem> {
    let NewInstance { image, flavor, network, .. } = asked;
    let is_good = |kind: &str, said: &str| match kind {
        "id" => said.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'),
        _ => !said.chars().any(char::is_control),
    };
    for (what, kind, said) in
        [("image", "id", image), ("flavor", "name", flavor), ("network", "id", network)]
    {
        let Some(said) = said else { continue };
        if said.is_empty() || said.len() > CLOUD_NAME_BYTES_MAX || !is_good(kind, said) {
            let words = format!("the {what} `{}` is no {kind}", said.escape_debug());
            let hint = format!("say the {kind} that the cloud knows the {what} by");
            return Err(Problem::new(Kind::Invalid, words).hint(hint));
        }
    }
    let (image, flavor, network) = (image.clone(), flavor.clone(), network.clone());
    Ok(Machine { image, flavor, network })
}

fn key(actor: &Actor, key: &str, ask: &Ask) -> Result<Key, Problem> {
    check_key(key).map_err(|error| Problem::new(Kind::Invalid, error.to_string()))?;
    let (owner, key) = (actor.token.name.clone(), key.to_owned());
    Ok(Key { owner, key, digest: random::digest(&content(&ask.body)) })
}

/// What a body says, in whatever order and with whatever spaces its fields are written.
fn content(body: &[u8]) -> Vec<u8> {
    let parsed = serde_json::from_slice::<serde_json::Value>(body);
    parsed.map_or_else(|_| body.to_vec(), |value| value.to_string().into_bytes())
}

fn state(row: &InstanceRow) -> CgpuState {
    match row.state() {
        InstanceState::Building => CgpuState::Reserved,
        InstanceState::Ready => CgpuState::Granted,
        InstanceState::Terminating => CgpuState::Revoking,
        InstanceState::Failed | InstanceState::Terminated => CgpuState::Released,
    }
}

/// Who did not answer at steps that were not done since, and what that means for the quota.
fn waits(events: &[Event], has_ended: bool) -> Option<(String, &'static str)> {
    let is_last = |at: usize| events[at + 1..].iter().all(|one| one.step != events[at].step);
    let open = (0..events.len())
        .filter(|at| events[*at].kind == EventKind::Retry && is_last(*at))
        .filter_map(|at| events[at].detail.as_deref());
    let who = open.collect::<Vec<_>>().join("; ");
    let is_given = events.iter().any(|event| event.step == QUOTA);
    let quota = match (is_given, has_ended) {
        (true, _) => GIVEN_BACK,
        (false, true) => "it has ended: the project's quota is given back within some seconds",
        (false, false) => {
            "it may compute on, and the project's quota stays taken until one of them says that it \
             ended"
        }
    };
    (!who.is_empty()).then_some((who, quota))
}

/// What an administrator sees of a failure, and the log; others see that there was one.
fn hidden(actor: &Actor, instance: &str, what: &str, failure: Failure) -> String {
    tracing::warn!(instance, error = failure.words, "{what}");
    if actor.administrates() {
        return failure.words;
    }
    format!("{what}; an administrator sees why: try it again, or ask one")
}

/// Failures name nodes and hosts, which tenants do not see: they see the step, or what happened to
/// the VM. What is not known here is not theirs to see.
fn told(actor: &Actor, why: String) -> String {
    if actor.administrates() {
        return why;
    }
    // What is so for a while is not an administrator's secret.
    if why.ends_with(DRAINED) {
        return "the VM's host takes no new VMs for now; launch it again later".to_owned();
    }
    if why.ends_with(REMOVED) {
        return "the VM's host was taken out of service: launch it again".to_owned();
    }
    if why.contains(VGPU_GONE) {
        return "a GPU node no longer has a cGPU of the VM: launch it again".to_owned();
    }
    if why.starts_with(UNSHARED) {
        return format!("{UNSHARED} any more: launch it again");
    }
    if [VM_GONE, TERMINATED].contains(&why.as_str()) {
        return why;
    }
    let advice = "an administrator sees why: launch it again, or ask one";
    let step = why.split_once(": ").map(|(step, _)| step).unwrap_or_default();
    let Some(step) = Step::ALL.iter().find(|known| known.name() == step) else {
        return format!("the VM failed; {advice}");
    };
    let what = match step {
        Step::Address => "no addresses could be chosen for its cGPUs",
        Step::Sign => "a GPU node did not sign the grants of its cGPUs",
        Step::Create => "the VM could not be made",
        Step::Port => "the VM did not get its network port",
        Step::Grant => "a GPU node did not make its cGPUs",
        Step::Rules => "the VM's host did not lead it to its cGPUs",
        Step::Active => "the VM did not boot",
        Step::Confirm => "the VM's host did not keep leading it to its cGPUs",
        Step::Unrule | Step::Revoke | Step::Terminate | Step::Release => "a step of it failed",
    };
    format!("{what} (step {}); {advice}", step.name())
}

pub(super) fn shown(actor: &Actor, row: InstanceRow) -> Instance {
    Instance {
        state: row.state(),
        host: row.found.host.filter(|_| actor.administrates()),
        failure: row.failure.map(|why| told(actor, why)),
        id: row.id,
        name: row.name,
        project: row.project,
        cgpus: row.spec.cgpus,
        memory_mib: row.spec.memory_mib,
        mode: row.spec.mode,
        locality: row.spec.locality,
        weight: row.spec.weight,
        image: row.spec.machine.image,
        flavor: row.spec.machine.flavor,
        network: row.spec.machine.network,
        operation: row.operation,
        created_ms: row.created_ms,
        ready_ms: row.ready_ms,
        ending: None,
    }
}

fn cgpu_shown(actor: &Actor, row: CgpuRow, state: CgpuState) -> Cgpu {
    let is_seen = actor.administrates();
    let vgpu = row.vgpu();
    Cgpu {
        id: row.id,
        instance: row.instance,
        project: row.project,
        ordinal: row.ordinal,
        memory_mib: row.memory_mib,
        mode: row.mode,
        weight: row.weight,
        state: if row.to_ms.is_some() { CgpuState::Released } else { state },
        masked: row.masked,
        gpu: is_seen.then_some(row.gpu),
        node: is_seen.then_some(row.node),
        vgpu: is_seen.then_some(vgpu),
        created_ms: row.from_ms,
        released_ms: row.to_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::TokenRow;

    #[test]
    fn a_tenant_is_told_what_failed_and_what_to_do_and_no_nodes() {
        let token = TokenRow {
            name: "ann".to_owned(),
            project: Some("p".to_owned()),
            role: weft_api::v1::Role::Member,
            created_ms: 0,
            expires_ms: None,
        };
        let actor = Actor { token, call: weft_api::v1::Call::InstanceShow };
        for step in Step::ALL {
            let words = told(&actor, format!("{}: node gpu1: no way", step.name()));
            assert!(words.contains("launch it again") && !words.contains("gpu1"), "{words}");
        }
        for (why, begins) in [
            ("vGPU cgpu-i1-0 is no longer on node gpu1", "a GPU node no longer has a cGPU"),
            ("the endpoint of host gpu1 was taken out of service", "the VM's host was taken out"),
            ("Nova: No valid host but gpu1", "the VM failed; an administrator sees why"),
            ("gpu1 is away", "the VM failed; an administrator sees why"),
        ] {
            let words = told(&actor, why.to_owned());
            assert!(words.starts_with(begins), "{words}");
            assert!(words.contains("launch it again") && !words.contains("gpu1"), "{words}");
        }
        assert_eq!(told(&actor, "the VM is gone".to_owned()), "the VM is gone");
        let words = told(&actor, "sign: node gpu1: refused".to_owned());
        assert!(words.starts_with("a GPU node did not sign the grants of its cGPUs"), "{words}");
    }

    #[test]
    fn the_same_request_may_be_written_in_another_order() {
        let (one, other) = (br#"{"cgpus": 1, "name": "a"}"#, br#"{"name":"a","cgpus":1}"#);
        assert_eq!(content(one), content(other));
        assert_ne!(content(one), content(br#"{"cgpus": 2, "name": "a"}"#));
    }
}
