//! What a tenant is told by its environment.

use std::path::PathBuf;

use weft_ring::place;
use weft_wire::size;

use crate::handle::ORDINALS_MAX;

/// How the program reaches a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attach {
    /// Through the node daemon and a worker: the default.
    #[default]
    Isolated,
    /// On a software device in this process, through `libweft_direct.so`.
    Direct,
}

/// Everything that attaching needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// `WEFT_ATTACH`.
    pub attach: Attach,
    /// Tenant sockets, in the order in which they are tried: `WEFT_SOCKET`, or those of the
    /// directories that [`weft_ring::place::search`] names.
    pub sockets: Vec<PathBuf>,
    /// The environment says where the node is.
    pub named: bool,
    /// `WEFT_VGPU`: the vGPU's name, or the names of several that the program sees as devices, with
    /// commas between them; empty for one of the tenant's own.
    pub vgpu: String,
    /// `WEFT_WEIGHT`; 0 for the daemon's default.
    pub weight: u32,
    /// `WEFT_MEMORY` in bytes; 0 for the daemon's default.
    pub memory_bytes: u64,
    /// `WEFT_TOKEN`.
    pub token: String,
    /// `WEFT_DEVICE`, for direct attachment; `soft` by default.
    pub device: String,
    /// `CUDA_VISIBLE_DEVICES`, if set.
    pub visible: Option<String>,
}

/// A variable of the environment that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value} is not understood: expected {expected}")]
pub struct ConfigError {
    /// The variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// What it may hold.
    pub expected: &'static str,
}

impl Config {
    /// The vGPUs that the program is to have, in the order of its devices.
    ///
    /// # Errors
    /// [`ConfigError`] when one of several has no name, is named twice, or they are too many.
    pub fn vgpus(&self) -> Result<Vec<&str>, ConfigError> {
        let names: Vec<&str> = self.vgpu.split(',').map(str::trim).collect();
        let is_wrong = |at: usize, name: &&str| name.is_empty() || names[..at].contains(name);
        let several = names.len() > 1;
        if several && names.iter().enumerate().any(|(at, name)| is_wrong(at, name))
            || names.len() > usize::from(ORDINALS_MAX)
        {
            let expected = "the name of a vGPU, or names of at most 15 different ones with commas \
                            between them";
            return Err(wrong("WEFT_VGPU", &self.vgpu, expected));
        }
        Ok(names)
    }

    /// The vGPUs to attach to, with what is left to pick among them: a program that names its
    /// devices by their places has no session with the others.
    ///
    /// # Errors
    /// As [`Self::vgpus`].
    pub(crate) fn seen(&self) -> Result<(Vec<&str>, Self), ConfigError> {
        let names = self.vgpus()?;
        let setting = self.visible.as_deref();
        // Identities are known to who has attached.
        if names.len() == 1 || setting.is_none_or(|setting| setting.contains("GPU-")) {
            return Ok((names, self.clone()));
        }
        let seen = visible_devices(setting, &vec![[0; 16]; names.len()]);
        let names = seen.into_iter().filter_map(|at| names.get(at).copied()).collect();
        Ok((names, Self { visible: None, ..self.clone() }))
    }

    /// Reads the process's environment.
    ///
    /// # Errors
    /// [`ConfigError`] naming the first variable that makes no sense.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads variables through `lookup`.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let attach = match set("WEFT_ATTACH").as_deref() {
            None | Some("isolated") => Attach::Isolated,
            Some("direct") => Attach::Direct,
            Some(other) => {
                let expected = "isolated or direct (interposed is not in this version)";
                return Err(wrong("WEFT_ATTACH", other, expected));
            }
        };
        let weight = match set("WEFT_WEIGHT") {
            None => 0,
            Some(text) => text
                .parse()
                .ok()
                .filter(|weight| (1..=10_000).contains(weight))
                .ok_or_else(|| wrong("WEFT_WEIGHT", &text, "a number from 1 to 10000"))?,
        };
        let memory_bytes = match set("WEFT_MEMORY") {
            None => 0,
            Some(text) => size::parse(&text)
                .filter(|bytes| *bytes > 0)
                .ok_or_else(|| wrong("WEFT_MEMORY", &text, "a size such as 512MiB or 2GiB"))?,
        };
        let sockets = match set("WEFT_SOCKET") {
            Some(socket) => vec![socket.into()],
            None => place::search(|name| set(name).map(PathBuf::from), own_user())
                .into_iter()
                .map(|dir| dir.join(place::TENANT_SOCKET))
                .collect(),
        };
        Ok(Self {
            attach,
            sockets,
            named: ["WEFT_SOCKET", "WEFT_RUNTIME_DIR"].iter().any(|name| set(name).is_some()),
            vgpu: set("WEFT_VGPU").unwrap_or_default(),
            weight,
            memory_bytes,
            token: set("WEFT_TOKEN").unwrap_or_default(),
            device: set("WEFT_DEVICE").unwrap_or_else(|| "soft".into()),
            visible: lookup("CUDA_VISIBLE_DEVICES"),
        })
    }
}

