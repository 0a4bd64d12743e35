use std::io::Write as _;

use weft_device::BackendConfig;
use weft_device::soft::{SoftBackend, SoftClock};

use super::*;

fn load(settings: &[(&str, &str)]) -> Result<NodeConfig, ConfigError> {
    let settings: Vec<_> =
        settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    NodeConfig::load(None, |_| None, &settings)
}

fn soft(device: &DeviceConfig) -> SoftBackend {
    let BackendConfig::Soft(soft) = &device.backend else { panic!("{device:?}") };
    soft.clone()
}

#[test]
fn settings_win_over_the_environment_and_the_environment_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    std::fs::write(&file, "state_dir = '/file'\n[device]\nmemory = '1GiB'\n").unwrap();
    let variable = |name: &str| (name == "WEFT_STATE_DIR").then(|| "/env".to_owned());
    let config = NodeConfig::load(Some(&file), variable, &[]).unwrap();
    assert_eq!(config.state_dir, Path::new("/env"));
    assert_eq!(config.devices[0].memory_bytes(), 1 << 30);
    let set = [("state_dir".to_owned(), "/flag".to_owned())];
    let config = NodeConfig::load(Some(&file), variable, &set).unwrap();
    assert_eq!(config.state_dir, Path::new("/flag"));
}

#[test]
fn an_error_names_the_key_and_what_is_allowed() {
    for (key, value, words) in [
        ("scheduling.policy", "fairest", "scheduling.policy|unmanaged|fair"),
        ("scheduling.policy", "strict_co", "scheduling.policy|simulator only|CPU scheduler"),
        ("scheduling.quantum_us", "5", "scheduling.quantum_us|100|1000000"),
        ("scheduling.quantum_us", "6ms", "scheduling.quantum_us: `6ms`|whole number of µs"),
        ("scheduling.tenants.alice", "7", "scheduling.tenants.alice|number"),
        ("scheduling.tenants.7", "alice", "alice|100000-165535|cgroup:|container:"),
        ("limits.attaches_per_second", "0", "limits.attaches_per_second|1"),
        ("worker.nice", "5", "worker.nice|5|-20|0"),
        ("scheduling.quantum", "5", "quantum|quantum_us"),
        ("device.clock", "fast", "clock|fast|real|paced"),
        ("device.memory", "many", "memory|many|512MiB"),
        ("device.idle_s", "0", "device.idle_s|1|86400"),
        ("device.window_s", "86401", "device.window_s|1|86400"),
        ("device.period_s", "0", "device.period_s|1|86400"),
        ("device.period_s", "soon", "period_s|soon"),
        ("device.processors", "some", "processors|some|0-3,6"),
        ("device.processors", "-3", "processors|-3|0-3,6"),
        ("metrics.listen", "0.0.0.0:1", "metrics.listen|127.0.0.1"),
        ("sockets.tenant_mode", "rw", "tenant_mode|octal"),
        ("sockets.admin_mode", "999", "admin_mode|octal"),
        ("metrics.listen", "9464", "listen|127.0.0.1:9464"),
        ("metrics.listen", "localhost", "listen|127.0.0.1:9464"),
        ("limits.pinned", "2TiB", "limits.pinned: 2TiB|1TiB"),
        ("defaults.weight", "0", "defaults.weight|10000"),
        ("log.level", "nonsense", "log.level|WEFT_LOG|nonsense|debug"),
        ("log.level", "info,weft_node=loud", "weft_node=loud"),
        ("device", "quick", "device|quick|soft:paced|cuda"),
        ("device.kind", "quick", "kind|quick|soft|cuda"),
        ("pool.p.policy", "deadline", "pool.p|no device is in it|device.pool"),
    ] {
        let message = load(&[(key, value)]).unwrap_err().to_string();
        for word in words.split('|') {
            assert!(message.contains(word), "{key}: no `{word}` in: {message}");
        }
    }
}

