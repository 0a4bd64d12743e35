//! What a VM's first boot runs, before its owner's user-data: puts the grants where
//! `weft-endpoint` finds them, and starts that at each boot.

use std::fmt::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::provision::VmSpec;

/// Where the VM has what it was told.
const FOLDER: &str = "/etc/weft";

/// Leads to the masked addresses and starts the endpoints, which are ready when the rules are in
/// force. With an init that knows units it is one, so that it comes again after a reboot.
const START: &str = r#"#!/bin/sh
# Weft: reaches this VM's cGPUs. Written at the first boot.
cd /etc/weft || exit 1
mkdir -p /run/weft
device=$(ip -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
[ -n "$device" ] || device=eth0
for gateway in gateway-*; do
    n=${gateway#gateway-}
    read -r masked < "$gateway"
    ip route replace "${masked%:*}/32" dev "$device"
    sed 1d "$gateway" | weft-endpoint connect --remote "$masked" --token-file - \
        --socket "/run/weft/$n.sock" --await-remote > "/run/weft/$n.ready" &
done
wait
"#;

/// The unit.
const UNIT: &str = "[Unit]
Description=Weft: this VM's cGPUs
After=network-online.target
Wants=network-online.target
[Service]
ExecStart=/etc/weft/start
Restart=always
[Install]
WantedBy=multi-user.target
";

/// What comes after the files are there.
const BEGIN: &str = r#"if [ -d /run/systemd/system ]; then
    systemctl enable --now weft-cgpus.service
else
    /etc/weft/start &
fi
for gateway in /etc/weft/gateway-*; do
    n=${gateway#/etc/weft/gateway-}
    until grep -qs ready "/run/weft/$n.ready"; do sleep 1; done
done
. /etc/weft/environment
"#;

/// The script. Everything in it that is not fixed is in base64: nothing has to be quoted.
pub(super) fn script(vm: &VmSpec, libraries: &Path) -> String {
    let mut script = String::from(
        "#!/bin/sh\n# Weft: this VM's cGPUs. The grants are secrets.\numask 077\n\
         put() { echo \"$3\" | base64 -d > \"$1\"; chmod \"$2\" \"$1\"; }\n",
    );
    let mut put = |path: &str, mode: &str, text: &str| {
        // A string takes everything.
        let _ = writeln!(script, "put {path} {mode} {}", STANDARD.encode(text));
    };
    let mut files = Vec::new();
    for (number, (masked, grants)) in vm.gateways.iter().enumerate() {
        let text = format!("{masked}\n{}\n", grants.join("\n"));
        files.push((format!("{FOLDER}/gateway-{number}"), "600", text));
    }
    files.push((format!("{FOLDER}/environment"), "644", environment(vm, libraries)));
    files.push((format!("{FOLDER}/start"), "755", START.to_owned()));
    if !vm.user_data.is_empty() {
        files.push((format!("{FOLDER}/user-data"), "700", vm.user_data.clone()));
    }
    let unit = "/etc/systemd/system/weft-cgpus.service";
    files.iter().for_each(|(path, mode, text)| put(path, mode, text));
    let profile = "/etc/profile.d/weft.sh";
    script.insert_str(
        script.find("put /").unwrap_or(script.len()),
        &format!("mkdir -p {FOLDER} /etc/profile.d\nchmod 755 {FOLDER} /etc/profile.d\n"),
    );
    let _ = write!(
        script,
        "put {profile} 644 {}\n[ ! -d /run/systemd/system ] || put {unit} 644 {}\n{BEGIN}",
        STANDARD.encode(format!(". {FOLDER}/environment\n")),
        STANDARD.encode(UNIT),
    );
    if !vm.user_data.is_empty() {
        let _ = writeln!(script, "exec {}", interpreter(&vm.user_data));
    }
    script
}

/// The user-data runs as it says, or in a shell.
fn interpreter(user_data: &str) -> String {
    let file = format!("{FOLDER}/user-data");
    if user_data.starts_with("#!") { file } else { format!("sh {file}") }
}

fn environment(vm: &VmSpec, libraries: &Path) -> String {
    let mut text = String::new();
    let mut export = |name: &str, value: &str| {
        // Single quotes keep everything but themselves.
        let quoted = value.replace('\'', r"'\''");
        let _ = writeln!(text, "export {name}='{quoted}'");
    };
    for (name, value) in &vm.environment {
        export(name, value);
        if name == "WEFT_VGPU_0" {
            export("WEFT_VGPU", value);
        }
    }
    for number in 0..vm.gateways.len() {
        let socket = format!("/run/weft/{number}.sock");
        export(&format!("WEFT_SOCKET_{number}"), &socket);
        if number == 0 {
            export("WEFT_SOCKET", &socket);
        }
    }
    export("LD_LIBRARY_PATH", &libraries.display().to_string());
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::store::Machine;

    fn vm(user_data: &str) -> VmSpec {
        VmSpec {
            id: "i1".to_owned(),
            name: "i1".to_owned(),
            project: "p".to_owned(),
            slot: 0,
            cgpus: 2,
            host: None,
            environment: vec![
                ("CGPU_0".to_owned(), "169.254.77.1:18515".to_owned()),
                ("WEFT_VGPU_0".to_owned(), "cgpu-i1-0,it's".to_owned()),
            ],
            gateways: vec![("169.254.77.1:18515".to_owned(), vec!["one".into(), "two".into()])],
            nodes: std::collections::BTreeMap::new(),
            user_data: user_data.to_owned(),
            machine: Machine::default(),
        }
    }

    /// What a shell makes of the environment's file is what was meant.
    #[test]
    fn a_shell_reads_the_environment_as_it_is() {
        let text = environment(&vm(""), Path::new("/usr/lib/weft"));
        let print = "printf '%s|' \"$CGPU_0\" \"$WEFT_VGPU\" \"$WEFT_SOCKET\" \"$LD_LIBRARY_PATH\"";
        let output = Command::new("sh").arg("-c").arg(format!("{text}{print}")).output().unwrap();
        let found = String::from_utf8(output.stdout).unwrap();
        let parts: Vec<&str> = found.split('|').collect();
        let expected =
            ["169.254.77.1:18515", "cgpu-i1-0,it's", "/run/weft/0.sock", "/usr/lib/weft", ""];
        assert_eq!(parts, expected);
    }

    /// The whole script in a folder instead of the root, with an endpoint that is at once ready.
    #[test]
    fn the_script_puts_grants_away_and_runs_the_user_data_with_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().display().to_string();
        let nasty = "#!/bin/sh\necho \"$CGPU_0 'WEFT_END' $(id -u)\" > \"$OUT\"\n";
        let script = script(&vm(nasty), Path::new("/lib/weft"));
        // Also within the files that it writes.
        let moved = |text: &str| {
            let text = text.replace("/etc/", &format!("{root}/etc/"));
            text.replace("/run/", &format!("{root}/run/"))
        };
        let lines = script.lines().map(|line| match line.rsplit_once(' ') {
            Some((start, packed)) if start.contains("put ") && !start.contains('(') => {
                let bytes = STANDARD.decode(packed).unwrap();
                let text = moved(&String::from_utf8(bytes).unwrap());
                format!("{} {}\n", moved(start), STANDARD.encode(text))
            }
            _ => format!("{}\n", moved(line)),
        });
        let script: String = lines.collect();
        let tools = folder.path().join("tools");
        std::fs::create_dir(&tools).unwrap();
        for (name, text) in [
            (
                "weft-endpoint",
                "#!/bin/sh\necho \"$@\" > \"$ASKED\"; cat > \"$GRANTS\"; echo ready\n",
            ),
            (
                "ip",
                "#!/bin/sh\n[ \"$3\" = show ] && echo default via 10.0.0.1 dev ens3 || echo \"$@\" > \"$ROUTE\"\n",
            ),
        ] {
            let path = tools.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
        }
        let out = |name: &str| folder.path().join(name);
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
        let status = Command::new("sh")
            .arg("-c")
            .arg(&script)
            .env("PATH", path)
            .envs([("OUT", out("out")), ("ASKED", out("asked"))])
            .envs([("GRANTS", out("grants")), ("ROUTE", out("route"))])
            .status()
            .unwrap();
        assert!(status.success(), "{script}");
        let read = |name: &str| std::fs::read_to_string(out(name)).unwrap();
        assert!(read("out").starts_with("169.254.77.1:18515 'WEFT_END' "), "{}", read("out"));
        assert_eq!(read("grants"), "one\ntwo\n");
        assert_eq!(read("route").trim(), "route replace 169.254.77.1/32 dev ens3");
        assert!(read("asked").contains("--remote 169.254.77.1:18515"), "{}", read("asked"));
        let mode = std::fs::metadata(out("etc/weft/gateway-0")).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    }
}
