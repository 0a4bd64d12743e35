//! A whole program over the C functions: the software GPU adds two vectors, on both clocks.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic")]

use std::ffi::CStr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_direct::abi::{
    self, weft_direct_call, weft_direct_close, weft_direct_open, weft_direct_submit,
};
use weft_ring::{
    Access, ClientOptions, ClientSide, MemoryFile, Patience, Reservation, Segment, SharedMemory,
};
use weft_wire::codec::{Field, decode_all};
use weft_wire::command::{Block, Endpoint, LaunchSpec, Payload, Place, Shape};
use weft_wire::handshake::{Answer, Hello, HelloBody, PROTOCOL_VERSION, Welcome};
use weft_wire::id::{ContextId, ModuleId, StreamId};
use weft_wire::{Command, Status, reply};

const PTX: &[u8] = br#"
.version 6.4
.target sm_75
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<11>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd4, %r5, 4;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
"#;

const CONTEXT: ContextId = ContextId { index: 0, generation: 1 };
const MODULE: ModuleId = ModuleId { index: 0, generation: 1 };
const LEGACY: StreamId = StreamId::LEGACY;
const COUNT: usize = 1000;

struct Program {
    session: abi::SessionParts,
    side: ClientSide,
    pinned: Arc<SharedMemory>,
    _device: Reservation,
}

fn hello(device: &Reservation, pinned_base: usize) -> Vec<u8> {
    let body = HelloBody {
        vgpu: String::new(),
        weight: 0,
        memory_bytes: 64 << 20,
        token: String::new(),
        pid: 1,
        program: "test".into(),
        device_base: device.address() as u64,
        device_bytes: device.len() as u64,
        pinned_base: pinned_base as u64,
        pinned_bytes: 1 << 20,
    };
    Hello { version: PROTOCOL_VERSION, body }.to_bytes().unwrap()
}

fn open(hello: &[u8], device: &CStr) -> (i32, Answer, abi::SessionParts) {
    let mut session = abi::SessionParts { session: ptr::null_mut(), segment_fd: -1, pinned_fd: -1 };
    let mut answer = vec![0; 16 << 10];
    let mut len = 0;
    // SAFETY: all pointers come from live references with the lengths beside them.
    let outcome = unsafe {
        weft_direct_open(
            hello.as_ptr(),
            hello.len(),
            device.as_ptr(),
            answer.as_mut_ptr(),
            answer.len(),
            &raw mut len,
            &raw mut session,
        )
    };
    (outcome, Answer::from_bytes(&answer[..len]).unwrap(), session)
}

fn received(fd: i32) -> MemoryFile {
    // SAFETY: the session gave this descriptor to us, and nobody else closes it.
    MemoryFile::received(unsafe { OwnedFd::from_raw_fd(fd) }).unwrap()
}

impl Program {
    fn start(device: &CStr) -> Self {
        let range = Reservation::anywhere(1 << 36).unwrap();
        let window = Reservation::anywhere(1 << 20).unwrap();
        let (outcome, answer, session) = open(&hello(&range, window.address()), device);
        assert_eq!(outcome, 0);
        let Answer::Welcome(Welcome { memory_bytes, capability_major, .. }) = answer else {
            panic!("refused: {answer:?}")
        };
        assert_eq!((memory_bytes, capability_major), (64 << 20, 7));
        let segment = received(session.segment_fd).map(Access::ReadWrite).unwrap();
        let segment = Segment::open(segment).unwrap();
        let side = ClientSide::open(segment, ClientOptions::default(), Box::new(|| true)).unwrap();
        let pinned = received(session.pinned_fd).map_over(window, Access::ReadWrite).unwrap();
        let program = Self { session, side, pinned, _device: range };
        program.submit(&Command::ContextCreate { context: CONTEXT });
        let (address, bytes) = (program.pinned.address() as u64, 3 * 4096);
        assert_eq!(program.call(&Command::PinnedQuota { bytes }).0, Status::SUCCESS);
        program.submit(&Command::PinnedRange { address, bytes, used: 1 });
        program
    }

    fn submit(&self, command: &Command<'_>) {
        let bytes = encode(command);
        // SAFETY: the session is open, and the bytes are live.
        let code = unsafe { weft_direct_submit(self.session.session, bytes.as_ptr(), bytes.len()) };
        assert_eq!(code, 0, "{command:?}");
    }

    fn call(&self, command: &Command<'_>) -> (Status, Vec<u8>) {
        let bytes = encode(command);
        let mut body = vec![0; 4096];
        let mut len = 0;
        // SAFETY: the session is open, and both slices are live.
        let code = unsafe {
            weft_direct_call(
                self.session.session,
                bytes.as_ptr(),
                bytes.len(),
                body.as_mut_ptr(),
                body.len(),
                &raw mut len,
            )
        };
        body.truncate(len);
        (Status::from_peer(code), body)
    }

    fn ask<T: for<'a> Field<'a>>(&self, command: &Command<'_>) -> T {
        let (status, body) = self.call(command);
        assert_eq!(status, Status::SUCCESS, "{command:?}: {}", String::from_utf8_lossy(&body));
        decode_all(&body).unwrap()
    }

