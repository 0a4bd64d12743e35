//! Tasks on virtual accelerators: right results, bad input, queues, and who and what may die.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use weft_node::admin::AcceleratorReport;
use weft_tasks::{Accelerator, Done, Module, Options, Pending, RefusalCode, Task, TaskError};

use crate::hierarchy::control;
use crate::journal::replayed;
use crate::support::{
    Conversation, DEADLINE, Node, as_user, eventually, finish, is_root, program, provided, python,
    root, success, text_of,
};

/// `count` adds one to a word of its thread block's, so that it is seen which ran, and how often.
/// On these devices a block takes 200 µs.
const KERNELS: &str = r"
.version 7.0
.target sm_70
.address_size 64

.visible .entry count(.param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    mov.u32 %r1, %ctaid.x;
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}

.visible .entry fixed(.param .u32 n)
.reqntid 64, 1, 1
{
    ret;
}

.visible .entry fault()
{
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 16;
    st.global.u32 [%rd1], 1;
    ret;
}
";

const MODEL: &str = r#"
base_ns = 200000
copy_base_ns = 10000
copy_bytes_per_us = 4000

[[kernels]]
kernel = "count*"
ns_per_block = 200000
"#;

/// A node with paced devices in pool `p`.
pub(crate) struct Pool {
    pub(crate) node: Node,
    _model: TempDir,
}

impl Pool {
    pub(crate) fn start(devices: usize, settings: &[&str]) -> Self {
        let model = tempfile::tempdir().unwrap();
        let path = model.path().join("model.toml");
        std::fs::write(&path, MODEL).unwrap();
        let names = vec![format!("soft:paced:{}", path.display()); devices];
        let device = format!("device={}", names.join(","));
        let pools: Vec<String> = (0..devices).map(|i| format!("device.{i}.pool=p")).collect();
        let mut all = vec![device.as_str()];
        all.extend(pools.iter().map(String::as_str));
        all.extend_from_slice(settings);
        Self { node: Node::paced(&all), _model: model }
    }

    pub(crate) fn create(&self, name: &str, flags: &[&str]) {
        let mut arguments = vec!["create", name, "--tasks", "--device", "p"];
        arguments.extend_from_slice(flags);
        success(control(&self.node, &arguments));
    }

    /// Python, which has the package: `cargo xtask test` installs it.
    fn python(&self) -> Command {
        let mut command = Command::new(python());
        let library = provided("WEFT_TEST_BIN").join("libweft_tasks.so");
        command.env("WEFT_RUNTIME_DIR", self.node.path()).env("WEFT_TASKS_LIBRARY", library);
        command
    }

    fn socket(&self) -> PathBuf {
        self.node.path().join("tenant.sock")
    }

    fn open(&self, name: &str) -> Result<Accelerator, TaskError> {
        Accelerator::open_with(name, Options::at(&self.socket()))
    }

    /// An accelerator with the kernels.
    pub(crate) fn loaded(&self, name: &str, flags: &[&str]) -> (Accelerator, Module) {
        self.create(name, flags);
        self.join(name)
    }

    /// One that is there, with the kernels.
    pub(crate) fn join(&self, name: &str) -> (Accelerator, Module) {
        let accelerator = self.open(name).unwrap();
        let module = accelerator.load(KERNELS.as_bytes()).unwrap();
        (accelerator, module)
    }

    pub(crate) fn report(&self, name: &str) -> AcceleratorReport {
        let all = self.node.admin().stats().unwrap().accelerators;
        all.into_iter().find(|accelerator| accelerator.name == name).unwrap()
    }

    pub(crate) fn wait_for(&self, name: &str, what: &str, is: impl Fn(&AcceleratorReport) -> bool) {
        eventually(what, || is(&self.report(name)));
    }
}

/// A task of so many blocks.
pub(crate) fn count(module: &Module, blocks: u32) -> Task<'static> {
    Task::new(module, "count").grid([blocks, 1, 1]).in_out(&vec![0u32; blocks as usize])
}