#[test]
fn no_more_is_lent_than_the_host_has_unless_it_is_swapped_to_a_disk() {
    let slot = ("device.slot", "1GiB");
    let much = [("device.memory", "256GiB"), slot, ("device.oversubscribe", "64")];
    let message = load(&much).unwrap_err().to_string();
    for word in ["device.oversubscribe", "16TiB", "the host has", "device.swap_dir"] {
        assert!(message.contains(word), "no `{word}` in: {message}");
    }
    let swapped = [&much[..], &[("device.swap_dir", "/var/lib/weft/swap")]].concat();
    assert_eq!(load(&swapped).unwrap().devices[0].lent_bytes(), 16 << 40);
    let little = [("device.memory", "16MiB"), ("device.oversubscribe", "64")];
    assert_eq!(load(&little).unwrap().devices[0].lent_bytes(), 1 << 30);
    // What nobody oversubscribes is as it was.
    load(&much[..2]).unwrap();
}

#[test]
fn a_devices_monitor_is_told_its_times_and_has_the_papers_otherwise() {
    let times = |settings: &[(&str, &str)]| {
        let device = load(settings).unwrap().devices.remove(0);
        let monitor = device.monitor();
        [monitor.idle_ns, monitor.window_ns, device.period_ns()].map(|ns| ns / 1_000_000_000)
    };
    let set = [("device.idle_s", "3"), ("device.window_s", "40"), ("device.period_s", "7")];
    assert_eq!((times(&[]), times(&set)), ([20; 3], [3, 40, 7]));
}

#[test]
fn every_key_is_in_the_operators_manual() {
    let manual = include_str!("../../../../docs/operations.md");
    let text = manual.split("```").filter_map(|block| block.strip_prefix("toml"));
    let shown: Vec<Table> = text.map(|block| block.parse().unwrap()).collect();
    let is_shown = |path: &[&str]| {
        shown.iter().any(|table| {
            let mut place = Some(table);
            let (last, parts) = path.split_last().unwrap();
            for part in parts {
                place = place.and_then(|table| table.get(*part)?.as_table());
            }
            place.is_some_and(|table| table.contains_key(*last))
        })
    };
    let Ok(serde_json::Value::Object(all)) = serde_json::to_value(NodeConfig::default()) else {
        panic!("a configuration is an object");
    };
    let mut missing = Vec::new();
    for (section, value) in &all {
        let keys: Vec<&String> = value.as_object().into_iter().flatten().map(|(k, _)| k).collect();
        if keys.is_empty() && !is_shown(&[section]) {
            missing.push(section.clone());
        }
        missing.extend(
            keys.iter()
                .filter(|key| !is_shown(&[section, key]))
                .map(|key| format!("{section}.{key}")),
        );
    }
    assert_eq!(missing, Vec::<String>::new(), "keys that docs/operations.md does not show");
    // And what it shows is accepted.
    let blocks = manual.split("```").filter_map(|block| block.strip_prefix("toml"));
    for block in blocks {
        toml::from_str::<NodeConfig>(block).unwrap();
    }
}

#[test]
fn permissions_are_octal_wherever_they_come_from() {
    for text in ["660", "0660", "0o660"] {
        assert_eq!(load(&[("sockets.admin_mode", text)]).unwrap().sockets.admin_mode, 0o660);
    }
    let parsed: NodeConfig = toml::from_str("[sockets]\nadmin_mode = 0o640").unwrap();
    assert_eq!(parsed.sockets.admin_mode, 0o640);
}

#[test]
fn a_directory_too_long_for_sockets_is_refused_with_what_fits() {
    let dir = |bytes: usize| format!("/{}", "d".repeat(bytes - 1));
    load(&[("sockets.runtime_dir", &dir(73))]).unwrap();
    let error = load(&[("sockets.runtime_dir", &dir(74))]).unwrap_err().to_string();
    assert!(error.contains("74 bytes") && error.contains("at most 73"), "{error}");
    let tenant = dir(108);
    let error = load(&[("sockets.tenant", &tenant)]).unwrap_err().to_string();
    assert!(error.contains("sockets.tenant") && error.contains("107"), "{error}");
}