    fn load(&self, image: &[u8]) -> (Status, String) {
        let patience = Patience::while_alive(&|| true);
        let block = self.side.arena().alloc(image.len(), &patience).unwrap();
        block.span().unwrap().write_from(image).unwrap();
        let answer = self.side.arena().alloc(4096, &patience).unwrap();
        let named = |arena: weft_ring::ArenaRef| Block {
            offset: arena.offset,
            bytes: arena.len,
            release: arena.block,
        };
        let images = vec![named(block.hand_over())];
        let command = Command::ModuleLoad {
            context: CONTEXT,
            module: MODULE,
            images,
            answer: named(answer.reference()),
        };
        let (status, body) = self.call(&command);
        assert!(answer.is_released());
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    fn alloc(&self) -> u64 {
        let bytes = 4 * COUNT as u64;
        self.ask::<reply::Address>(&Command::MemAlloc { context: CONTEXT, bytes }).address
    }

    /// The pinned bytes of vector number `slot`.
    fn host(&self, slot: usize) -> Place<'static> {
        let address = (self.pinned.address() + slot * 4096) as u64;
        Place::Host(Payload::Pinned { address, bytes: 4 * COUNT as u64 })
    }

    fn copy(&self, dst: Place<'_>, src: Place<'_>) {
        let side = |place| Endpoint { place, pitch: 0, slice: 0 };
        let shape = Shape { width: 4 * COUNT as u64, height: 1, depth: 1 };
        self.submit(&Command::Copy { stream: LEGACY, dst: side(dst), src: side(src), shape });
    }

    fn write(&self, slot: usize, value: impl Fn(usize) -> f32) {
        let bytes: Vec<u8> = (0..COUNT).flat_map(|i| value(i).to_le_bytes()).collect();
        self.pinned.span(slot * 4096, bytes.len()).unwrap().write_from(&bytes).unwrap();
    }

    fn read(&self, slot: usize) -> Vec<f32> {
        let bytes = self.pinned.span(slot * 4096, 4 * COUNT).unwrap().to_vec();
        bytes.chunks(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect()
    }

    fn launch(&self, pointers: [u64; 3]) {
        let mut params: Vec<u8> = pointers.iter().flat_map(|p| p.to_le_bytes()).collect();
        params.extend(u32::try_from(COUNT).unwrap().to_le_bytes());
        let launch = LaunchSpec {
            module: MODULE,
            function: 0,
            grid: [8, 1, 1],
            block: [128, 1, 1],
            shared_bytes: 0,
            params: Payload::Inline(&params),
        };
        self.submit(&Command::Launch { stream: LEGACY, launch });
    }

    fn synchronize(&self) -> Status {
        self.call(&Command::ContextSynchronize { context: CONTEXT }).0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and no other thread uses it.
        unsafe { weft_direct_close(self.session.session) };
    }
}

fn encode(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = vec![0; weft_wire::command::COMMAND_BYTES_MAX];
    let length = command.encode(&mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

fn add_vectors(program: &Program) {
    assert_eq!(program.load(PTX).0, Status::SUCCESS);
    let [a, b, c] = [0; 3].map(|_: i32| program.alloc());
    program.write(0, |i| i as f32);
    program.write(1, |i| 2.0 * i as f32);
    program.copy(Place::Device(a), program.host(0));
    program.copy(Place::Device(b), program.host(1));
    program.launch([a, b, c]);
    program.copy(program.host(2), Place::Device(c));
    assert_eq!(program.synchronize(), Status::SUCCESS);
    let sums = program.read(2);
    assert!(sums.iter().enumerate().all(|(i, sum)| *sum == 3.0 * i as f32), "{sums:?}");
}

#[test]
fn vectors_are_added_as_fast_as_the_cpu_allows() {
    add_vectors(&Program::start(c"soft"));
}

#[test]
fn a_paced_device_takes_at_least_its_model() {
    let program = Program::start(c"soft:paced");
    let start = Instant::now();
    add_vectors(&program);
    // Three copies and a kernel of 8 blocks by the default model.
    assert!(start.elapsed() >= Duration::from_nanos(3 * 2_000 + 5_000 + 8 * 200));
}

#[test]
fn a_bad_pointer_is_an_illegal_address_until_the_context_goes() {
    let program = Program::start(c"soft");
    assert_eq!(program.load(PTX).0, Status::SUCCESS);
    program.launch([8, 8, 8]);
    assert_eq!(program.synchronize(), Status::ILLEGAL_ADDRESS);
    let destroyed = program.call(&Command::ContextDestroy { context: CONTEXT });
    assert_eq!(destroyed.0, Status::SUCCESS);
    program.submit(&Command::ContextCreate { context: CONTEXT });
    add_vectors(&program);
}

#[test]
fn what_is_no_ptx_says_so() {
    let program = Program::start(c"soft");
    let (status, text) = program.load(b".version 6.4\n.target sm_75\n.entry broken( {");
    assert_eq!(status, Status::INVALID_PTX);
    assert!(text.contains('3'), "the line is missing: {text}");
}

#[test]
fn a_device_that_does_not_exist_is_refused_in_words() {
    let range = Reservation::anywhere(1 << 30).unwrap();
    let (outcome, answer, session) = open(&hello(&range, 1 << 44), c"hard");
    assert_eq!((outcome, session.segment_fd), (1, -1));
    let Answer::Refused { message, .. } = answer else { panic!("welcome: {answer:?}") };
    assert!(message.contains("hard") && message.contains("soft:paced"), "{message}");
}
