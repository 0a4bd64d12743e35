//! The trait, call by call, for every database.

use std::time::Instant;

use weft_api::v1::{AuditEntry, Event, Project, Quota};

use super::endpoints;
use super::instances::{self, Which};
use super::registry::{self, add_audit};
use super::{Base, Link, int};
use crate::clock;
use crate::store::shared::number;
use crate::store::{
    Audit, CgpuRow, Counts, Done, EndpointRow, GpuFound, GpuRow, InstanceRow, Key, Leading,
    NodeRow, OperationRow, Part, Reservation, Store, StoreError, Taken, Ticket, TokenRow, Wanted,
};

type Rows<T> = Result<Vec<(String, T)>, StoreError>;

/// Whoever acts leaves a trace in the transaction in which it is done.
fn note(link: &mut impl Link, audit: Option<&Audit>) -> Result<(), StoreError> {
    audit.map_or(Ok(()), |audit| add_audit(link, audit))
}

impl<B: Base> Store for B {
    fn check(&self) -> Result<(), StoreError> {
        // Anybody may ask this as often as they like, and a write takes the disk. Whether one that
        // failed would come to something now, only another one tells.
        if self.holder() == Leading::Here {
            self.writer().ensure_moving(Instant::now())?;
        }
        if self.holder() != Leading::Here || !self.writer().has_failed() {
            return self.read(|link| link.one("SELECT at_ms FROM written", &[]).map(drop));
        }
        let ticket = self.writer().begin(|link| {
            link.change("UPDATE written SET at_ms = $1", &[int(clock::now_ms())?.into()])?;
            Ok(())
        });
        ticket.wait()
    }

    fn plane(&self) -> &str {
        self.name()
    }

    fn leading(&self) -> Leading {
        self.holder()
    }

    fn token(&self, digest: &[u8; 32]) -> Result<Option<TokenRow>, StoreError> {
        self.read(|link| registry::token(link, digest))
    }

    fn tokens(&self, part: &Part) -> Rows<TokenRow> {
        self.read(|link| registry::tokens(link, part))
    }

    fn add_token(
        &self,
        token: &TokenRow,
        digest: [u8; 32],
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (token, audit) = (token.clone(), audit.cloned());
        let ticket = self.writer().begin(move |link| {
            registry::add_token(link, &token, &digest)?;
            note(link, audit.as_ref())
        });
        ticket.wait()
    }

    fn replace_token(
        &self,
        token: &TokenRow,
        digest: [u8; 32],
        audit: &Audit,
    ) -> Result<(), StoreError> {
        let (token, audit) = (token.clone(), audit.clone());
        let ticket = self.writer().begin(move |link| {
            registry::replace_token(link, &token, &digest)?;
            add_audit(link, &audit)
        });
        ticket.wait()
    }

