//! Prometheus metrics: the text, and a server for it on the loopback interface.

mod bounded;

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use self::bounded::Bounded;
use crate::admin::{
    CoschedulingReport, DeviceReport, GatewayHealth, Stats, TaskCounts, VgpuReport,
};
use crate::daemon::Daemon;

/// Connections that may be open at once.
const CONNECTIONS_MAX: usize = 32;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// The metrics as Prometheus text.
pub(crate) fn text(stats: &Stats) -> String {
    let mut page = Page(String::new());
    let (kind, help) = ("counter", "device time that was occupied");
    page.devices(stats, "weft_device_busy_seconds_total", kind, help, |device| {
        seconds(device.busy_ns)
    });
    page.devices(stats, "weft_device_memory_bytes", "gauge", "memory of the device", |device| {
        device.memory_bytes.to_string()
    });
    let help = "1 while vGPUs may use the device";
    page.devices(stats, "weft_device_in_service", "gauge", help, |device| {
        u8::from(device.in_service).to_string()
    });
    let help = "1 while it is out of service because it fails";
    page.devices(stats, "weft_device_failed", "gauge", help, |device| {
        u8::from(device.failure.is_some()).to_string()
    });
    let help = "memory allocated to vGPUs";
    page.devices(stats, "weft_device_memory_used_bytes", "gauge", help, |device| {
        device.memory_used_bytes.to_string()
    });
    let help = "executions longer than the model";
    page.devices(stats, "weft_device_overruns_total", kind, help, |device| {
        device.overruns.to_string()
    });
    let help = "executions that began too late to be in time";
    page.devices(stats, "weft_device_late_total", kind, help, |device| device.late.to_string());
    page.exchanges(stats);
    page.head("weft_charged_seconds_total", "counter", "device time charged to vGPUs");
    page.sample("weft_charged_seconds_total", "", &seconds(stats.closure.charged_ns));
    page.head("weft_vgpus_waiting", "gauge", "vGPUs that wait for a device");
    page.sample("weft_vgpus_waiting", "", &stats.waiting.to_string());
    page.head("weft_journal_lost_records_total", "counter", "records missing in journals");
    page.sample("weft_journal_lost_records_total", "", &stats.lost_records.to_string());
    page.coscheduling(&stats.coscheduling);
    page.vgpus(stats, "weft_vgpu_used_seconds_total", "counter", "device time charged", |vgpu| {
        seconds(vgpu.used_ns)
    });
    page.vgpus(stats, "weft_vgpu_weight", "gauge", "weight", |vgpu| vgpu.weight.to_string());
    page.vgpus(stats, "weft_vgpu_memory_bytes", "gauge", "memory quota", |vgpu| {
        vgpu.memory_bytes.to_string()
    });
    page.vgpus(stats, "weft_vgpu_memory_used_bytes", "gauge", "memory allocated", |vgpu| {
        vgpu.memory_used_bytes.to_string()
    });
    page.vgpus(stats, "weft_vgpu_sla_seconds", "gauge", "SLA; 0 of batch vGPUs", |vgpu| {
        seconds(vgpu.sla_ns)
    });
    let help = "times that a user-facing vGPU got work and had it done";
    page.vgpus(stats, "weft_vgpu_responses_total", "counter", help, |vgpu| {
        vgpu.attainment.count.to_string()
    });
    let help = "those within the SLA";
    page.vgpus(stats, "weft_vgpu_responses_in_time_total", "counter", help, |vgpu| {
        vgpu.attainment.in_time.to_string()
    });
    page.vgpus(stats, "weft_vgpu_sessions", "gauge", "sessions", |vgpu| vgpu.sessions.to_string());
    page.vgpus(stats, "weft_vgpu_turns_total", "counter", "turns on the device", |vgpu| {
        vgpu.turns.to_string()
    });
    page.accelerators(stats);
    stats.gateway.iter().for_each(|health| page.gateway(health));
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: &str) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn coscheduling(&mut self, report: &CoschedulingReport) {
        self.head("weft_coscheduling_info", "gauge", "how waiting threads are helped");
        let means = format!("{{means=\"{}\"}}", report.means);
        self.sample("weft_coscheduling_info", &means, "1");
        for (name, help, value) in [
            ("weft_boosts_total", "waiting threads boosted", report.boosts),
            ("weft_boosts_ended_by_daemon_total", "boosts ended late", report.ended_by_daemon),
            ("weft_boosts_expired_total", "boosts ended by the watchdog", report.ended_by_watchdog),
            ("weft_boosts_capped_total", "boosts forbidden by a bound", report.capped),
            ("weft_boosts_refused_total", "threads not the tenant's own", report.refused),
            ("weft_early_wakes_total", "threads woken at a switch", report.wakes),
        ] {
            self.head(name, "counter", help);
            self.sample(name, "", &value.to_string());
        }
        self.head("weft_boosted_seconds_total", "counter", "time that threads ran boosted");
        self.sample("weft_boosted_seconds_total", "", &seconds(report.boosted_ns));
    }

    fn gateway(&mut self, health: &GatewayHealth) {
        let listens = u64::from(health.listens);
        for (name, kind, help, value) in [
            ("weft_gateway_listens", "gauge", "1 while it listens and answers", listens),
            ("weft_gateway_ends_total", "counter", "times that it ended", health.ends),
            ("weft_gateway_hangs_total", "counter", "those for want of an answer", health.hangs),
        ] {
            self.head(name, kind, help);
            self.sample(name, "", &value.to_string());
        }
    }

    fn devices(
        &mut self,
        stats: &Stats,
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&DeviceReport) -> String,
    ) {
        self.head(name, kind, help);
        for device in &stats.devices {
            // Names of devices have the same characters.
            self.sample(name, &format!("{{device=\"{}\"}}", device.name), &value(device));
        }
    }

    /// What slots of devices' memory are written for.
    fn exchanges(&mut self, stats: &Stats) {
        type Value = fn(&DeviceReport) -> String;
        let figures: [(&str, &str, Value); 4] = [
            ("weft_device_memory_switches_total", "times that a vGPU's memory was brought", |of| {
                of.memory.switches.to_string()
            }),
            ("weft_device_memory_slots_written_total", "slots written for that", |of| {
                of.memory.copied_slots.to_string()
            }),
            ("weft_device_memory_faults_total", "operations that met memory elsewhere", |of| {
                of.memory.faults.to_string()
            }),
            ("weft_device_memory_exchange_seconds_total", "time that bringing it took", |of| {
                seconds(of.memory.copying_ns)
            }),
        ];
        for (name, help, value) in figures {
            self.devices(stats, name, "counter", help, value);
        }
    }

    fn accelerators(&mut self, stats: &Stats) {
        type Value = fn(&TaskCounts) -> u64;
        let figures: [(&str, &str, &str, Value); 10] = [
            ("weft_tasks_waiting", "gauge", "tasks that wait for a device", |of| of.waiting),
            ("weft_tasks_running", "gauge", "tasks that are on a device", |of| of.running),
            ("weft_tasks_done_total", "counter", "tasks that were done", |of| of.done),
            ("weft_tasks_in_time_total", "counter", "those within the SLA", |of| of.in_time),
            ("weft_tasks_failed_total", "counter", "tasks that ended with an error", |of| {
                of.failed
            }),
            ("weft_tasks_dropped_total", "counter", "tasks nobody wanted any more", |of| {
                of.dropped
            }),
            ("weft_tasks_stops_total", "counter", "tasks stopped for another", |of| of.stops),
            ("weft_tasks_losses_total", "counter", "tasks that began anew", |of| of.losses),
            ("weft_tasks_resets_total", "counter", "those for another's sake", |of| of.resets),
            ("weft_tasks_longest_ns", "gauge", "longest time of a task, in ns", |of| of.longest_ns),
        ];
        for (name, kind, help, value) in figures {
            self.head(name, kind, help);
            for accelerator in &stats.accelerators {
                let labels = format!("{{accelerator=\"{}\"}}", accelerator.name);
                self.sample(name, &labels, &value(&accelerator.tasks).to_string());
            }
        }
    }

    fn vgpus(
        &mut self,
        stats: &Stats,
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&VgpuReport) -> String,
    ) {
        self.head(name, kind, help);
        for vgpu in &stats.vgpus {
            // Names have no character that a label would have to escape.
            self.sample(
                name,
                &format!("{{vgpu=\"{}\",device=\"{}\"}}", vgpu.name, vgpu.device),
                &value(vgpu),
            );
        }
    }
}

/// Seconds with all digits of the nanoseconds.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Serves `/metrics` on `address` in a thread of its own until the process ends.
pub(crate) fn serve(address: SocketAddr, daemon: &Arc<Daemon>) -> anyhow::Result<()> {
    let listener = std::net::TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address} (metrics.listen)"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let daemon = Arc::downgrade(daemon);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = move || {
        let daemon = daemon.clone();
        async move {
            match daemon.upgrade().and_then(|daemon| daemon.stats().ok()) {
                Some(stats) => page(text(&stats)),
                None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            }
        }
    };
    let router = Router::new().route("/metrics", get(answer));
    std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        let served = runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(Bounded::new(listener, CONNECTIONS_MAX), router).await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the metrics server ended");
        }
    })?;
    tracing::info!(%address, "metrics are served");
    Ok(())
}

fn page(text: String) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

#[cfg(test)]
mod tests {
    #[test]
    fn seconds_keep_every_nanosecond() {
        assert_eq!(super::seconds(1_000_000_001), "1.000000001");
        assert_eq!(super::seconds(999), "0.000000999");
    }
}
