//! Carries out a step: asks the world, and keeps what it answered. Every step may be executed
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weft_api::v1::{Attachment, Event, EventKind, Gateway, Variable};

use crate::allocate::Allocator;
use crate::clock;
use crate::crash::Crash;
use crate::nodes::{Nodes, VgpuSpec};
use crate::plan::{self, Step};
use crate::provision::{Failure, Provisioner, VmSpec, VmState, is_shared};
use crate::rules::{self, Endpoint, GrantRow};
use crate::store::{
    CgpuRow, Done, Effects, EndpointRow, Found, InstanceRow, Leading, Spec, Store, StoreError,
    VGPU_PREFIX, Wanted,
};

/// A VM has booted after this time, or never will.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// The characters of an instance's id, and of a node's grant at most.
const ID_CHARS: usize = 17;
const GRANT_CHARS: usize = 300;

/// A replica that has the lease no longer looks again after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// How words end about an endpoint that was drained while a VM was made.
pub const DRAINED: &str = " is drained, and leads nothing new";

/// The world outside, and what is kept of it.
#[derive(Debug, Clone)]
pub struct World {
    /// What is kept.
    pub store: Arc<dyn Store>,
    /// Who has which GPU.
    pub allocator: Arc<Allocator>,
    /// VMs.
    pub provisioner: Arc<dyn Provisioner>,
    /// The endpoints of their hosts.
    pub endpoint: Arc<dyn Endpoint>,
    /// GPU nodes.
    pub nodes: Arc<dyn Nodes>,
    /// Where a test wants this process to be killed.
    pub crash: Crash,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done, and is kept.
    Done,
    /// It is not done yet; look again after so long.
    NotYet(Duration),
    /// It failed.
    Failed(Failure),
}

/// How far some steps were carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// The last one that was begun.
    pub step: Step,
    /// What came of it.
    pub outcome: Outcome,
    /// Whether any was done, and is kept.
    pub advanced: bool,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::passing(error.to_string())
    }
}

/// What a step found: its effects, or nothing yet.
type Finding = Result<Option<Effects>, Failure>;

/// The cGPUs of the instance whose steps are carried out, read once one of them needs them (not of
/// a VM that is asked again and again whether it has booted): as they are kept, with what the steps
/// before it brought to light and is kept together with them.
#[derive(Debug, Default)]
struct Cgpus(Option<Vec<CgpuRow>>);

impl Cgpus {
    fn of(&mut self, instance: &InstanceRow, store: &dyn Store) -> Result<&[CgpuRow], StoreError> {
        if self.0.is_none() {
            self.0 = Some(store.instance_cgpus(&instance.id)?);
        }
        Ok(self.0.as_deref().unwrap_or_default())
    }

    fn learn(&mut self, effects: &Effects) {
        let by_id = |of: &[(String, String)]| of.iter().cloned().collect::<BTreeMap<_, _>>();
        let (mut masked, mut tokens) = (by_id(&effects.masked), by_id(&effects.tokens));
        for cgpu in self.0.iter_mut().flatten() {
            cgpu.masked = masked.remove(&cgpu.id).or_else(|| cgpu.masked.take());
            cgpu.token = tokens.remove(&cgpu.id).or_else(|| cgpu.token.take());
        }
    }
}

impl World {
    /// Carries out steps of an instance, one after the other, and keeps what was done at once.
    pub fn execute(&self, instance: &InstanceRow, steps: &[Step]) -> Executed {
        let (mut done, mut cgpus) = (Vec::new(), Cgpus::default());
        let mut executed =
            Executed { step: Step::Release, outcome: Outcome::Done, advanced: false };
        for step in steps {
            executed.step = *step;
            if *step == Step::Create && !done.is_empty() && !self.is_wanted(&instance.id) {
                // The nodes may have taken long to sign, and a VM takes long to make and to end.
                executed.outcome = Outcome::NotYet(Duration::ZERO);
                break;
            }
            executed.outcome = self.begin(instance, *step, &mut cgpus, &mut done);
            if executed.outcome != Outcome::Done {
                break;
            }
        }
        match self.keep(instance, &done) {
            Ok(()) => executed.advanced = !done.is_empty(),
            Err(error) => executed.outcome = Outcome::Failed(error.into()),
        }
        executed
    }

    /// Whether an instance is still to be there, as far as anybody can say now.
    fn is_wanted(&self, id: &str) -> bool {
        let found = self.store.instance(id);
        !matches!(found, Ok(Some(InstanceRow { wanted: Wanted::Absent, .. })))
    }

