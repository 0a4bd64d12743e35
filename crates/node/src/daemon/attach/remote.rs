//! Another host: the gateway shows a grant at the tenant socket, for the endpoint that showed it to
//! the gateway. Whose process the gateway is says nothing; the grant says whose session it becomes.
//! The server of a virtual machine may show grants, too ([`super::vm`]).

use std::net::IpAddr;

use anyhow::Context as _;
use weft_ring::peer::Credentials;
use weft_wire::handshake::{HelloBody, RefusalCode};
use weft_wire::remote::{Grant, GrantBody, NoGrant, to_hex};

use super::gateway::Gateway;
use super::grants::{self, GrantError, Grants};
use super::{Attachment, Client};
use crate::admin::{GrantReport, GrantRequest};
use crate::config::{NAME_RULE, NodeConfig, is_vgpu_name};
use crate::daemon::Daemon;
use crate::daemon::registry::{Change, Vgpu, Wanted};
use crate::daemon::roles::{self, Caller};
use crate::daemon::sessions::Refusal;

/// The longest time for which a grant may be good.
const VALID_S_MAX: u64 = 30 * 24 * 3600;

/// What lets programs of other hosts in, and through which process they come.
#[derive(Debug)]
pub(crate) struct Remote {
    grants: Grants,
    pub(in crate::daemon) gateway: Gateway,
}

impl Remote {
    /// As configured, with what the state directory keeps.
    pub(crate) fn open(config: &NodeConfig) -> anyhow::Result<Self> {
        let grants = Grants::open(&config.state_dir)
            .with_context(|| format!("cannot use {}", config.state_dir.display()))?;
        Ok(Self { grants, gateway: Gateway::new(&config.remote) })
    }
}

/// What a grant grants now to who shows it: its vGPU is there, and still of the same owner. One
/// that grants nothing now is not used by being shown.
pub(super) fn granted(daemon: &Daemon, shown: &(Grant, [u8; 32])) -> Result<GrantBody, Refusal> {
    let (grants, now_s) = (&daemon.remote.grants, grants::now_s());
    let seal_of = |name: &str| daemon.tables().registry.find(name).ok().and_then(|vgpu| vgpu.seal);
    let body = grants.verify(&shown.0, seal_of, now_s)?;
    let tables = daemon.tables();
    let is_there = !tables.is_being_removed(&body.vgpu);
    let found = tables.registry.find(&body.vgpu).ok().filter(|_| is_there);
    let now_of = found.map(|vgpu| vgpu.owner);
    drop(tables);
    if now_of != Some(body.owner) {
        let message = format!(
            "vGPU `{}` of the grant {} is not there: it was removed or is another user's (get a \
             new grant with `weft token`), or it is not made yet",
            body.vgpu,
            shown.0.beginning()
        );
        return Err(Refusal { code: RefusalCode::Permission, message });
    }
    grants.admit(shown, &body, now_s)?;
    Ok(body)
}

impl From<NoGrant> for Refusal {
    fn from(error: NoGrant) -> Self {
        Self { code: RefusalCode::Permission, message: error.to_string() }
    }
}

impl From<GrantError> for Refusal {
    fn from(error: GrantError) -> Self {
        let code = match &error {
            GrantError::Forged(_) | GrantError::Expired { .. } | GrantError::Used { .. } => {
                RefusalCode::Permission
            }
            GrantError::Full | GrantError::Disk(_) => RefusalCode::Exhausted,
        };
        Self { code, message: error.to_string() }
    }
}

/// What a program asks for that comes with a grant: its vGPU, as it is.
pub(super) fn on_vgpu(hello: HelloBody, vgpu: String) -> HelloBody {
    HelloBody { vgpu, weight: 0, memory_bytes: 0, token: String::new(), ..hello }
}

/// Whether a connection is the gateway's, whose word for where a program is is taken; other
/// processes may relay with a grant as well. An earlier daemon's gateway serves on.
pub(super) fn is_gateway(daemon: &Daemon, relay: &Credentials) -> bool {
    let own = || rustix::process::geteuid().as_raw();
    relay.uid == daemon.config.gateway_user().unwrap_or_else(own)
}

/// The attachment of an endpoint's program.
pub(super) fn redeem(
    daemon: &Daemon,
    hello: HelloBody,
    (gateway, host): (&Credentials, Option<IpAddr>),
    shown: &(Grant, [u8; 32]),
) -> Result<Attachment, Refusal> {
    let GrantBody { vgpu, owner, .. } = granted(daemon, shown)?;
    if !hello.vgpu.is_empty() && hello.vgpu != vgpu {
        let message = format!(
            "the grant {} is for vGPU `{vgpu}`, not for `{}`: leave WEFT_VGPU out, or get a grant \
             for that one",
            shown.0.beginning(),
            hello.vgpu
        );
        return Err(Refusal { code: RefusalCode::Permission, message });
    }
    if hello.is_question() {
        let message = "the grant is good, and no session was asked for".into();
        return Err(Refusal { code: RefusalCode::OnlyAsked, message });
    }
    let tenant = Credentials { pid: gateway.pid, uid: owner, gid: owner };
    Ok(Attachment { hello: on_vgpu(hello, vgpu), tenant, client: Client::Elsewhere { host } })
}