    fn remove_token(&self, name: &str, audit: &Audit) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.clone());
        let ticket = self.writer().begin(move |link| {
            registry::remove_token(link, &name, audit.at_ms)?;
            add_audit(link, &audit)
        });
        ticket.wait()
    }

    fn project(&self, name: &str) -> Result<Option<(Quota, Quota)>, StoreError> {
        self.read(|link| registry::project_of(link, name))
    }

    fn projects(&self, part: &Part) -> Rows<Project> {
        self.read(|link| registry::projects(link, part))
    }

    fn put_project(
        &self,
        name: &str,
        quota: Quota,
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.cloned());
        let ticket = self.writer().begin(move |link| {
            registry::put_project(link, &name, quota)?;
            note(link, audit.as_ref())
        });
        ticket.wait()
    }

    fn node(&self, name: &str) -> Result<Option<NodeRow>, StoreError> {
        self.read(|link| registry::node(link, name))
    }

    fn nodes(&self, part: &Part) -> Rows<NodeRow> {
        self.read(|link| registry::nodes(link, part))
    }

    fn put_node(
        &self,
        node: &NodeRow,
        gpus: &[GpuFound],
        audit: Option<&Audit>,
    ) -> Result<(), StoreError> {
        let (node, gpus, audit) = (node.clone(), gpus.to_vec(), audit.cloned());
        let now_ms = clock::now_ms();
        let ticket = self.writer().begin(move |link| {
            registry::put_node(link, &node, &gpus, now_ms)?;
            note(link, audit.as_ref())
        });
        ticket.wait()
    }

    fn set_gateway(&self, node: &str, gateway: &str) -> Result<(), StoreError> {
        let (node, gateway) = (node.to_owned(), gateway.to_owned());
        let ticket = self.writer().begin(move |link| registry::set_gateway(link, &node, &gateway));
        ticket.wait()
    }

    fn remove_node(&self, name: &str, audit: &Audit) -> Result<(), StoreError> {
        let (name, audit) = (name.to_owned(), audit.clone());
        let ticket = self.writer().begin(move |link| {
            registry::remove_node(link, &name)?;
            add_audit(link, &audit)
        });
        ticket.wait()
    }

    fn endpoints(&self, part: &Part) -> Rows<EndpointRow> {
        self.read(|link| endpoints::endpoints(link, part))
    }

    fn endpoint(&self, host: &str) -> Result<Option<EndpointRow>, StoreError> {
        self.read(|link| endpoints::endpoint(link, host))
    }

    fn put_endpoints(&self, endpoints: &[(String, String)]) -> Result<(), StoreError> {
        let (endpoints, now_ms) = (endpoints.to_vec(), clock::now_ms());
        let ticket =
            self.writer().begin(move |link| endpoints::put_endpoints(link, &endpoints, now_ms));
        ticket.wait()
    }

    fn set_endpoint(
        &self,
        host: &str,
        in_service: bool,
        audit: &Audit,
    ) -> Result<EndpointRow, StoreError> {
        let (host, audit) = (host.to_owned(), audit.clone());
        let ticket = self.writer().begin(move |link| {
            add_audit(link, &audit)?;
            endpoints::set_endpoint(link, &host, in_service)
        });
        ticket.wait()
    }

    fn remove_endpoint(&self, host: &str, audit: &Audit) -> Result<Vec<String>, StoreError> {
        let (host, audit) = (host.to_owned(), audit.clone());
        let ticket =
            self.writer().begin(move |link| endpoints::remove_endpoint(link, &host, &audit));
        ticket.wait()
    }

    fn placed(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.read(endpoints::placed)
    }

    fn gpu(&self, id: u32) -> Result<Option<GpuRow>, StoreError> {
        self.read(|link| registry::gpu(link, id))
    }

    fn gpus(&self, part: &Part) -> Rows<GpuRow> {
        self.read(|link| registry::gpus(link, part))
    }

    fn inventory(&self) -> Ticket<Vec<(NodeRow, Vec<GpuRow>)>> {
        self.writer().begin(registry::inventory)
    }

    fn taken(&self) -> Ticket<Vec<Taken>> {
        self.writer().begin(instances::taken)
    }

    fn see_gpus(&self, node: &str, gpus: &[GpuFound], now_ms: u64) -> Result<bool, StoreError> {
        if self.read(|link| registry::are_seen(link, node, gpus))? {
            return Ok(false);
        }
        let (node, gpus) = (node.to_owned(), gpus.to_vec());
        let see = move |link: &mut B::Link| registry::see_gpus(link, &node, &gpus, now_ms);
        self.writer().begin(see).wait().map(|()| true)
    }

    fn remove_gpu(&self, id: u32, audit: &Audit) -> Result<(), StoreError> {
        let audit = audit.clone();
        let ticket = self.writer().begin(move |link| {
            registry::remove_gpu(link, id)?;
            add_audit(link, &audit)
        });
        ticket.wait()
    }

    fn set_gpu(&self, id: u32, in_service: bool, audit: &Audit) -> Ticket<GpuRow> {
        let audit = audit.clone();
        self.writer().begin(move |link| {
            add_audit(link, &audit)?;
            registry::set_gpu(link, id, in_service)
        })
    }

    fn reserve(&self, reservation: Reservation) -> Ticket<InstanceRow> {
        self.writer().begin(move |link| instances::reserve(link, &reservation))
    }

    fn reserve_all(&self, wanted: Vec<Reservation>) -> Ticket<Vec<InstanceRow>> {
        self.writer().begin(move |link| instances::reserve_all(link, &wanted))
    }

    fn launches(&self, project: &str, now_ms: u64) -> Result<u64, StoreError> {
        self.read(|link| instances::launches(link, project, now_ms))
    }

    fn repeated(&self, key: &Key, now_ms: u64) -> Result<Vec<String>, StoreError> {
        self.read(|link| instances::repeated(link, key, now_ms))
    }

    fn instance(&self, id: &str) -> Result<Option<InstanceRow>, StoreError> {
        self.read(|link| instances::find(link, id))
    }

    fn instances(&self, part: &Part) -> Rows<InstanceRow> {
        let after = number(part)?;
        self.read(|link| instances::shown(link, part, after))
    }

    fn unsettled(&self) -> Result<Vec<String>, StoreError> {
        self.read(instances::unsettled)
    }

    fn live(&self) -> Result<Vec<String>, StoreError> {
        self.read(instances::live)
    }

    fn instance_cgpus(&self, instance: &str) -> Result<Vec<CgpuRow>, StoreError> {
        self.read(|link| instances::cgpus_of(link, instance))
    }

    fn cgpus(&self, part: &Part) -> Rows<CgpuRow> {
        let after = number(part)?;
        self.read(|link| instances::cgpus(link, part, after, Which::Live))
    }

    fn usage(&self, part: &Part) -> Rows<CgpuRow> {
        let after = number(part)?;
        self.read(|link| instances::cgpus(link, part, after, Which::All))
    }

    fn newest_usage(&self, project: Option<&str>, limit: u32) -> Result<Vec<CgpuRow>, StoreError> {
        self.read(|link| instances::newest(link, project, limit))
    }

    fn mark(&self, instance: &str, done: &[Done]) -> Result<(), StoreError> {
        let (instance, done) = (instance.to_owned(), done.to_vec());
        let mark = move |link: &mut B::Link| {
            done.iter().try_for_each(|done| instances::mark(link, &instance, done))
        };
        self.writer().begin(mark).wait()
    }

    fn keep_used(&self, used_ns: &[(String, u64)]) -> Result<(), StoreError> {
        let used_ns = used_ns.to_vec();
        self.writer().begin(move |link| instances::keep_used(link, &used_ns)).wait()
    }

    fn tell(&self, instance: &str, event: &Event) -> Result<(), StoreError> {
        let (instance, event) = (instance.to_owned(), event.clone());
        self.writer().begin(move |link| instances::tell(link, &instance, &event)).wait()
    }

    fn renounce(
        &self,
        instance: &str,
        failure: Option<&str>,
        audit: Option<&Audit>,
    ) -> Result<InstanceRow, StoreError> {
        let (instance, audit) = (instance.to_owned(), audit.cloned());
        let failure = failure.map(str::to_owned);
        let ticket = self.writer().begin(move |link| {
            // Whoever says it again has done nothing.
            let found = instances::find(link, &instance)?;
            if found.is_some_and(|found| found.wanted == Wanted::Present) {
                note(link, audit.as_ref())?;
            }
            instances::renounce(link, &instance, failure.as_deref(), audit.as_ref())
        });
        ticket.wait()
    }

    fn release(&self, instance: &str, now_ms: u64, event: &Event) -> Ticket<()> {
        let (instance, event) = (instance.to_owned(), event.clone());
        self.writer().begin(move |link| instances::release(link, &instance, now_ms, &event))
    }

    fn give_quota_back(&self, instance: &str, event: &Event) -> Result<(), StoreError> {
        let (instance, event) = (instance.to_owned(), event.clone());
        self.writer().begin(move |link| instances::give_quota_back(link, &instance, &event)).wait()
    }

    fn recount(&self) -> Result<(), StoreError> {
        self.writer().begin(instances::recount).wait()
    }

    fn hide(&self, instance: &str, audit: &Audit) -> Result<(), StoreError> {
        let (instance, audit) = (instance.to_owned(), audit.clone());
        let ticket = self.writer().begin(move |link| {
            // Whoever asks again and again would fill the audit.
            if instances::hide(link, &instance)? { add_audit(link, &audit) } else { Ok(()) }
        });
        ticket.wait()
    }

    fn forget(&self, before_ms: u64, most: u32) -> Result<u64, StoreError> {
        self.writer().begin(move |link| instances::forget(link, before_ms, most)).wait()
    }

    fn operation(&self, id: &str) -> Result<Option<(OperationRow, Vec<Event>)>, StoreError> {
        self.snapshot(|link| instances::operation(link, id))
    }

    fn note(&self, audit: &Audit) -> Result<(), StoreError> {
        let audit = audit.clone();
        self.writer().begin(move |link| add_audit(link, &audit)).wait()
    }

    fn audit(&self, part: &Part) -> Rows<AuditEntry> {
        self.read(|link| registry::audit(link, part))
    }

    fn newest_audit(&self, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        self.read(|link| registry::newest_audit(link, limit))
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        self.snapshot(registry::counts)
    }
}
