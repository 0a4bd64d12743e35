//! How QEMU is started for a machine, and what its own machines need.

use std::path::{Path, PathBuf};
use std::process::Command;

use weft_wire::guest::{CONTROL_PORT, MARKS_PORT};

use crate::server::{control_socket, marks_socket, monitor_socket};

/// A machine that boots a kernel.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The program of QEMU.
    pub qemu: PathBuf,
    /// Accelerators, in the order in which they are tried: `kvm:tcg`.
    pub accel: String,
    /// Memory of the guest's own, in MiB.
    pub memory_mib: u64,
    /// Processors.
    pub processors: u32,
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial file system.
    pub initrd: PathBuf,
    /// More words for the kernel's command line.
    pub append: String,
    /// More arguments for QEMU.
    pub arguments: Vec<String>,
    /// Words for the guest's init: the program to run, and its arguments.
    pub program: Vec<String>,
}

/// The arguments that give a machine its region, its ports, and a monitor through which its server
/// learns which threads run its processors.
#[must_use]
pub fn devices(region: &Path, bytes: u64, folder: &Path) -> Vec<String> {
    let port = |id: &str, socket: &Path, name: &str| {
        [
            "-chardev".to_owned(),
            format!("socket,id={id},path={},reconnect=1", socket.display()),
            "-device".to_owned(),
            format!("virtserialport,chardev={id},name={name}"),
        ]
    };
    let mut arguments = vec![
        "-object".to_owned(),
        format!(
            "memory-backend-file,id=weft-region,size={bytes},mem-path={},share=on",
            region.display()
        ),
        "-device".to_owned(),
        "ivshmem-plain,memdev=weft-region".to_owned(),
        "-device".to_owned(),
        "virtio-serial-pci".to_owned(),
    ];
    arguments.extend(port("weft-control", &control_socket(folder), CONTROL_PORT));
    arguments.extend(port("weft-marks", &marks_socket(folder), MARKS_PORT));
    let monitor = monitor_socket(folder);
    arguments.extend([
        "-chardev".to_owned(),
        format!("socket,id=weft-monitor,path={},reconnect=1", monitor.display()),
        "-mon".to_owned(),
        "chardev=weft-monitor,mode=control".to_owned(),
    ]);
    arguments
}

impl Machine {
    /// The command that starts it, with these devices besides.
    #[must_use]
    pub fn command(&self, devices: &[String]) -> Command {
        let mut command = Command::new(&self.qemu);
        // Its threads get names, for whoever places them.
        command.args(["-name", "weft,debug-threads=on"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.arg("-machine").arg(format!("pc,accel={}", self.accel));
        command.args(["-cpu", "max", "-m"]).arg(format!("{}M", self.memory_mib));
        command.arg("-smp").arg(self.processors.to_string());
        command.args(["-serial", "stdio", "-kernel"]).arg(&self.kernel);
        command.arg("-initrd").arg(&self.initrd);
        let base = "console=ttyS0 quiet loglevel=1 panic=-1";
        let program = self.program.join(" ");
        command.arg("-append").arg(format!("{base} {} -- {program}", self.append));
        command.args(devices).args(&self.arguments);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = include_str!("../../../docs/guests.md");

    /// The words of a shell's command that begins like this, in which only `"` quotes.
    fn command_of_docs(beginning: &str) -> Vec<String> {
        let at = DOCS.find(beginning).unwrap();
        let text = DOCS[at..].split("\n```").next().unwrap().replace("\\\n", " ");
        let parts = text.split('"').enumerate().flat_map(|(number, part)| match number % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        parts.collect()
    }

    #[test]
    fn the_docs_start_what_the_program_starts() {
        let machine = Machine {
            qemu: "qemu-system-x86_64".into(),
            accel: "kvm:tcg".to_owned(),
            memory_mib: 512,
            processors: 1,
            kernel: "image/vmlinuz".into(),
            initrd: "image/initrd".into(),
            append: String::new(),
            arguments: Vec::new(),
            program: vec!["app".to_owned()],
        };
        let devices = ["$(grep", "-vx", "ready", "devices)"].map(str::to_owned);
        let command = machine.command(&devices);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<String> = words.map(|word| word.to_str().unwrap().to_owned()).collect();
        assert_eq!(command_of_docs("qemu-system-x86_64 -name"), words);
    }

    #[test]
    fn the_docs_list_the_devices_that_the_server_prints() {
        let printed = devices(Path::new("/run/team-a/region"), 256 << 20, Path::new("/run/team-a"));
        assert_eq!(command_of_docs("-object memory-backend-file"), printed);
    }

    /// Values of an attribute of all elements of this name in the docs' XML.
    fn values_of_docs(element: &str, attribute: &str) -> Vec<&'static str> {
        let xml = DOCS.split("```xml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let (begins, holds) = (format!("<{element} "), format!("{attribute}='"));
        let value = |text: &'static str| {
            let (_, rest) = text.split('>').next()?.split_once(&holds)?;
            rest.split('\'').next()
        };
        xml.split(&begins).skip(1).map(|text| value(text).unwrap()).collect()
    }

    /// libvirt makes the serial device and its ports of what it calls channels.
    #[test]
    fn the_docs_give_libvirt_the_devices_that_the_server_prints() {
        let printed = devices(Path::new("/run/team-a/region"), 256 << 20, Path::new("/run/team-a"));
        let is_libvirts = |value: &str| {
            ["virtio-serial-pci", "weft-control", "weft-marks"].iter().any(|of| value.contains(of))
        };
        let (ports, others): (Vec<_>, Vec<_>) =
            printed.chunks(2).partition(|argument| is_libvirts(&argument[1]));
        let given = values_of_docs("qemu:arg", "value");
        // The slot is for libvirt's sake.
        let given: Vec<&str> = given.iter().filter_map(|arg| arg.split(",addr=").next()).collect();
        assert_eq!(given, others.concat());
        let fields = |key: &str| -> Vec<&str> {
            let values = ports.iter().flat_map(|argument| argument[1].split(','));
            values.filter_map(|field| field.strip_prefix(key)).collect()
        };
        assert_eq!(values_of_docs("source", "path"), fields("path="));
        assert_eq!(values_of_docs("target", "name"), fields("name="));
    }
}