impl Daemon {
    /// Makes a grant for a vGPU, and the vGPU if it is not there.
    pub(crate) fn make_grant(
        &self,
        asked: GrantRequest,
        caller: Caller,
    ) -> anyhow::Result<GrantReport> {
        let server = self.grantable(&asked)?;
        let GrantRequest { name, weight, memory_bytes, .. } = &asked;
        let (weight, memory_bytes) = (*weight, *memory_bytes);
        let is_there = self.tables().registry.find(name).is_ok();
        if !is_there {
            let wanted = Wanted {
                name: name.clone(),
                owner: caller.uid,
                weight: weight.unwrap_or(0),
                memory_bytes: memory_bytes.unwrap_or(0),
                ..Wanted::default()
            };
            let chosen = Change { weight, memory_bytes, ..Change::default() };
            self.create_vgpu(wanted, &chosen, caller)?;
        }
        let vgpu = self.tables().registry.find(name)?.clone();
        roles::permit_grant(caller, &vgpu)?;
        anyhow::ensure!(
            vgpu.token.is_none(),
            "vGPU `{name}` has an attach token, which programs of other hosts cannot show; make \
             another vGPU for them"
        );
        let (differs, word) = match (weight, memory_bytes) {
            (Some(weight), _) if weight != vgpu.weight => (true, "weight"),
            (_, Some(bytes)) if bytes != vgpu.memory_bytes => (true, "memory"),
            _ => (false, ""),
        };
        anyhow::ensure!(
            !differs,
            "vGPU `{name}` is there already with another {word}: change it with `weft set`, or \
             leave --{word} out"
        );
        let Vgpu { owner, weight, memory_bytes, .. } = vgpu;
        let seal = self.tables().registry.seal(name, grants::random()?)?;
        anyhow::ensure!(
            self.save_registry(),
            "what the grant is signed with cannot be kept: make room on the disk of the state \
             directory"
        );
        let body = body(asked, owner, server)?;
        self.sign(&GrantBody { weight, memory_bytes, ..body }, Some(seal), caller)
    }

    /// Makes a grant for a vGPU that `caller` will make, if it is not there. Whoever shows it
    /// before then is refused.
    pub(crate) fn grant_ahead(
        &self,
        asked: GrantRequest,
        caller: Caller,
    ) -> anyhow::Result<GrantReport> {
        let server = self.grantable(&asked)?;
        anyhow::ensure!(is_vgpu_name(&asked.name), "`{}` is no name: {NAME_RULE}", asked.name);
        let there = self.tables().registry.find(&asked.name).map(|vgpu| vgpu.owner);
        self.sign(&body(asked, there.unwrap_or(caller.uid), server)?, None, caller)
    }

    /// What is asked for can be granted; by whose gateway.
    fn grantable(&self, asked: &GrantRequest) -> anyhow::Result<[u8; 32]> {
        let server = self.remote.gateway.key()?;
        anyhow::ensure!(
            (1..=VALID_S_MAX).contains(&asked.valid_s),
            "a grant is good for a second to 30 days"
        );
        anyhow::ensure!(asked.uses > 0, "a grant that nobody may use is of no use: --uses 1");
        anyhow::ensure!(
            asked.uses <= grants::USES_MAX,
            "a grant is good for {} endpoints at most: who used it is remembered",
            grants::USES_MAX
        );
        Ok(server)
    }

    fn sign(
        &self,
        body: &GrantBody,
        seal: Option<[u8; 16]>,
        caller: Caller,
    ) -> anyhow::Result<GrantReport> {
        let is_ahead = seal.is_none();
        let grant = self.remote.grants.issue(body, seal)?;
        let GrantBody { vgpu, weight, memory_bytes, uses, expires_s, server, .. } = body.clone();
        let (which, uid) = (grant.beginning(), caller.uid);
        // A control plane asks for dozens at once, and notes for whom.
        if is_ahead {
            tracing::debug!(grant = which, vgpu, uid, uses, expires_s, "grant made ahead");
        } else {
            tracing::info!(grant = which, vgpu, uid, uses, expires_s, "grant made");
        }
        Ok(GrantReport {
            grant: grant.to_text(),
            vgpu,
            weight,
            memory_bytes,
            uses,
            expires_s,
            listen: self.remote.gateway.address().map(|address| address.to_string()),
            gateway_key: to_hex(&server),
        })
    }
}

/// What a grant says, of weight and memory what was asked for.
fn body(asked: GrantRequest, owner: u32, server: [u8; 32]) -> anyhow::Result<GrantBody> {
    let GrantRequest { name, weight, memory_bytes, valid_s, uses } = asked;
    Ok(GrantBody {
        id: grants::random()?,
        vgpu: name,
        owner,
        weight: weight.unwrap_or(0),
        memory_bytes: memory_bytes.unwrap_or(0),
        uses,
        expires_s: grants::now_s().saturating_add(valid_s),
        server,
    })
}