/// Every block ran once, as far as the result shows.
#[track_caller]
pub(crate) fn expect_once(pending: &Pending) -> Done {
    let done = pending.wait_timeout(DEADLINE).unwrap();
    let counts = done.output::<u32>(0);
    assert!(!counts.is_empty() && counts.iter().all(|count| *count == 1), "{counts:?}");
    done
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn tasks_compute_what_they_should_on_every_device_of_their_pool() {
    let pool = Pool::start(3, &[]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let pending: Vec<Pending> =
        (0..12).map(|_| accelerator.submit(&count(&module, 40)).unwrap()).collect();
    let mut devices: Vec<String> =
        pending.iter().map(|pending| expect_once(pending).device().to_owned()).collect();
    devices.sort();
    devices.dedup();
    assert_eq!(devices, ["gpu0", "gpu1", "gpu2"]);
    let report = pool.report("a");
    assert_eq!((report.tasks.done, report.tasks.failed, report.tasks.waiting), (12, 0, 0));
    let list = success(control(&pool.node, &["ls"]));
    assert!(list.contains("ACCELERATOR") && list.contains("batch"), "{list}");
    let metrics = success(control(&pool.node, &["metrics"]));
    assert!(metrics.contains("weft_tasks_done_total{accelerator=\"a\"} 12"), "{metrics}");
}

/// The examples check what they computed.
#[test]
fn the_examples_of_all_three_languages_are_right() {
    let pool = Pool::start(2, &[]);
    pool.create("a", &["--sla", "1s"]);
    let own = |program: PathBuf| {
        let mut command = Command::new(program);
        command.env("WEFT_RUNTIME_DIR", pool.node.path()).arg("a");
        command
    };
    let bin = provided("WEFT_TEST_BIN");
    let mut c = own(program("tasks"));
    c.env("LD_LIBRARY_PATH", &bin);
    let mut python = pool.python();
    python.arg("-I").arg(root().join("python/examples/tasks.py")).arg("a");
    python.arg(root().join("examples/tasks/kernels.ptx"));
    for command in [own(bin.join("examples/tasks")), c, python] {
        let shown = format!("{command:?}");
        let said = success(command);
        assert!(said.ends_with("ok\n"), "{shown}: {said}");
        assert!(said.contains("no kernel `sakspy`; it has matmul, saxpy"), "{shown}: {said}");
    }
    let tasks = pool.report("a").tasks;
    assert_eq!((tasks.done, tasks.failed), (3 * 9, 0));
    assert!(tasks.longest_ns > 0 && tasks.in_time <= tasks.done);
}

#[track_caller]
fn expect_refused(result: Result<Pending, TaskError>, code: RefusalCode, words: &[&str]) {
    let Err(TaskError::Refused { code: found, message }) = result else {
        panic!("not refused: {result:?}");
    };
    assert_eq!(found, code, "{message}");
    for word in words {
        assert!(message.contains(word), "no {word} in {message}");
    }
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let pool = Pool::start(1, &["pool.p.task_memory=1MiB"]);
    let (accelerator, module) = pool.loaded("a", &["--memory", "256KiB"]);
    let submit = |task: &Task<'_>| accelerator.submit(task);
    let task = |kernel: &str| Task::new(&module, kernel);
    let words = [0u32; 4];
    use RefusalCode::{Arguments, Kernel, Shape, TooLarge};
    expect_refused(submit(&task("cuont")), Kernel, &["cuont", "count, fault, fixed"]);
    expect_refused(submit(&task("count")), Arguments, &["takes 1", "0 are given"]);
    let two = task("count").in_out(&words).scalar(1u32);
    expect_refused(submit(&two), Arguments, &["takes 1", "2 are given"]);
    let short = task("count").scalar(1u32);
    expect_refused(submit(&short), Arguments, &["argument 0", "8 bytes", "4 are given"]);
    let pointer = task("fixed").block([64, 1, 1]).input(&words);
    expect_refused(submit(&pointer), Arguments, &["no pointer"]);
    for grid in [[0, 1, 1], [1, 70_000, 1]] {
        let wrong = task("count").grid(grid).in_out(&words);
        expect_refused(submit(&wrong), Shape, &["grid", "out of range"]);
    }
    let block = task("count").block([2048, 1, 1]).in_out(&words);
    expect_refused(submit(&block), Shape, &["block", "2048"]);
    let other_block = task("fixed").block([32, 1, 1]).scalar(1u32);
    expect_refused(submit(&other_block), Shape, &["[64, 1, 1]"]);
    let shared = task("count").shared_bytes(1 << 20).in_out(&words);
    expect_refused(submit(&shared), Shape, &["shared memory"]);
    let large = task("count").output_bytes(300 << 10);
    expect_refused(submit(&large), TooLarge, &["256KiB", "--memory"]);
    let larger = task("count").output_bytes(2 << 20);
    expect_refused(submit(&larger), TooLarge, &[]);
    for (image, word) in [(&b"no module"[..], "does not load"), (b".version 7.0 .nonsense", "load")]
    {
        let error = accelerator.load(image).unwrap_err();
        assert!(matches!(error, TaskError::Load(_)), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let report = pool.report("a");
    assert_eq!((report.tasks.done, report.tasks.failed, report.tasks.dropped), (0, 0, 0));
    expect_once(&submit(&count(&module, 4)).unwrap());
}

/// What a kernel leaves in a variable the next task would find, or not, as devices change.
#[test]
fn a_kernel_that_writes_a_variable_of_its_module_is_no_task() {
    let pool = Pool::start(1, &[]);
    pool.create("a", &[]);
    let accelerator = pool.open("a").unwrap();
    let text = |others: &str| {
        format!(
            ".version 7.0\n.target sm_70\n.address_size 64\n.global .u32 calls;\n\
             .visible .entry tally() {{ red.global.add.u32 [calls], 1; ret; }}\n{others}"
        )
    };
    let error = accelerator.load(text("").as_bytes()).unwrap_err();
    assert!(matches!(error, TaskError::Load(_)), "{error:?}");
    let words = ["`tally`", "`calls`", "buffer"];
    assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    // Beside a kernel that is one, only the task is refused.
    let idle = text(".visible .entry idle() { .reg .b32 %r<2>; ld.global.u32 %r1, [calls]; ret; }");
    let module = accelerator.load(idle.as_bytes()).unwrap();
    let tally = accelerator.submit(&Task::new(&module, "tally"));
    expect_refused(tally, RefusalCode::Kernel, &words);
    accelerator.submit(&Task::new(&module, "idle")).unwrap().wait_timeout(DEADLINE).unwrap();
    let tasks = pool.report("a").tasks;
    assert_eq!((tasks.done, tasks.failed), (1, 0));
}

#[test]
fn a_full_queue_is_refused_by_name_and_empties_again() {
    let pool = Pool::start(1, &["pool.p.tasks=3", "pool.p.policy=fifo"]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let long: Vec<Pending> =
        (0..3).map(|_| accelerator.submit(&count(&module, 500)).unwrap()).collect();
    let more = accelerator.submit(&count(&module, 1));
    expect_refused(more, RefusalCode::QueueFull, &["`a`", "3 tasks", "wait"]);
    // One that waits is taken back, and its place is free.
    long[2].cancel();
    let cancelled = long[2].wait_timeout(DEADLINE).unwrap_err();
    assert!(matches!(cancelled, TaskError::Cancelled), "{cancelled:?}");
    let last = accelerator.submit(&count(&module, 1)).unwrap();
    assert!(matches!(last.wait_timeout(Duration::ZERO), Err(TaskError::TimedOut)));
    assert!(last.poll().is_none());
    for pending in long[..2].iter().chain([&last]) {
        expect_once(pending);
    }
}

#[test]
fn a_fault_ends_its_task_and_no_other() {
    let pool = Pool::start(2, &[]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let (other, others) = pool.loaded("b", &[]);
    let good: Vec<Pending> =
        (0..4).map(|_| accelerator.submit(&count(&module, 50)).unwrap()).collect();
    let faulty = accelerator.submit(&Task::new(&module, "fault")).unwrap();
    let theirs = other.submit(&count(&others, 50)).unwrap();
    let error = faulty.wait_timeout(DEADLINE).unwrap_err();
    let TaskError::Failed { status, message } = &error else { panic!("{error:?}") };
    assert_eq!(*status, 700, "{message}");
    assert!(message.contains("ILLEGAL_ADDRESS") && message.contains("fault"), "{message}");
    good.iter().chain([&theirs]).for_each(|pending| drop(expect_once(pending)));
    assert_eq!((pool.report("a").tasks.failed, pool.report("b").tasks.failed), (1, 0));
}

#[test]
fn a_device_that_goes_under_load_loses_no_task() {
    let pool = Pool::start(3, &[]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let pending: Vec<Pending> =
        (0..9).map(|_| accelerator.submit(&count(&module, 300)).unwrap()).collect();
    pool.wait_for("a", "three tasks to run", |report| report.tasks.running == 3);
    success(control(&pool.node, &["device", "down", "gpu1"]));
    for pending in &pending {
        expect_once(pending);
    }
    assert_eq!(pool.report("a").tasks.losses, 1);
    // Back in service, it is used again.
    success(control(&pool.node, &["device", "up", "gpu1"]));
    let again: Vec<Pending> =
        (0..6).map(|_| accelerator.submit(&count(&module, 100)).unwrap()).collect();
    let devices: Vec<String> =
        again.iter().map(|pending| expect_once(pending).device().to_owned()).collect();
    assert!(devices.iter().any(|device| device == "gpu1"), "{devices:?}");
}

/// The same code decides in the daemon and in `weft replay`, over devices that go and tasks that
/// stop.
#[test]
fn what_pools_decide_is_in_the_journal_and_replays() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = format!("journal.dir={}", scratch.path().display());
    let pool = Pool::start(2, &[dir.as_str()]);
    let (batch, module) = pool.loaded("a", &[]);
    let (user, user_module) = pool.loaded("u", &["--sla", "1s"]);
    let long: Vec<Pending> =
        (0..4).map(|_| batch.submit(&count(&module, 3_000)).unwrap()).collect();
    pool.wait_for("a", "two tasks to run", |report| report.tasks.running == 2);
    let short: Vec<Pending> =
        (0..4).map(|_| user.submit(&count(&user_module, 20)).unwrap()).collect();
    success(control(&pool.node, &["device", "down", "gpu1"]));
    for pending in long.iter().chain(&short) {
        expect_once(pending);
    }
    success(control(&pool.node, &["device", "up", "gpu1"]));
    // Two accelerators, the devices, submissions and ends at least.
    let mut report = serde_json::Value::Null;
    eventually("the pool's records to be written", || {
        // Not even a folder at first.
        report = replayed(scratch.path()).unwrap_or_default();
        report["pools"]["p"]["records"].as_u64().is_some_and(|records| records >= 2 + 4 + 8 + 8)
    });
    let own = &report["pools"]["p"];
    assert!(own["runs"].as_u64().unwrap() >= 8 && own["lost"] == 0, "{report}");
    // Its folder is a journal too.
    let alone = replayed(&scratch.path().join("pool-p")).unwrap();
    let pools = alone["pools"].as_object().unwrap();
    assert!(pools.len() == 1 && pools.values().all(|pool| pool["lost"] == 0), "{alone}");
}

#[test]
fn killed_workers_and_runners_lose_no_task() {
    let pool = Pool::start(2, &[]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let submit = || -> Vec<Pending> {
        (0..6).map(|_| accelerator.submit(&count(&module, 300)).unwrap()).collect()
    };
    let pending = submit();
    eventually("both devices to work", || {
        pool.node.admin().list().unwrap().iter().all(|vgpu| vgpu.used_ns > 0)
    });
    pool.node.workers().into_iter().for_each(kill);
    for pending in &pending {
        expect_once(pending);
    }
    let report = pool.report("a");
    assert!(report.tasks.losses >= 2, "{report:?}");
    let pending = submit();
    pool.wait_for("a", "two tasks to run", |report| report.tasks.running == 2);
    let runner = pool.report("a").runner.unwrap();
    kill(runner);
    for pending in &pending {
        expect_once(pending);
    }
    assert_ne!(pool.report("a").runner, Some(runner));
}

#[test]
fn without_a_daemon_submitters_are_told_so() {
    let mut pool = Pool::start(2, &[]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let pending: Vec<Pending> =
        (0..4).map(|_| accelerator.submit(&count(&module, 2000)).unwrap()).collect();
    pool.node.kill();
    for pending in &pending {
        let error = pending.wait_timeout(DEADLINE).unwrap_err();
        assert!(matches!(error, TaskError::Lost(_)), "{error:?}");
        assert!(error.to_string().contains("weft node"), "{error}");
    }
    assert!(matches!(accelerator.submit(&count(&module, 1)), Err(TaskError::Lost(_))));
    assert!(matches!(pool.open("a"), Err(TaskError::NoNode(_))));
    // Accelerators outlive a daemon.
    pool.node.launch();
    let accelerator = pool.open("a").unwrap();
    let module = accelerator.load(KERNELS.as_bytes()).unwrap();
    expect_once(&accelerator.submit(&count(&module, 4)).unwrap());
}

/// What waits for a device is dropped with its program; what another program has goes on.
#[test]
fn a_submitter_that_dies_leaves_its_tasks_behind() {
    let pool = Pool::start(1, &["pool.p.policy=fifo"]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let own = accelerator.submit(&count(&module, 10_000)).unwrap();
    let script = "import sys; from weft_tasks import *; a = Accelerator('a'); \
                  m = a.load(sys.argv[1]); b = [bytearray(1600) for _ in range(5)]; \
                  [a.submit(m, 'count', grid=400, args=[Out(o)]) for o in b]; \
                  print('submitted', flush=True); sys.stdin.read()";
    let mut python = pool.python();
    python.arg("-c").arg(script).arg(KERNELS);
    let mut other = Conversation::start(python);
    assert_eq!(other.line(), "submitted");
    assert_eq!(pool.report("a").connections, 2);
    other.kill();
    pool.wait_for("a", "five tasks to be dropped", |report| report.tasks.dropped == 5);
    expect_once(&own);
    pool.wait_for("a", "the queue to be empty", |report| report.tasks.waiting == 0);
    assert_eq!(pool.report("a").tasks.done, 1);
}

/// What runs for a program that died is stopped for good: it does not keep its devices.
#[test]
fn tasks_that_run_for_a_submitter_that_died_end() {
    let pool = Pool::start(2, &[]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let script = "import sys; from weft_tasks import *; a = Accelerator('a'); \
                  m = a.load(sys.argv[1]); b = [bytearray(400000) for _ in range(4)]; \
                  [a.submit(m, 'count', grid=100000, args=[Out(o)]) for o in b]; \
                  print('submitted', flush=True); sys.stdin.read()";
    let mut python = pool.python();
    python.arg("-c").arg(script).arg(KERNELS);
    let mut other = Conversation::start(python);
    assert_eq!(other.line(), "submitted");
    pool.wait_for("a", "two tasks to run", |report| report.tasks.running == 2);
    other.kill();
    pool.wait_for("a", "them to end", |report| report.tasks.running + report.tasks.waiting == 0);
    let tasks = pool.report("a").tasks;
    assert_eq!((tasks.dropped, tasks.done, tasks.failed), (4, 0, 0), "{tasks:?}");
    expect_once(&accelerator.submit(&count(&module, 40)).unwrap());
}

/// User-facing tasks beside long batch ones: batch is stopped for them, and loses no block. Under
/// `fifo` nobody is stopped, and they wait.
#[test]
fn batch_tasks_stop_for_user_facing_ones_and_go_on() {
    let stops = |policy: &str| {
        let pool = Pool::start(2, &[&format!("pool.p.policy={policy}")]);
        let (batch, module) = pool.loaded("batch", &[]);
        let (user, users) = pool.loaded("user", &["--sla", "200ms"]);
        let long: Vec<Pending> =
            (0..4).map(|_| batch.submit(&count(&module, 2500)).unwrap()).collect();
        pool.wait_for("batch", "two tasks to run", |report| report.tasks.running == 2);
        let mut served = 0;
        for _ in 0..8 {
            expect_once(&user.submit(&count(&users, 5)).unwrap());
            served += usize::from(long.iter().all(|pending| pending.poll().is_none()));
        }
        let mut runs = 0;
        for pending in &long {
            runs += expect_once(pending).runs();
        }
        let report = pool.report("batch");
        assert_eq!(u64::from(runs), 4 + report.tasks.stops, "{policy}: {report:?}");
        (served, report.tasks.stops)
    };
    let (served, stopped) = stops("deadline");
    assert_eq!(served, 8, "all user-facing tasks were done before any batch task");
    assert!(stopped >= 8, "{stopped}");
    assert_eq!(stops("fifo"), (0, 0), "they waited for the batch tasks");
}

/// One device and two batch accelerators: what waits behind a long task is user-facing while it
/// waits, and goes first.
#[test]
fn a_class_that_is_set_holds_for_tasks_that_wait() {
    let pool = Pool::start(1, &[]);
    let (long, module) = pool.loaded("long", &[]);
    let (quick, modules) = pool.loaded("quick", &[]);
    let running = long.submit(&count(&module, 5_000)).unwrap();
    pool.wait_for("long", "its task to run", |report| report.tasks.running == 1);
    let behind = long.submit(&count(&module, 5_000)).unwrap();
    let waiting = quick.submit(&count(&modules, 5)).unwrap();
    pool.wait_for("quick", "its task to wait", |report| report.tasks.waiting == 1);
    success(control(&pool.node, &["set", "quick", "--sla", "60s", "--weight", "3"]));
    expect_once(&waiting);
    assert!(running.poll().is_none() && behind.poll().is_none(), "it was stopped, not awaited");
    let report = pool.report("quick");
    assert_eq!((report.sla_ns, report.weight), (60_000_000_000, 3));
    let stats = pool.node.admin().stats().unwrap();
    let members = stats.vgpus.iter().filter(|vgpu| report.vgpus.contains(&vgpu.name));
    let owed: Vec<_> = members.map(|vgpu| (vgpu.sla_ns, vgpu.weight)).collect();
    assert_eq!(owed, [(60_000_000_000, 3)], "its vGPU is owed the same");
    success(control(&pool.node, &["set", "quick", "--sla", "none"]));
    assert_eq!(pool.report("quick").sla_ns, 0);
    expect_once(&running);
    expect_once(&behind);
    assert!(pool.report("long").tasks.stops > 0);
}

/// What is left of a task that was stopped as a batch one is run as the rest, and not anew, when it
/// has become user-facing meanwhile.
#[test]
fn a_stopped_task_goes_on_where_it_stopped_in_another_class() {
    let pool = Pool::start(1, &[]);
    let (long, module) = pool.loaded("long", &[]);
    let (urgent, modules) = pool.loaded("urgent", &["--sla", "200ms"]);
    let stopped = long.submit(&count(&module, 5_000)).unwrap();
    pool.wait_for("long", "its task to run", |report| report.tasks.running == 1);
    let before_it = urgent.submit(&count(&modules, 5_000)).unwrap();
    pool.wait_for("long", "its task to be stopped", |report| report.tasks.stops == 1);
    success(control(&pool.node, &["set", "long", "--sla", "60s"]));
    assert!(before_it.poll().is_none(), "the stopped task was to wait for it");
    expect_once(&before_it);
    // Once before it, and then in turns with it.
    assert!(expect_once(&stopped).runs() >= 2);
}

#[test]
fn a_quota_that_is_set_bounds_the_next_task() {
    let pool = Pool::start(2, &[]);
    let (accelerator, module) = pool.loaded("a", &[]);
    expect_once(&accelerator.submit(&count(&module, 4_000)).unwrap());
    success(control(&pool.node, &["set", "a", "--memory", "4KiB"]));
    // The runner is told; it does not answer.
    let refusal = || match accelerator.submit(&count(&module, 4_000)) {
        Err(TaskError::Refused { code, message }) => Some((code, message)),
        Ok(pending) => {
            drop(pending.wait());
            None
        }
        Err(error) => panic!("{error}"),
    };
    eventually("the quota to hold", || {
        refusal().is_some_and(|(code, message)| {
            code == RefusalCode::TooLarge && message.contains("weft set")
        })
    });
    success(control(&pool.node, &["set", "a", "--memory", "64MiB"]));
    eventually("the quota to be lifted", || refusal().is_none());
}

#[test]
fn what_cannot_be_set_of_an_accelerator_is_said() {
    let pool = Pool::start(1, &[]);
    pool.create("a", &[]);
    let member = pool.report("a").vgpus[0].clone();
    let refused = |arguments: &[&str]| {
        let output = finish(control(&pool.node, arguments));
        assert!(!output.status.success(), "{arguments:?}");
        text_of(&output)
    };
    let said = refused(&["set", "a", "--cap", "10%"]);
    assert!(said.contains("has no cap"), "{said}");
    let said = refused(&["set", &member, "--weight", "3"]);
    assert!(said.contains("part of virtual accelerator `a`; set that one"), "{said}");
    let said = refused(&["set", "a", "--memory", "100TiB"]);
    assert!(said.contains("out of range"), "{said}");
    let said = refused(&["move", "a", "p"]);
    assert!(said.contains("virtual accelerator"), "{said}");
    assert_eq!(pool.report("a").weight, 1);
}

#[test]
fn an_accelerator_with_a_token_asks_for_it() {
    let pool = Pool::start(1, &[]);
    pool.create("a", &["--token", "sesame"]);
    let options = || Options::at(&pool.socket());
    for wrong in ["", "sesam", "sesame "] {
        let error = Accelerator::open_with("a", options().with_token(wrong)).unwrap_err();
        assert!(error.to_string().contains("needs its token (WEFT_TOKEN)"), "{error}");
    }
    let accelerator = Accelerator::open_with("a", options().with_token("sesame")).unwrap();
    accelerator.load(KERNELS.as_bytes()).unwrap();
    let mut python = pool.python();
    python.env("WEFT_TOKEN", "sesame").arg("-c");
    python.arg("from weft_tasks import *; Accelerator('a'); print('in')");
    assert!(success(python).contains("in"));
    let kept = std::fs::read_to_string(pool.node.path().join("state/accelerators.json"));
    assert!(!kept.unwrap_or_default().contains("sesame"), "only its digest is kept");
}

#[test]
fn accelerators_are_their_owners() {
    if !is_root() {
        return;
    }
    let pool = Pool::start(1, &[]);
    pool.create("theirs", &["--owner", "1001"]);
    let error = pool.open("theirs").unwrap_err();
    assert!(error.to_string().contains("another user"), "{error}");
    let error = pool.open("nobodys").unwrap_err();
    assert!(error.to_string().contains("weft create"), "{error}");
    // No program attaches to it, by neither of its names, and nobody else takes its name.
    let attach = pool.node.run(&["--name", "theirs"], &program("vector_add"), &[]);
    let said = text_of(&finish(attach));
    assert!(said.contains("takes tasks and no sessions"), "{said}");
    for name in ["theirs", "theirs@gpu0"] {
        let create = control(&pool.node, &["create", name]);
        assert!(!finish(create).status.success(), "{name}");
    }
    let foreign = as_user(1002, &[], &control(&pool.node, &["rm", "theirs"]));
    let refused = finish(foreign);
    assert!(text_of(&refused).contains("1001"), "{}", text_of(&refused));
    success(control(&pool.node, &["rm", "theirs"]));
    assert!(pool.node.admin().stats().unwrap().accelerators.is_empty());
    assert!(pool.node.admin().list().unwrap().is_empty(), "its vGPUs are gone with it");
}

#[test]
fn an_accelerator_in_use_is_removed_by_force_and_its_tasks_fail() {
    let pool = Pool::start(1, &[]);
    let (accelerator, module) = pool.loaded("a", &[]);
    let pending = accelerator.submit(&count(&module, 5000)).unwrap();
    let refused = finish(control(&pool.node, &["rm", "a"]));
    assert!(text_of(&refused).contains("--force"), "{}", text_of(&refused));
    success(control(&pool.node, &["rm", "a", "--force"]));
    let error = pending.wait_timeout(DEADLINE).unwrap_err();
    assert!(matches!(error, TaskError::Lost(_)), "{error:?}");
    assert!(error.to_string().contains("no virtual accelerator"), "{error}");
    let wrong = finish(control(&pool.node, &["create", "b", "--tasks", "--device", "gpu0"]));
    assert!(text_of(&wrong).contains("no pool `gpu0`"), "{}", text_of(&wrong));
}
