"""Tasks: self-contained kernel launches that any device of a pool may run.

    from array import array
    from weft_tasks import Accelerator, In, InOut, f32, u32

    with Accelerator("vision") as accelerator:
        module = accelerator.load(open("saxpy.ptx", "rb").read())
        x, y = array("f", [1.0] * 1024), array("f", [2.0] * 1024)
        future = accelerator.submit(
            module, "saxpy", grid=4, block=256, args=[InOut(y), In(x), f32(3.0), u32(1024)]
        )
        future.result()  # y holds 5.0 by then

Buffers are objects with the buffer protocol: bytes, array, memoryview, NumPy arrays. Inputs are
copied when a task is submitted, outputs are written when it is done, before its future says so.
A task that cannot run is refused by `submit`, before anything runs.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from . import _library

__all__ = [
    "Accelerator",
    "Cancelled",
    "Failed",
    "In",
    "InOut",
    "Lost",
    "Module",
    "NoAccelerator",
    "NotLoaded",
    "Out",
    "QueueFull",
    "Refused",
    "Result",
    "Scalar",
    "TaskError",
    "TaskFuture",
    "f32",
    "f64",
    "i32",
    "i64",
    "u32",
    "u64",
]

_SCALAR, _INPUT, _OUTPUT, _IN_OUT = range(4)
_TIMED_OUT = 8


class TaskError(Exception):
    """What a call or a task met. The text says what happened, and what to do."""


class NoAccelerator(TaskError):
    """The node is not there, or has no such accelerator for this user."""


class NotLoaded(TaskError):
    """The module is not loaded."""


class Refused(TaskError):
    """The task is refused; nothing of it ran."""


class QueueFull(Refused):
    """As many tasks, or bytes, as may be outstanding are; wait for one of them."""


class Failed(TaskError):
    """The task failed on the device."""

    #: The CUresult.
    status: int = 0


class Lost(TaskError):
    """The node went away before the task was done."""


class Cancelled(TaskError):
    """The task was cancelled before it ran."""


_ERRORS: Dict[int, Type[Exception]] = {
    1: ValueError,
    2: NoAccelerator,
    3: NotLoaded,
    4: Refused,
    5: QueueFull,
    6: Failed,
    7: Lost,
    _TIMED_OUT: TimeoutError,
    9: Cancelled,
}


def _error(code: int) -> Exception:
    words = (_library.library().weft_tasks_error() or b"").decode(errors="replace")
    return _ERRORS.get(code, TaskError)(words)


def _check(code: int) -> None:
    if code != 0:
        raise _error(code)


class Scalar(NamedTuple):
    """A parameter that is no pointer, as it lies in memory."""

    data: bytes


def f32(value: float) -> Scalar:
    """A `float`."""
    return Scalar(struct.pack("<f", value))


def f64(value: float) -> Scalar:
    """A `double`."""
    return Scalar(struct.pack("<d", value))


def i32(value: int) -> Scalar:
    """An `int`."""
    return Scalar(struct.pack("<i", value))


def i64(value: int) -> Scalar:
    """A `long long`."""
    return Scalar(struct.pack("<q", value))


def u32(value: int) -> Scalar:
    """An `unsigned`."""
    return Scalar(struct.pack("<I", value))


def u64(value: int) -> Scalar:
    """An `unsigned long long`."""
    return Scalar(struct.pack("<Q", value))


class In(NamedTuple):
    """A buffer that the kernel reads."""

    buffer: Any


class Out(NamedTuple):
    """A buffer that the kernel writes; zeros before. It must be writable."""

    buffer: Any


class InOut(NamedTuple):
    """A buffer that the kernel reads and changes. It must be writable."""

    buffer: Any


Arg = Union[Scalar, In, Out, InOut]
Shape = Union[int, Sequence[int]]


class Result(NamedTuple):
    """What is told of a task that is done. Its outputs are in the buffers that were given."""

    #: Device time that it took, in ns.
    used_ns: int
    #: From its submission to its end, in ns.
    latency_ns: int
    #: How often it was on a device: more than once if it was stopped for others or lost one.
    runs: int
    #: The device where it ended.
    device: str


class TaskFuture(Future):  # type: ignore[type-arg]
    """The future result of a task: a `Result`, or what was wrong as a `TaskError`."""

    def __init__(self, pending: int, kept: List[Any]) -> None:
        super().__init__()
        self._pending = pending
        # What the task's pointers point to.
        self._kept = kept
        self._lock = threading.Lock()

    def cancel(self) -> bool:
        """Takes the task back if it still waits. Whether it did, its result tells: `Cancelled`."""
        with self._lock:
            if self._pending:
                _library.library().weft_tasks_cancel(self._pending)
        return False

    def _finish(self) -> None:
        """The task is over: writes its outputs, and tells who waits."""
        lib, done = _library.library(), _library.Done()
        with self._lock:
            code = lib.weft_tasks_wait(self._pending, -1, ctypes.byref(done))
            error = None if code == 0 else _error(code)
            lib.weft_tasks_release(self._pending)
            self._pending, self._kept = 0, []
        if error is None:
            device = done.device.decode(errors="replace")
            self.set_result(Result(done.used_ns, done.latency_ns, done.runs, device))
        else:
            if isinstance(error, Failed):
                error.status = done.status
            self.set_exception(error)


class Module:
    """A module of an accelerator. Forgotten there when it is closed, or no longer used."""

    def __init__(self, accelerator: "Accelerator", handle: int) -> None:
        self._accelerator, self._handle = accelerator, handle

    def close(self) -> None:
        """Forgets it. Tasks that were submitted go on."""
        handle, self._handle = self._handle, 0
        if handle:
            _library.library().weft_tasks_unload(handle)

    def __del__(self) -> None:
        self.close()


def _shape(shape: Shape) -> Tuple[int, int, int]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not 1 <= len(sizes) <= 3 or any(not 0 <= size < 1 << 32 for size in sizes):
        raise Refused(f"{shape!r} is no shape; one to three sizes are")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _argument(arg: Arg, kept: List[Any]) -> _library.Argument:
    if isinstance(arg, Scalar):
        kind, data, writable = _SCALAR, arg.data, False
    elif isinstance(arg, In):
        kind, data, writable = _INPUT, arg.buffer, False
    elif isinstance(arg, Out):
        kind, data, writable = _OUTPUT, arg.buffer, True
    elif isinstance(arg, InOut):
        kind, data, writable = _IN_OUT, arg.buffer, True
    else:
        raise TypeError(f"{arg!r} is no argument; use In, Out, InOut or a scalar such as u32(1)")
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("a buffer must be contiguous")
    if writable and view.readonly:
        raise ValueError("an output must be a writable buffer")
    size = view.nbytes
    if size == 0:
        return _library.Argument(kind, None, 0)
    flat = view.cast("B") if view.format != "B" or view.ndim != 1 else view
    memory: Any = (ctypes.c_char * size).from_buffer(flat) if not view.readonly else None
    if memory is None:
        memory = ctypes.create_string_buffer(flat.tobytes(), size)
    kept.append((memory, flat, data))
    return _library.Argument(kind, ctypes.addressof(memory), size)


class Accelerator:
    """A connection to a virtual accelerator (`weft create NAME --tasks --device POOL`)."""

    def __init__(self, name: str, socket: Optional[str] = None) -> None:
        """Connects on the node that listens at `socket`, or that the environment names."""
        lib, handle = _library.library(), ctypes.c_void_p()
        path = None if socket is None else socket.encode()
        _check(lib.weft_tasks_open(name.encode(), path, ctypes.byref(handle)))
        self._handle: int = handle.value or 0
        self._futures: Dict[int, TaskFuture] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="weft-tasks", daemon=True)
        self._thread.start()

    def load(self, image: Union[bytes, str]) -> Module:
        """Loads a module: PTX text or a fatbin."""
        data = image.encode() if isinstance(image, str) else bytes(image)
        handle = ctypes.c_void_p()
        lib = _library.library()
        _check(lib.weft_tasks_load(self._open(), data, len(data), ctypes.byref(handle)))
        return Module(self, handle.value or 0)

    def submit(
        self,
        module: Module,
        kernel: str,
        *,
        grid: Shape = 1,
        block: Shape = 1,
        args: Sequence[Arg] = (),
        shared_bytes: int = 0,
        estimate_ns: int = 0,
    ) -> TaskFuture:
        """Submits a task; returns as soon as the node has looked at it.

        Outputs must not be resized or freed until the future is done.
        """
        if not module._handle:
            raise Refused("the module is closed")
        kept: List[Any] = [module]
        given = [_argument(arg, kept) for arg in args]
        task = _library.Task(
            module=module._handle,
            kernel=kernel.encode(),
            grid=_shape(grid),
            block=_shape(block),
            shared_bytes=shared_bytes,
            notify=1,
            estimate_ns=estimate_ns,
            arguments=(_library.Argument * len(given))(*given),
            argument_count=len(given),
        )
        pending = ctypes.c_void_p()
        lib = _library.library()
        _check(lib.weft_tasks_submit(self._open(), ctypes.byref(task), ctypes.byref(pending)))
        handle = pending.value or 0
        future = TaskFuture(handle, kept)
        future.set_running_or_notify_cancel()
        with self._changed:
            self._futures[lib.weft_tasks_number(handle)] = future
            self._changed.notify_all()
        return future

    def run(self, module: Module, kernel: str, **options: Any) -> Result:
        """Submits a task and waits for its end; takes what `submit` takes."""
        result: Result = self.submit(module, kernel, **options).result()
        return result

    def close(self) -> None:
        """Waits for all tasks, and ends the connection."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        handle, self._handle = self._handle, 0
        _library.library().weft_tasks_close(handle)

    def __enter__(self) -> "Accelerator":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _open(self) -> int:
        if not self._handle:
            raise Lost("the accelerator is closed")
        return self._handle

    def _listen(self) -> None:
        """Finishes futures, in the order in which their tasks end."""
        lib, number = _library.library(), ctypes.c_uint64()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._futures or self._closing)
                if not self._futures:
                    return
            # At least one task is out, whose number comes.
            if lib.weft_tasks_next(self._handle, -1, ctypes.byref(number)) != 0:
                return
            with self._changed:
                # Its number may come before `submit` has written it down.
                self._changed.wait_for(lambda: number.value in self._futures)
                future = self._futures.pop(number.value)
            future._finish()
