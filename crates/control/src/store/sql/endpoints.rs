//! Endpoints of compute hosts.

use super::instances;
use super::registry::add_audit;
use super::{Link, Row, int};
use crate::store::{Audit, EndpointRow, Found, Part, REMOVED, StoreError};

/// A query of endpoints.
macro_rules! endpoints {
    ($rest:literal) => {
        concat!("SELECT host, socket, in_service, created_ms FROM endpoints ", $rest)
    };
}

fn endpoint_row(row: &Row) -> Result<EndpointRow, StoreError> {
    Ok(EndpointRow {
        host: row.text(0)?,
        socket: row.text(1)?,
        in_service: row.flag(2)?,
        created_ms: row.int(3)?,
    })
}

/// The endpoint of a host.
pub(super) fn endpoint(
    link: &mut impl Link,
    host: &str,
) -> Result<Option<EndpointRow>, StoreError> {
    let row = link.one(endpoints!("WHERE host = $1"), &[host.into()])?;
    row.map(|row| endpoint_row(&row)).transpose()
}

/// Endpoints by host.
pub(super) fn endpoints(
    link: &mut impl Link,
    part: &Part,
) -> Result<Vec<(String, EndpointRow)>, StoreError> {
    let rows = link.all(
        endpoints!("WHERE host > coalesce($1, '') ORDER BY host LIMIT $2"),
        &[part.after.as_deref().into(), part.limit.into()],
    )?;
    let with_cursor = |row| endpoint_row(row).map(|one| (one.host.clone(), one));
    rows.iter().map(with_cursor).collect()
}

/// Uses endpoints, by host and socket.
pub(super) fn put_endpoints(
    link: &mut impl Link,
    endpoints: &[(String, String)],
    now_ms: u64,
) -> Result<(), StoreError> {
    for (host, socket) in endpoints {
        link.change(
            "INSERT INTO endpoints (host, socket, created_ms) VALUES ($1, $2, $3)
             ON CONFLICT (host) DO UPDATE SET socket = $2",
            &[host.into(), socket.into(), int(now_ms)?.into()],
        )?;
    }
    Ok(())
}

/// Drains an endpoint, or puts it back into service.
pub(super) fn set_endpoint(
    link: &mut impl Link,
    host: &str,
    in_service: bool,
) -> Result<EndpointRow, StoreError> {
    let change = "UPDATE endpoints SET in_service = $2 WHERE host = $1";
    link.change(change, &[host.into(), in_service.into()])?;
    endpoint(link, host)?.ok_or_else(|| missing(host))
}

fn missing(host: &str) -> StoreError {
    StoreError::Missing(format!("the endpoint of host {host}"))
}

/// Forgets an endpoint; instances that it leads are to be removed from here on, if it was drained.
pub(super) fn remove_endpoint(
    link: &mut impl Link,
    host: &str,
    audit: &Audit,
) -> Result<Vec<String>, StoreError> {
    let found = endpoint(link, host)?.ok_or_else(|| missing(host))?;
    let placed = placed(link)?.into_iter().filter(|(_, on)| on == host);
    let on: Vec<String> = placed.map(|(instance, _)| instance).collect();
    if found.in_service && !on.is_empty() {
        let vms = on.len();
        return Err(StoreError::InUse(format!(
            "the endpoint of host {host} (VMs that it leads: {vms})"
        )));
    }
    let why = format!("the endpoint of host {host}{REMOVED}");
    for instance in &on {
        instances::renounce(link, instance, Some(&why), None)?;
    }
    link.change("DELETE FROM endpoints WHERE host = $1", &[host.into()])?;
    add_audit(link, audit)?;
    Ok(on)
}

/// Live instances that an endpoint leads, with its host: those on a host but for what had a relay
/// before the endpoint was there.
pub(super) fn placed(link: &mut impl Link) -> Result<Vec<(String, String)>, StoreError> {
    let rows =
        link.all("SELECT id, found FROM instances WHERE ended_ms IS NULL ORDER BY seq", &[])?;
    let mut placed = Vec::new();
    for row in &rows {
        let found: Found = serde_json::from_str(&row.text(1)?)?;
        let is_led = found.port.is_none_or(|port| port.is_led());
        if let Some(host) = found.host.filter(|_| is_led) {
            placed.push((row.text(0)?, host));
        }
    }
    Ok(placed)
}