    fn begin(
        &self,
        instance: &InstanceRow,
        step: Step,
        cgpus: &mut Cgpus,
        done: &mut Vec<Done>,
    ) -> Outcome {
        // What another replica may be doing by now is not begun here.
        if self.store.leading() != Leading::Here {
            return Outcome::NotYet(PAUSE);
        }
        self.crash.at("before", step);
        let begun = Instant::now();
        let effects = match self.act(instance, step, cgpus) {
            Ok(Some(effects)) => effects,
            Ok(None) => return Outcome::NotYet(self.provisioner.look_again()),
            Err(failure) => return Outcome::Failed(failure),
        };
        self.crash.at("after", step);
        let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let (at_ms, step_name) = (clock::now_ms(), step.name().to_owned());
        let event = Event { at_ms, step: step_name, kind: EventKind::Done, took_us, detail: None };
        cgpus.learn(&effects);
        done.push(Done { step, effects, event });
        Outcome::Done
    }

    fn keep(&self, instance: &InstanceRow, done: &[Done]) -> Result<(), StoreError> {
        let kept = match done {
            [] => return Ok(()),
            [Done { step: Step::Release, event, .. }] => {
                self.allocator.release(&instance.id, event.at_ms, event)
            }
            done => self.store.mark(&instance.id, done),
        };
        done.iter().for_each(|done| self.crash.at("kept", done.step));
        kept
    }

    fn act(&self, instance: &InstanceRow, step: Step, cgpus: &mut Cgpus) -> Finding {
        let store = self.store.as_ref();
        match step {
            Step::Address => self.address(instance, cgpus.of(instance, store)?),
            Step::Sign => self.sign(instance, cgpus.of(instance, store)?),
            Step::Grant => self.grant(instance, cgpus.of(instance, store)?),
            Step::Create => self.create(instance, cgpus.of(instance, store)?),
            Step::Port => self.port(instance),
            Step::Rules => {
                self.ensure_served(instance)?;
                let rows = self.rows(instance, cgpus.of(instance, store)?)?;
                self.endpoint.put(&instance.id, &rows)?;
                Ok(Some(Effects::default()))
            }
            Step::Active => self.active(instance),
            Step::Confirm => self.confirm(instance, cgpus.of(instance, store)?),
            Step::Unrule => match self.withdraw(instance) {
                Err(failure) if !failure.is_away || self.endpoint_of(instance)?.is_some() => {
                    Err(failure)
                }
                // What was taken out of service while it was away is not waited for.
                Ok(()) | Err(_) => Ok(Some(Effects::default())),
            },
            Step::Revoke => self.revoke(cgpus.of(instance, store)?),
            Step::Terminate => {
                let is_gone = self.provisioner.terminate(&instance.id)?;
                Ok(is_gone.then(Effects::default))
            }
            Step::Release => Ok(Some(Effects::default())),
        }
    }

