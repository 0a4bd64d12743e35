//! Unmodified programs compute what they should: in C, in Python, remoted and direct.

use std::path::Path;
use std::process::Command;

use crate::support::{
    Node, cudarc, finish, program, python, root, success, text_of, toolkit, weft,
};

const EXAMPLES: [&str; 5] = ["vector_add", "matrix_mul", "reduction", "histogram", "pipeline"];

#[test]
fn the_c_examples_pass_on_a_node() {
    let node = Node::start(&[]);
    for name in EXAMPLES {
        let text = success(node.run(&[], &program(name), &[]));
        assert!(text.contains("PASSED"), "{name}: {text}");
    }
    node.wait_until_empty();
}

/// What numba compiles with `abi="c"`, linked with the kernel that calls it.
#[test]
fn functions_with_the_c_abi_are_linked_and_called() {
    let node = Node::start(&[]);
    let text = success(node.run(&[], &program("c_abi"), &[]));
    assert!(text.contains("PASSED"), "{text}");
    let alone = success(node.run(&[], &program("c_abi"), &["alone"]));
    assert!(alone.contains("refused"), "without the functions: {alone}");
}

#[test]
fn openmp_regions_run_on_the_device() {
    let node = Node::start(&[]);
    let mut command = node.run(&[], &program("offload"), &[]);
    // Without a device the program fails instead of running everything on the host.
    command.env("OMP_TARGET_OFFLOAD", "MANDATORY");
    let text = success(command);
    assert!(text.contains("printed on the device") && text.contains("PASSED"), "{text}");
}

#[test]
fn the_c_examples_pass_on_the_paced_device() {
    let node = Node::paced(&[]);
    for name in EXAMPLES {
        let text = success(node.run(&[], &program(name), &[]));
        assert!(text.contains("PASSED"), "{name}: {text}");
    }
}

#[test]
fn the_c_examples_pass_in_process() {
    for name in EXAMPLES {
        let mut command = weft();
        command.args(["run", "--direct", "--"]).arg(program(name));
        let text = success(command);
        assert!(text.contains("PASSED"), "{name}: {text}");
    }
}

#[test]
fn run_without_a_daemon_starts_one_for_the_run() {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = weft();
    command.arg("--runtime-dir").arg(scratch.path().join("nobody"));
    command.args(["run", "--"]).arg(program("vector_add"));
    let text = success(command);
    assert!(text.contains("PASSED") && text.contains("starting one"), "{text}");
}

#[test]
fn the_programs_exit_code_is_runs_exit_code() {
    let node = Node::start(&[]);
    let mut command = weft();
    command.arg("--runtime-dir").arg(node.path()).args(["run", "--", "sh", "-c", "exit 42"]);
    assert_eq!(finish(command).status.code(), Some(42));
}

fn tinygrad(node: &Node, script: &str, arguments: &[&str]) -> Command {
    let script = root().join("tests/programs").join(script);
    let mut all = vec![script.to_str().unwrap()];
    all.extend_from_slice(arguments);
    let mut command = node.run(&[], &python(), &all);
    command.env("DEV", "CUDA:PTX");
    command.env("CACHELEVEL", "0"); // Compile anew: nothing from another run's disk cache.
    command
}

#[test]
fn tinygrad_agrees_with_numpy() {
    let node = Node::start(&[]);
    let text = success(tinygrad(&node, "tinygrad_ops.py", &[]));
    assert!(text.contains("all operations agree"), "{text}");
}

#[test]
fn tinygrad_trains_with_its_jit() {
    let node = Node::start(&[]);
    let script = root().join("examples/python/train.py");
    let mut command = node.run(&[], &python(), &[script.to_str().unwrap(), "1"]);
    command.env("DEV", "CUDA:PTX");
    let text = success(command);
    assert!(text.contains("\"verified\": true"), "{text}");
}

#[test]
fn tinygrad_compiles_with_nvrtc() {
    let node = Node::start(&[]);
    let mut command = tinygrad(&node, "tinygrad_ops.py", &["--few"]);
    command.env("DEV", "CUDA").env("LD_LIBRARY_PATH", toolkit().join("lib"));
    command.env("CUDA_PATH", toolkit()); // Its kernels include cuda_fp16.h.
    let text = success(command);
    assert!(text.contains("all operations agree"), "{text}");
}

#[test]
fn dr_jits_kernels_agree_with_numpy() {
    let node = Node::start(&[]);
    let script = root().join("tests/programs/drjit_ops.py");
    let mut command = node.run(&[], &python(), &[script.to_str().unwrap()]);
    command.env("HOME", node.path()); // Compile anew: nothing from another run's disk cache.
    let text = success(command);
    assert!(text.contains("all kernels agree"), "{text}");
}

#[test]
fn halides_pipelines_agree_with_numpy() {
    let node = Node::start(&[]);
    let script = root().join("tests/programs/halide_ops.py");
    let text = success(node.run(&["--name", "a"], &python(), &[script.to_str().unwrap()]));
    assert!(text.contains("all pipelines agree"), "{text}");
    // They ran on the node's device, not on the host's processors.
    assert!(node.admin().list().unwrap()[0].used_ns > 0);
}

/// Runs a script of the tests on a vGPU of a node, with NVIDIA's run-time compiler at hand.
fn script(node: &Node, name: &str) -> String {
    let script = root().join("tests/programs").join(name);
    let mut command = node.run(&["--name", "a"], &python(), &[script.to_str().unwrap()]);
    command.env("LD_LIBRARY_PATH", toolkit().join("lib"));
    let text = success(command);
    // It ran on the node's device, not on the host's processors.
    assert!(node.admin().list().unwrap()[0].used_ns > 0, "{text}");
    text
}