#[test]
fn no_two_devices_have_a_processor_in_common() {
    let of = |second| {
        let set = [
            ("device", "soft,soft"),
            ("device.0.processors", "1-2"),
            ("device.1.processors", second),
        ];
        load(&set).map(|config| config.devices[1].processors.to_string())
    };
    assert_eq!(of("0,3").unwrap(), "0,3");
    let error = of("2-4").unwrap_err().to_string();
    assert!(
        error.contains("device.1.processors") && error.contains("`gpu0` and `gpu1`"),
        "{error}"
    );
}

#[test]
fn a_group_may_be_named_or_numbered() {
    let group = |text| load(&[("sockets.admin_group", text)]).unwrap().sockets.admin_group_id();
    assert_eq!(group("27").unwrap(), Some(27));
    assert_eq!(group("root").unwrap(), Some(0));
    assert_eq!(group("").unwrap(), None);
    let error = group("no-such-group").unwrap_err().to_string();
    assert!(error.contains("no-such-group"), "{error}");
}

#[test]
fn a_genuine_device_is_named_and_gets_a_longer_quantum() {
    let config = load(&[("device", "cuda:1")]).unwrap();
    let BackendConfig::Cuda(cuda) = &config.devices[0].backend else { panic!("{config:?}") };
    assert_eq!(cuda.ordinal, 1);
    let quantum_us = |settings: &[(&str, &str)], preemptive| {
        let (config, can) =
            (load(settings).unwrap(), Capabilities { preemptive, ..Capabilities::default() });
        config.quantum_us(&config.devices[0], can)
    };
    assert_eq!([quantum_us(&[], false), quantum_us(&[], true)], [6_000, 30_000]);
    let set = [("scheduling.quantum_us", "7000")];
    assert_eq!([quantum_us(&set, false), quantum_us(&set, true)], [7_000, 7_000]);
    let set = [("scheduling.quantum_us", "7000"), ("device.quantum_us", "8000")];
    assert_eq!(quantum_us(&set, true), 8_000);
}

#[test]
fn another_kind_of_device_forgets_what_was_said_of_the_first() {
    let kept = [("device.clock", "paced"), ("device.memory", "1GiB"), ("device", "cuda:1")];
    let device = load(&kept).unwrap().devices.remove(0);
    assert_eq!((device.backend.kind(), device.memory_bytes()), ("cuda", 1 << 30));
    let error = load(&[("device", "cuda"), ("device.clock", "paced")]).unwrap_err().to_string();
    assert!(error.contains("clock") && error.contains("ordinal"), "{error}");
}

#[test]
fn who_goes_on_for_the_sake_of_memory_does_so_where_memory_is_lent() {
    let slack_us = |settings: &[(&str, &str)]| {
        let config = load(settings).unwrap();
        config.slack_us(&config.devices[0])
    };
    let lent = ("device.oversubscribe", "2");
    assert_eq!([slack_us(&[]), slack_us(&[lent])], [0, 1_000_000]);
    assert_eq!(slack_us(&[lent, ("device", "cuda")]), 10_000_000);
    let set = ("scheduling.slack_us", "7000");
    assert_eq!([slack_us(&[set]), slack_us(&[lent, set])], [7_000, 7_000]);
    assert_eq!(slack_us(&[lent, ("scheduling.slack_us", "0")]), 0);
}

#[test]
fn a_genuine_gpu_lends_session_by_session() {
    let lends = |device: &str, times: &str| {
        let config = load(&[("device", device), ("device.oversubscribe", times)]).unwrap();
        config.devices[0].lends_sessions()
    };
    assert!(lends("cuda", "2"));
    assert!(!lends("cuda", "1") && !lends("soft", "2"));
    let swaps = [("device", "cuda"), ("device.swap_dir", "/tmp"), ("device.oversubscribe", "2")];
    load(&swaps).unwrap();
    let error = load(&swaps[..2]).unwrap_err().to_string();
    assert!(error.contains("swap_dir") && error.contains("oversubscribe"), "{error}");
}