    /// cGPUs of one node have one address: their endpoint is one.
    fn address(&self, instance: &InstanceRow, cgpus: &[CgpuRow]) -> Finding {
        let nodes: BTreeSet<&str> = cgpus.iter().map(|cgpu| cgpu.node.as_str()).collect();
        let nodes: Vec<&str> = nodes.into_iter().collect();
        let mut masked = Vec::with_capacity(cgpus.len());
        for (number, node) in nodes.iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let of_it: Vec<&CgpuRow> = cgpus.iter().filter(|cgpu| cgpu.node == *node).collect();
            let address = if self.is_on_host(instance, node)? {
                self.provisioner.masked_here(instance.slot, number, of_it.len())?
            } else {
                self.provisioner.masked(instance.slot, number)?
            };
            masked.extend(of_it.into_iter().map(|cgpu| (cgpu.id.clone(), address.clone())));
        }
        Ok(Some(Effects { masked, ..Effects::default() }))
    }

    /// Whether the VM must be where a node is: its cGPUs are local ones.
    fn is_on_host(&self, instance: &InstanceRow, node: &str) -> Result<bool, Failure> {
        let Some(host) = &instance.spec.host else { return Ok(false) };
        Ok(self.store.node(node)?.is_some_and(|node| node.host == *host))
    }

    /// Whether it is known without asking anybody that nothing of an instance that is removed can
    /// compute any longer. By itself for what is shown: an endpoint that has cut it off may say so
    /// before anybody else does.
    #[must_use]
    pub fn has_ended(&self, instance: &InstanceRow) -> bool {
        let makes_early = instance.spec.host.is_some();
        plan::has_ended(instance.marks, self.provisioner.ends(), makes_early)
    }

    /// Whether the endpoint of the host of an instance that is removed says now that it is cut off.
    /// That its rules were withdrawn is no such word: one that was taken out of service while it
    /// was away was not waited for.
    pub(crate) fn is_cut_off(&self, instance: &InstanceRow) -> bool {
        let host = instance.found.host.as_deref();
        instance.marks.has(Step::Unrule) && self.endpoint.cut(&instance.id, host)
    }

    /// Withdraws an instance's rules, which are where its port is.
    pub(crate) fn withdraw(&self, instance: &InstanceRow) -> Result<(), Failure> {
        self.endpoint.withdraw(&instance.id, instance.found.host.as_deref())
    }

    /// The endpoint of a VM's host, if one is known.
    fn endpoint_of(&self, instance: &InstanceRow) -> Result<Option<EndpointRow>, Failure> {
        let host = instance.found.host.as_deref();
        Ok(host.map(|host| self.store.endpoint(host)).transpose()?.flatten())
    }

    /// Refuses to begin to lead a VM on a host whose endpoint was drained.
    fn ensure_served(&self, instance: &InstanceRow) -> Result<(), Failure> {
        match self.endpoint_of(instance)? {
            Some(EndpointRow { in_service: false, host, .. }) => {
                Err(Failure::permanent(format!("the endpoint of host {host}{DRAINED}")))
            }
            _ => Ok(()),
        }
    }

    fn admin(&self, node: &str) -> Result<String, Failure> {
        let found = self.store.node(node)?;
        let unknown = || Failure::permanent(format!("node {node} is not known any longer"));
        Ok(found.ok_or_else(unknown)?.admin)
    }

    fn sign(&self, instance: &InstanceRow, cgpus: &[CgpuRow]) -> Finding {
        let mut tokens = Vec::with_capacity(cgpus.len());
        for (node, cgpus) in by_node(cgpus) {
            let (admin, vgpus) = (self.admin(node)?, vgpus(instance, &cgpus));
            if self.is_on_host(instance, node)? {
                // A VM that shares memory with the node may show its grants as it begins.
                let inside = || self.crash.at("inside", Step::Sign);
                self.answered(node, self.nodes.make(&admin, &vgpus, &inside))?;
            }
            let signed = self.answered(node, self.nodes.sign(&admin, &vgpus))?;
            tokens.extend(cgpus.iter().map(|cgpu| cgpu.id.clone()).zip(signed));
            self.crash.at("between", Step::Sign);
        }
        Ok(Some(Effects { tokens, ..Effects::default() }))
    }

    fn grant(&self, instance: &InstanceRow, cgpus: &[CgpuRow]) -> Finding {
        for (node, cgpus) in by_node(cgpus) {
            // Those of a host that the VM shares memory with were made before their grants.
            if !(instance.marks.has(Step::Sign) && self.is_on_host(instance, node)?) {
                let inside = || self.crash.at("inside", Step::Grant);
                let made = self.nodes.make(&self.admin(node)?, &vgpus(instance, &cgpus), &inside);
                self.answered(node, made)?;
            }
            self.crash.at("between", Step::Grant);
        }
        Ok(Some(Effects::default()))
    }

    fn create(&self, instance: &InstanceRow, cgpus: &[CgpuRow]) -> Finding {
        let mut vm = vm_spec(instance, cgpus);
        for (node, cgpus) in by_node(cgpus) {
            let masked = cgpus.first().and_then(|cgpu| cgpu.masked.clone());
            if let Some(masked) = masked.filter(|masked| is_shared(masked)) {
                let socket = self.nodes.tenant_socket(&self.admin(node)?);
                vm.nodes.insert(masked, self.answered(node, socket)?);
            }
        }
        self.provisioner.create(&vm)?;
        Ok(Some(Effects::default()))
    }

    fn port(&self, instance: &InstanceRow) -> Finding {
        let port = self.provisioner.port(&instance.id)?;
        if port.is_none() {
            // What ends before it has a port never gets one.
            self.booted(instance)?;
        }
        Ok(port.map(|(host, port)| {
            let found = Found { host: Some(host), port: Some(port) };
            Effects { found: Some(found), ..Effects::default() }
        }))
    }

    /// Whether the VM has booted; an error if it never will.
    fn booted(&self, instance: &InstanceRow) -> Result<bool, Failure> {
        match self.provisioner.awaited(&instance.id)? {
            VmState::Active => Ok(true),
            VmState::Booting if clock::waited(instance.created_ms) < BOOT_LIMIT => Ok(false),
            VmState::Booting => Err(Failure::permanent("the VM did not boot in time")),
            VmState::Absent => Err(Failure::permanent("the VM ended while it was made")),
            VmState::Broken(why) => Err(Failure::permanent(why)),
        }
    }

    fn active(&self, instance: &InstanceRow) -> Finding {
        Ok(self.booted(instance)?.then(Effects::default))
    }

    fn confirm(&self, instance: &InstanceRow, cgpus: &[CgpuRow]) -> Finding {
        let rows = self.rows(instance, cgpus)?;
        if !self.endpoint.holds(&instance.id, &rows)? {
            // Its process was killed since, perhaps.
            self.endpoint.put(&instance.id, &rows)?;
            return Ok(None);
        }
        // That the VM runs was seen by the step before, and who makes it is not asked a second
        // time: a cloud takes a tenth of a second to say so. The sweep finds one that ends.
        let ready_ms = Some(clock::now_ms());
        Ok(Some(Effects { ready_ms, ..Effects::default() }))
    }

    fn revoke(&self, cgpus: &[CgpuRow]) -> Finding {
        let mut failed: Option<Failure> = None;
        for (node, cgpus) in by_node(cgpus) {
            // The other nodes' vGPUs go whatever becomes of one's.
            if let Err(failure) = self.revoke_on(node, &cgpus) {
                failed.get_or_insert(failure);
            }
            self.crash.at("between", Step::Revoke);
        }
        failed.map_or_else(|| Ok(Some(Effects::default())), Err)
    }

    /// The vGPUs of one node go. What they have used goes with them, so it is kept before, once
    /// their sessions have ended.
    fn revoke_on(&self, node: &str, cgpus: &[&CgpuRow]) -> Result<(), Failure> {
        let admin = self.admin(node)?;
        let ids: BTreeMap<String, &str> =
            cgpus.iter().map(|cgpu| (cgpu.vgpu(), cgpu.id.as_str())).collect();
        let names: Vec<String> = ids.keys().cloned().collect();
        let of = |(vgpu, used_ns): &(String, u64)| Some(((*ids.get(vgpu)?).to_owned(), *used_ns));
        let unkept: Mutex<Option<Failure>> = Mutex::default();
        let keep = |used: &[(String, u64)]| {
            let used: Vec<(String, u64)> = used.iter().filter_map(of).collect();
            self.store.keep_used(&used).map_err(|error| {
                let failure = Failure::from(error);
                *unkept.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
                failure
            })
        };
        let inside = || self.crash.at("inside", Step::Revoke);
        let revoked = self.nodes.revoke(&admin, &names, &keep, &inside);
        let unkept = unkept.lock().unwrap_or_else(PoisonError::into_inner).take();
        match unkept {
            // What the store says is not the node's doing, which has answered.
            Some(failure) => self.answered(node, Ok(())).and(Err(failure)),
            None => self.answered(node, revoked).map(drop),
        }
    }

    /// What a node answered, or why it did not; whether it answers is remembered.
    pub(crate) fn answered<T>(&self, node: &str, answer: Result<T, Failure>) -> Result<T, Failure> {
        let why_not = answer.as_ref().err().filter(|failure| !failure.is_permanent);
        self.allocator.note_answer(node, why_not.map(|failure| failure.words.as_str()));
        answer.map_err(|failure| of_node(node, &failure))
    }

    /// What an instance must know that fetches it: the gateways themselves, for nothing leads
    /// there.
    ///
    /// # Errors
    /// The store's; if there are no grants any longer.
    pub fn attachment(&self, instance: &InstanceRow) -> Result<Attachment, Failure> {
        let cgpus = self.store.instance_cgpus(&instance.id)?;
        let vm = vm_spec(instance, &cgpus);
        let mut gateways = Vec::new();
        for (masked, grants) in vm.gateways {
            let node = cgpus.iter().find(|cgpu| cgpu.masked.as_ref() == Some(&masked));
            let node = node.map(|cgpu| self.store.node(&cgpu.node)).transpose()?.flatten();
            let gone = || Failure::passing("a node of the instance is not known any longer");
            gateways.push(Gateway { address: node.ok_or_else(gone)?.gateway, grants });
        }
        let is_masked = |name: &str| name.starts_with("CGPU_");
        let variables = vm.environment.into_iter().filter(|(name, _)| !is_masked(name));
        let environment = variables.map(|(name, value)| Variable { name, value }).collect();
        Ok(Attachment { environment, gateways })
    }

    /// What the endpoint of an instance's host is to hold.
    ///
    /// # Errors
    /// The store's.
    pub fn rows(
        &self,
        instance: &InstanceRow,
        cgpus: &[CgpuRow],
    ) -> Result<Vec<GrantRow>, Failure> {
        let mut gateways = BTreeMap::new();
        for node in by_node(cgpus).into_keys() {
            if let Some(found) = self.store.node(node)? {
                gateways.insert(node.to_owned(), found.gateway);
            }
        }
        Ok(rules::rows(instance, cgpus, &gateways))
    }
}