fn wrong(variable: &'static str, value: &str, expected: &'static str) -> ConfigError {
    ConfigError { variable, value: value.into(), expected }
}

fn own_user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Which of the devices a program sees, as positions among those attached (`CUDA_VISIBLE_DEVICES`).
///
/// Entries are ordinals or prefixes of `GPU-<uuid>`; the list ends at the first entry that names
/// nothing, as in the native driver, so `-1` and the empty string hide everything. So does a list
/// that names a device twice.
pub(crate) fn visible_devices(setting: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(setting) = setting else {
        return (0..uuids.len()).collect();
    };
    let mut visible = Vec::new();
    for entry in setting.split(',') {
        let entry = entry.trim();
        let named = match entry.parse::<usize>() {
            Ok(ordinal) => (ordinal < uuids.len()).then_some(ordinal),
            Err(_) => by_uuid(entry, uuids),
        };
        let Some(named) = named else { break };
        if visible.contains(&named) {
            return Vec::new();
        }
        visible.push(named);
    }
    visible
}

fn by_uuid(entry: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    if entry.len() <= "GPU-".len() {
        return None;
    }
    let wanted = entry.to_ascii_lowercase();
    let mut matches = uuids
        .iter()
        .enumerate()
        .filter(|(_, uuid)| uuid_text(uuid).to_ascii_lowercase().starts_with(&wanted))
        .map(|(ordinal, _)| ordinal);
    let first = matches.next()?;
    matches.next().is_none().then_some(first)
}

/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_lookup(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_are_read_and_nonsense_is_named() {
        let read = config(&[
            ("WEFT_ATTACH", "direct"),
            ("WEFT_WEIGHT", "3"),
            ("WEFT_MEMORY", "512MiB"),
            ("WEFT_RUNTIME_DIR", "/x"),
        ])
        .unwrap();
        assert_eq!(read.attach, Attach::Direct);
        assert_eq!((read.weight, read.memory_bytes), (3, 512 << 20));
        assert_eq!((read.sockets, read.named), (vec![PathBuf::from("/x/tenant.sock")], true));
        let usual = config(&[]).unwrap();
        assert_eq!(usual.sockets[0], PathBuf::from("/run/weft/tenant.sock"));
        assert!(!usual.named);
        for (variable, value) in
            [("WEFT_ATTACH", "remote"), ("WEFT_WEIGHT", "0"), ("WEFT_MEMORY", "12 apples")]
        {
            assert_eq!(config(&[(variable, value)]).unwrap_err().variable, variable);
        }
    }

    #[test]
    fn several_vgpus_are_named_once_each() {
        let named = |text: &str| config(&[("WEFT_VGPU", text)]).unwrap();
        assert_eq!(named("").vgpus().unwrap(), [""]);
        assert_eq!(named("a").vgpus().unwrap(), ["a"]);
        assert_eq!(named("a, b").vgpus().unwrap(), ["a", "b"]);
        let many = vec!["v"; 16].join(",");
        let picked = config(&[("WEFT_VGPU", "a,b,c"), ("CUDA_VISIBLE_DEVICES", "2,0")]).unwrap();
        let (names, rest) = picked.seen().unwrap();
        assert_eq!((names, rest.visible), (vec!["c", "a"], None), "b has no session");
        for wrong in ["a,,b", "a,", "a,b,a", many.as_str()] {
            let error = named(wrong).vgpus().unwrap_err().to_string();
            assert!(error.contains("WEFT_VGPU"), "{error}");
        }
    }

    #[test]
    fn the_list_of_visible_devices_follows_the_driver() {
        let uuids = [[0x11; 16], [0x12; 16]];
        let visible = |setting| visible_devices(setting, &uuids);
        assert_eq!(visible(None), [0, 1]);
        assert_eq!(visible(Some("")), [0; 0]);
        assert_eq!(visible(Some("-1")), [0; 0]);
        assert_eq!(visible(Some("0")), [0]);
        assert_eq!(visible(Some("1, 0")), [1, 0]);
        assert_eq!(visible(Some("1,-1,0")), [1]);
        assert_eq!(visible(Some("0,0")), [0; 0]);
        assert_eq!(visible(Some("NoDevFiles")), [0; 0]);
        let whole = uuid_text(&uuids[1]);
        assert_eq!(visible(Some(&whole)), [1]);
        assert_eq!(visible(Some("GPU-12")), [1]);
        assert_eq!(visible(Some("GPU-1")), [0; 0], "an ambiguous prefix names nothing");
    }
}
