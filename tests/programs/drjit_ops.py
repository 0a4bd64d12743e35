"""Dr.Jit's kernels of every kind against NumPy, on the CUDA device."""

import sys

import drjit as dr
import numpy
from drjit.cuda import Bool, Float, Float16, Float64, Int, UInt
from drjit.cuda.ad import Float as Differentiable

random = numpy.random.default_rng(7)
failures = []


def check(name, got, expected, tolerance=1e-5):
    got, expected = numpy.asarray(got), numpy.asarray(expected)
    if got.shape != expected.shape:
        failures.append(f"{name}: shape {got.shape}, expected {expected.shape}")
    elif not numpy.allclose(got, expected, rtol=tolerance, atol=tolerance):
        failures.append(f"{name}: {got.ravel()[:6]}, expected {expected.ravel()[:6]}")


def arithmetic():
    x = random.uniform(0.1, 4, 1000)
    for kind, precision in ((Float16, 5e-3), (Float, 1e-5), (Float64, 1e-12)):
        a = kind(x)
        x = numpy.array(a, numpy.float64)
        name = kind.__name__
        check(f"{name} fma", dr.fma(a, a, kind(1)), x * x + 1, precision)
        check(f"{name} sqrt", dr.sqrt(a), numpy.sqrt(x), precision)
        check(f"{name} exp", dr.exp(a), numpy.exp(x), 4 * precision)
        check(f"{name} sin", dr.sin(a), numpy.sin(x), precision)
        check(f"{name} log", dr.log(a), numpy.log(x), precision)
    n = random.integers(0, 1 << 32, 1000, dtype=numpy.uint32)
    check("popcnt", dr.popcnt(UInt(n)), [int(v).bit_count() for v in n])
    check("lzcnt", dr.lzcnt(UInt(n)), [32 - int(v).bit_length() for v in n])
    wide = n.astype(numpy.uint64)
    check("product", dr.mul_hi(UInt(n), UInt(n[::-1])), wide * wide[::-1] >> 32)
    check("remainder", Int(n // 2) % 1000, n // 2 % 1000)


def reductions():
    for size in (1, 13, 777, 100_000):
        x = random.integers(0, 1000, size).astype(numpy.float32)
        a = Float(x)
        check(f"sum of {size}", dr.sum(a), [x.sum(dtype=numpy.float64)])
        check(f"min of {size}", dr.min(a), [x.min()])
        check(f"max of {size}", dr.max(a), [x.max()])
        check(f"dot of {size}", dr.dot(a, a), [(x.astype(numpy.float64) ** 2).sum()])
        check(f"all of {size}", dr.all(a < 1000), [True])
        check(f"any of {size}", dr.any(a > 999), [False])
        check(f"sums up to {size}", dr.cumsum(a), x.cumsum(dtype=numpy.float64))
        check(f"places of {size}", dr.compress(a > 500), numpy.flatnonzero(x > 500))
    x = numpy.arange(64, dtype=numpy.float32)
    check("sums of blocks", dr.block_sum(Float(x), 8), x.reshape(8, 8).sum(1))


def memory():
    places = random.integers(0, 100, 5000, dtype=numpy.uint32)
    values = random.integers(0, 100, 5000).astype(numpy.float32)
    odd = places % 2 == 1
    for name, operation, plain in (
        ("add", dr.ReduceOp.Add, numpy.add),
        ("min", dr.ReduceOp.Min, numpy.minimum),
        ("max", dr.ReduceOp.Max, numpy.maximum),
    ):
        got, expected = dr.full(Float, 50, 100), numpy.full(100, 50, numpy.float32)
        dr.scatter_reduce(operation, got, Float(values), UInt(places), Bool(odd))
        plain.at(expected, places[odd], values[odd])
        check(f"scattered {name}", got, expected)
    got = dr.gather(Float, Float(values), UInt(places), Bool(odd))
    check("masked gather", got, numpy.where(odd, values[places], 0))
    counter = dr.zeros(UInt, 1)
    slots = dr.scatter_inc(counter, dr.zeros(UInt, 500))
    check("slots", numpy.sort(numpy.array(slots)), numpy.arange(500))
    local = dr.alloc_local(Float, 8, value=dr.zeros(Float, 3))
    local[UInt(0, 3, 7)] = Float(1, 2, 3)
    check("array of a thread", local[UInt(0, 3, 6)], [1, 2, 0])


@dr.syntax
def collatz(n):
    steps = dr.zeros(UInt, dr.width(n))
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def control():
    steps = []
    for n in range(1, 200):
        steps.append(0)
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps[-1] += 1
    check("loop", collatz(dr.arange(UInt, 199) + 1), steps)
    x = random.uniform(-1, 1, 999).astype(numpy.float32)
    which = numpy.arange(999, dtype=numpy.uint32) % 3
    functions = [lambda v: v + 10, lambda v: v * v, lambda v: -v]
    called = dr.switch(UInt(which), functions, Float(x))
    check("calls", called, numpy.choose(which, [x + 10, x * x, -x]))


def gradients():
    x = random.uniform(0.5, 2, 300)
    variable = Differentiable(x)
    dr.enable_grad(variable)
    dr.backward(dr.sum(dr.sin(variable) * variable))
    check("gradient", dr.grad(variable), numpy.cos(x) * x + numpy.sin(x))


for group in (arithmetic, reductions, memory, control, gradients):
    group()
if failures:
    sys.exit("\n".join(failures))
print("all kernels agree")