fn of_node(node: &str, failure: &Failure) -> Failure {
    Failure { words: format!("node {node}: {}", failure.words), ..*failure }
}

fn vgpus(instance: &InstanceRow, cgpus: &[&CgpuRow]) -> Vec<VgpuSpec> {
    let vgpu = |cgpu: &&CgpuRow| VgpuSpec {
        name: cgpu.vgpu(),
        device: cgpu.device.clone(),
        weight: cgpu.weight,
        memory_mib: cgpu.memory_mib,
        sla_us: instance.spec.sla_us,
    };
    cgpus.iter().map(vgpu).collect()
}

fn by_node(cgpus: &[CgpuRow]) -> BTreeMap<&str, Vec<&CgpuRow>> {
    let mut found: BTreeMap<&str, Vec<&CgpuRow>> = BTreeMap::new();
    for cgpu in cgpus {
        found.entry(&cgpu.node).or_default().push(cgpu);
    }
    found
}

/// What a VM will be told, as far as that is known before anything is reserved: cGPUs of one node,
/// and grants that are as long as any are.
#[must_use]
pub fn outline(spec: &Spec) -> VmSpec {
    let id = "i".repeat(ID_CHARS);
    let vgpu = |ordinal| format!("{VGPU_PREFIX}{id}-{ordinal}");
    let names: Vec<String> = (0..spec.cgpus).map(vgpu).collect();
    let masked = "169.254.255.255:18515".to_owned();
    let mut environment = vec![
        ("CGPUS".to_owned(), spec.cgpus.to_string()),
        ("INSTANCE".to_owned(), id.clone()),
        ("WEFT_VGPU_0".to_owned(), names.join(",")),
    ];
    environment.extend((0..spec.cgpus).map(|at| (format!("CGPU_{at}"), masked.clone())));
    let grants = vec!["g".repeat(GRANT_CHARS); spec.cgpus as usize];
    VmSpec {
        name: id.clone(),
        id,
        project: String::new(),
        slot: 0,
        cgpus: spec.cgpus,
        host: None,
        environment,
        gateways: vec![(masked, grants)],
        nodes: BTreeMap::new(),
        user_data: spec.user_data.clone(),
        machine: spec.machine.clone(),
    }
}