#[test]
fn a_fault_in_a_file_is_shown_with_its_line() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "[device]\nknd = 3").unwrap();
    let error = NodeConfig::load(Some(file.path()), |_| None, &[]).unwrap_err().to_string();
    let name = file.path().display().to_string();
    for word in [name.as_str(), "line 2", "knd", "`kind`"] {
        assert!(error.contains(word), "no {word} in {error}");
    }
}

#[test]
fn a_device_spec_may_name_a_model_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.toml");
    std::fs::write(&file, "base_ns = 7\n[[kernels]]\nkernel = 'k*'\nns = 21000\n").unwrap();
    let config = load(&[("device", &format!("soft:paced:{}", file.display()))]).unwrap();
    let SoftBackend { clock, model, .. } = soft(&config.devices[0]);
    assert_eq!((clock, model.base_ns, model.kernels[0].ns), (SoftClock::Paced, 7, 21_000));
}

#[test]
fn a_node_may_have_several_devices() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    let text = "[[device]]\nmemory = '1GiB'\n[[device]]\nname = 'slow'\nquantum_us = 9000\n";
    std::fs::write(&file, text).unwrap();
    let config = NodeConfig::load(Some(&file), |_| None, &[]).unwrap();
    let names: Vec<&str> = config.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["gpu0", "slow"]);
    assert_eq!(config.devices[0].memory_bytes(), 1 << 30);
    assert_eq!(config.devices[1].quantum_us, Some(9_000));
    let set = [("device.clock", "paced"), ("device.1.memory", "2GiB")];
    let set = set.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let config = NodeConfig::load(Some(&file), |_| None, &set).unwrap();
    assert!(config.devices.iter().all(|device| soft(device).clock == SoftClock::Paced));
    let memory: Vec<u64> = config.devices.iter().map(DeviceConfig::memory_bytes).collect();
    assert_eq!(memory, [1 << 30, 2 << 30]);
    // What is printed whole is read again.
    let again: NodeConfig = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
    assert_eq!(again.devices.len(), 2);
}

#[test]
fn several_devices_are_named_in_one_setting() {
    let config = load(&[("device.memory", "1GiB"), ("device", "soft:paced,soft,cuda:1")]).unwrap();
    let clocks: Vec<_> = config.devices.iter().map(|device| device.backend.clock()).collect();
    assert_eq!(clocks, ["paced", "real", "device"]);
    assert!(config.devices.iter().all(|device| device.memory_bytes() == 1 << 30));
    let set = [("device", "soft"), ("device.0.memory", "1GiB"), ("device", "soft:paced")];
    let alone = load(&set).unwrap().devices;
    assert_eq!((soft(&alone[0]).clock, alone[0].memory_bytes()), (SoftClock::Paced, 1 << 30));
    let of_root = load(&[("limits.users.0.vgpus", "3")]).unwrap();
    assert_eq!(of_root.limits_of(0, true).vgpus, 3);
    for (settings, words) in [
        ([("device", "soft,quick"), ("log.level", "info")], "quick|soft:paced|cuda"),
        ([("device", "soft,soft"), ("device.2.memory", "1GiB")], "device.2.memory|2 of them"),
        ([("device", "soft,soft"), ("device.name", "twin")], "device.1.name|twin"),
        ([("device", "cuda:1,cuda:1"), ("log.level", "info")], "device.1.ordinal|same GPU"),
        ([("device", "soft,soft"), ("device", "soft,soft,soft")], "3 named|2 that"),
        ([("device", "soft,soft"), ("device.1.policy", "fiar")], "device.1|fiar|fair"),
        ([("device.name", "a b"), ("log.level", "info")], "device.name|a b|letters"),
        ([("device", "soft,soft"), ("device.1.pool", "gpu0")], "device.1.pool|device|gpu0"),
        ([("device.pool", "a b"), ("log.level", "info")], "device.pool|a b|letters"),
    ] {
        let message = load(&settings).unwrap_err().to_string();
        for word in words.split('|') {
            assert!(message.contains(word), "{settings:?}: no `{word}` in: {message}");
        }
    }
}