#[test]
fn openmms_force_types_agree_with_its_reference() {
    let text = script(&Node::start(&[]), "openmm_forces.py");
    assert!(text.contains("force types agree"), "{text}");
}

#[test]
fn models_that_iree_compiled_agree_with_onnx() {
    let text = script(&Node::start(&[]), "iree_models.py");
    assert!(text.contains("all models agree"), "{text}");
}

/// hashcat compiles its kernels while it runs, tries the words that a pattern stands for, and
/// compares their MD5 digests on the device.
#[test]
fn hashcat_finds_the_password() {
    let node = Node::start(&[]);
    let scratch = tempfile::tempdir().unwrap();
    // It asks for the compiler by the name that packages for development give it.
    let compiler = scratch.path().join("libnvrtc.so");
    std::os::unix::fs::symlink(toolkit().join("lib/libnvrtc.so.13"), compiler).unwrap();
    let libraries = std::env::join_paths([scratch.path(), &toolkit().join("lib")]).unwrap();
    let options = "--quiet --force --potfile-disable --hwmon-disable --self-test-disable \
                   --backend-ignore-opencl -n 8 -u 1 -T 32 -a 3";
    let hash = "0c2f29830171ed3d3e201cfdbac8185e";
    let mut arguments: Vec<&str> = options.split_whitespace().collect();
    arguments.extend(["-m", "0", hash, "shu?ltle"]);
    let mut command = node.run(&["--name", "a"], Path::new("hashcat"), &arguments);
    // Compile anew: nothing from another run's disk cache.
    command.env("XDG_CACHE_HOME", scratch.path()).env("XDG_DATA_HOME", scratch.path());
    command.env("HOME", scratch.path()).env("LD_LIBRARY_PATH", &libraries);
    let text = success(command);
    assert!(text.contains(&format!("{hash}:shuttle")), "{text}");
    assert!(node.admin().list().unwrap()[0].used_ns > 0);
}

#[test]
fn cudarc_and_nvrtc_agree_with_the_host() {
    let node = Node::start(&[]);
    let mut command = node.run(&[], &cudarc(), &[]);
    command.env("LD_LIBRARY_PATH", toolkit().join("lib"));
    let text = success(command);
    assert!(text.contains("cudarc PASSED"), "{text}");
    // The compiler asks the driver for a private table, and needs it not.
    assert!(!text.contains("NVIDIA's CUDA runtime"), "{text}");
}

#[test]
fn nvidias_own_runtime_is_told_what_runs_it() {
    let node = Node::start(&[]);
    // Each version asks for another table first.
    for name in ["cu13/lib/libcudart.so.13", "cuda_runtime/lib/libcudart.so.12"] {
        let runtime = toolkit().with_file_name(name);
        let script = format!(
            "import ctypes as c\nprint(c.CDLL({runtime:?}).cudaGetDeviceCount(c.byref(c.c_int())))"
        );
        let text = success(node.run(&[], &python(), &["-c", &script]));
        assert!(
            !text.lines().any(|line| line == "0"),
            "{name}: the handshake is not answered: {text}"
        );
        let told = text.lines().filter(|line| line.contains("NVIDIA's CUDA runtime"));
        assert_eq!(told.count(), 1, "{name}: {text}");
    }
}

#[test]
fn several_processes_share_one_vgpu() {
    let node = Node::start(&[]);
    let runs: Vec<_> = (0..4)
        .map(|_| {
            let command = node.run(&["--name", "shared"], &program("matrix_mul"), &[]);
            std::thread::spawn(move || success(command))
        })
        .collect();
    for run in runs {
        assert!(run.join().unwrap().contains("PASSED"));
    }
    let vgpus = node.admin().list().unwrap();
    assert_eq!(vgpus.len(), 1, "{vgpus:?}");
    assert_eq!(vgpus[0].sessions_total, 4);
}

#[test]
fn visible_devices_hide_the_vgpu() {
    let node = Node::start(&[]);
    for (visible, works) in [("0", true), ("", false), ("-1", false), ("7", false)] {
        let mut command = node.run(&[], &program("vector_add"), &[]);
        command.env("CUDA_VISIBLE_DEVICES", visible);
        let output = finish(command);
        let text = text_of(&output);
        assert_eq!(output.status.success(), works, "CUDA_VISIBLE_DEVICES={visible:?}: {text}");
        assert!(works || text.contains("CUDA_ERROR_NO_DEVICE"), "{text}");
    }
}

#[test]
fn kernels_print_to_the_programs_output() {
    for node in [Node::start(&[]), Node::on_driver(&[])] {
        kernels_print_on(&node);
    }
}

fn kernels_print_on(node: &Node) {
    let mut expected = String::new();
    for round in 0..4 {
        expected += &format!("host {round}\n");
        for (block, thread) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let place = format!("block {block} thread {thread}");
            expected += &format!("round {round} {place} of a warp: {round}.50 123456789abc\n");
        }
    }
    let mut direct = weft();
    direct.args(["run", "--direct", "--"]).arg(program("printf"));
    for command in [node.run(&[], &program("printf"), &[]), direct] {
        let output = finish(command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, format!("{expected}end\n"));
    }
    let output = finish(node.run(&[], &program("printf"), &["fault"]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, format!("{expected}last words\n"), "{}", text_of(&output));
}