/// What the VM is told: an address for each cGPU, and the grants.
fn vm_spec(instance: &InstanceRow, cgpus: &[CgpuRow]) -> VmSpec {
    let mut environment = vec![
        ("CGPUS".to_owned(), cgpus.len().to_string()),
        ("INSTANCE".to_owned(), instance.id.clone()),
    ];
    let mut gateways: Vec<(String, Vec<String>)> = Vec::new();
    for cgpu in cgpus {
        let Some(masked) = &cgpu.masked else { continue };
        environment.push((format!("CGPU_{}", cgpu.ordinal), masked.clone()));
        let token = cgpu.token.clone().unwrap_or_default();
        match gateways.iter_mut().find(|(known, _)| known == masked) {
            Some((_, tokens)) => tokens.push(token),
            None => gateways.push((masked.clone(), vec![token])),
        }
    }
    for (number, (masked, _)) in gateways.iter().enumerate() {
        let of_it = cgpus.iter().filter(|cgpu| cgpu.masked.as_ref() == Some(masked));
        let names: Vec<String> = of_it.map(CgpuRow::vgpu).collect();
        environment.push((format!("WEFT_VGPU_{number}"), names.join(",")));
    }
    VmSpec {
        id: instance.id.clone(),
        name: instance.name.clone(),
        project: instance.project.clone(),
        slot: instance.slot,
        cgpus: instance.spec.cgpus,
        host: instance.spec.host.clone(),
        environment,
        gateways,
        nodes: BTreeMap::new(),
        user_data: instance.spec.user_data.clone(),
        machine: instance.spec.machine.clone(),
    }
}
