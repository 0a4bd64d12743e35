"""tinygrad's operations of every kind against NumPy, on whatever DEV says."""

import os
import sys

import numpy
from tinygrad import Tensor, TinyJit, dtypes

random = numpy.random.default_rng(11)
failures = []


def check(name, got, expected, tolerance=1e-4):
    got = got.numpy() if isinstance(got, Tensor) else numpy.asarray(got)
    expected = numpy.asarray(expected)
    if got.shape != expected.shape:
        failures.append(f"{name}: shape {got.shape}, expected {expected.shape}")
    elif not numpy.allclose(
        got.astype(numpy.float64), expected.astype(numpy.float64), rtol=tolerance, atol=tolerance, equal_nan=True
    ):
        worst = numpy.nanmax(numpy.abs(got.astype(numpy.float64) - expected.astype(numpy.float64)))
        failures.append(f"{name}: differs by up to {worst}")


def floats(*shape, low=-2.0, high=2.0):
    return random.uniform(low, high, shape).astype(numpy.float32)


def unary():
    x = floats(45, 33)
    positive = floats(45, 33, low=0.1, high=4.0)
    cases = {
        "neg": (lambda t: -t, lambda a: -a, x),
        "abs": (lambda t: t.abs(), numpy.abs, x),
        "exp": (lambda t: t.exp(), numpy.exp, x),
        "log": (lambda t: t.log(), numpy.log, positive),
        "sqrt": (lambda t: t.sqrt(), numpy.sqrt, positive),
        "rsqrt": (lambda t: t.rsqrt(), lambda a: 1 / numpy.sqrt(a), positive),
        "sin": (lambda t: t.sin(), numpy.sin, 20 * x),
        "cos": (lambda t: t.cos(), numpy.cos, 20 * x),
        "tanh": (lambda t: t.tanh(), numpy.tanh, x),
        "sigmoid": (lambda t: t.sigmoid(), lambda a: 1 / (1 + numpy.exp(-a)), x),
        "relu": (lambda t: t.relu(), lambda a: numpy.maximum(a, 0), x),
        "floor": (lambda t: t.floor(), numpy.floor, 5 * x),
        "ceil": (lambda t: t.ceil(), numpy.ceil, 5 * x),
        "trunc": (lambda t: t.trunc(), numpy.trunc, 5 * x),
        "reciprocal": (lambda t: t.reciprocal(), lambda a: 1 / a, positive),
        "square": (lambda t: t.square(), numpy.square, x),
        "sign": (lambda t: t.sign(), numpy.sign, x),
    }
    for name, (ours, theirs, data) in cases.items():
        check(name, ours(Tensor(data)), theirs(data))


def binary():
    a, b = floats(17, 64), floats(17, 64)
    b[numpy.abs(b) < 0.1] = 0.5
    check("add", Tensor(a) + Tensor(b), a + b)
    check("sub", Tensor(a) - Tensor(b), a - b)
    check("mul", Tensor(a) * Tensor(b), a * b)
    check("div", Tensor(a) / Tensor(b), a / b, 1e-3)
    check("pow", Tensor(numpy.abs(a) + 0.1) ** Tensor(b), (numpy.abs(a) + 0.1) ** b, 1e-3)
    check("maximum", Tensor(a).maximum(Tensor(b)), numpy.maximum(a, b))
    check("minimum", Tensor(a).minimum(Tensor(b)), numpy.minimum(a, b))
    check("less", Tensor(a) < Tensor(b), a < b)
    check("equal", Tensor(a) == Tensor(a), a == a)
    check("where", (Tensor(a) > 0).where(Tensor(a), Tensor(b)), numpy.where(a > 0, a, b))
    check("broadcast", Tensor(a) + Tensor(b[0]), a + b[0])


def integers():
    for kind in (numpy.int8, numpy.uint8, numpy.int16, numpy.uint16, numpy.int32, numpy.uint32, numpy.int64, numpy.uint64):
        high = min(int(numpy.iinfo(kind).max), 10_000)
        low = max(int(numpy.iinfo(kind).min), -10_000)
        a = random.integers(low, high, (31, 9), dtype=kind)
        b = random.integers(1, 100, (31, 9), dtype=kind)
        name = numpy.dtype(kind).name
        check(f"{name} add", Tensor(a) + Tensor(b), a + b)
        check(f"{name} mul", Tensor(a) * Tensor(b), a * b)
        check(f"{name} xor", Tensor(a) ^ Tensor(b), a ^ b)
        check(f"{name} and", Tensor(a) & Tensor(b), a & b)
        check(f"{name} or", Tensor(a) | Tensor(b), a | b)
        check(f"{name} floor division", Tensor(a) // Tensor(b), a // b)
        check(f"{name} max", Tensor(a).max(), a.max())
        check(f"{name} to float", Tensor(a).cast(dtypes.float32), a.astype(numpy.float32))
    a = random.integers(0, 1 << 20, (64,), dtype=numpy.uint32)
    check("shift left", Tensor(a) << 3, a << 3)
    check("shift right", Tensor(a) >> 3, a >> 3)


def casts():
    a = 60 * floats(50)  # Within int8: beyond, the result is anybody's.
    for kind, name in ((dtypes.int32, "int32"), (dtypes.int8, "int8"), (dtypes.float16, "float16"),
                       (dtypes.float64, "float64"), (dtypes.bool, "bool")):
        check(f"to {name}", Tensor(a).cast(kind), a.astype(name), 1e-3)
    half = floats(40).astype(numpy.float16)
    check("half add", Tensor(half) + Tensor(half), half + half, 1e-2)
    check("half mul", Tensor(half) * 2.5, half * numpy.float16(2.5), 1e-2)
    double = random.standard_normal(60)
    if "WEFT_TEST_DEVICE" not in os.environ:  # tinygrad writes ex2.approx.f64, which no GPU has.
        check("double", Tensor(double).exp().log() * 3.0, double * 3.0, 1e-6)
    brain = Tensor(floats(33)).cast(dtypes.bfloat16)
    check("bfloat16", brain.cast(dtypes.float32), brain.float().numpy(), 1e-2)


def reductions():
    a = floats(23, 57, 5)
    for axis in (None, 0, 1, 2, (0, 2)):
        check(f"sum {axis}", Tensor(a).sum(axis=axis), a.sum(axis=axis), 1e-3)
        check(f"max {axis}", Tensor(a).max(axis=axis), a.max(axis=axis))
        check(f"min {axis}", Tensor(a).min(axis=axis), a.min(axis=axis))
        check(f"mean {axis}", Tensor(a).mean(axis=axis), a.mean(axis=axis), 1e-3)
    check("argmax", Tensor(a).argmax(axis=1), a.argmax(axis=1))
    check("std", Tensor(a).std(axis=1), a.std(axis=1, ddof=1), 1e-3)
    check("cumsum", Tensor(a).cumsum(axis=1), a.cumsum(axis=1), 1e-3)
    check("prod", Tensor(a[:, :5, 0]).prod(axis=1), a[:, :5, 0].prod(axis=1), 1e-3)
    large = floats(1 << 17)
    check("large sum", Tensor(large).sum(), large.astype(numpy.float64).sum(), 1e-2)
    e = numpy.exp(a - a.max(axis=1, keepdims=True))
    check("softmax", Tensor(a).softmax(axis=1), e / e.sum(axis=1, keepdims=True))


def movement():
    a = floats(6, 8, 10)
    t = Tensor(a)
    check("reshape", t.reshape(48, 10), a.reshape(48, 10))
    check("permute", t.permute(2, 0, 1).contiguous(), a.transpose(2, 0, 1))
    check("flip", t.flip(1), a[:, ::-1])
    check("slice", t[1:5, ::2, 3:], a[1:5, ::2, 3:])
    check("pad", t.pad(((1, 2), (0, 0), (3, 1))), numpy.pad(a, ((1, 2), (0, 0), (3, 1))))
    check("expand", Tensor(a[:, :1]).expand(6, 8, 10), numpy.broadcast_to(a[:, :1], (6, 8, 10)))
    check("concatenate", Tensor.cat(t, t, dim=1), numpy.concatenate([a, a], axis=1))
    check("stack", Tensor.stack(t, t), numpy.stack([a, a]))
    index = random.integers(0, 6, 20)
    check("gather", t[Tensor(index)], a[index])
    check("triu", Tensor(a[0]).triu(), numpy.triu(a[0]))
    check("sort", Tensor(a[0]).sort()[0], numpy.sort(a[0]))


def products():
    for rows, inner, columns in ((1, 1, 1), (7, 13, 5), (64, 64, 64), (33, 128, 65)):
        a, b = floats(rows, inner), floats(inner, columns)
        check(f"matmul {rows}x{inner}x{columns}", Tensor(a) @ Tensor(b), a @ b, 1e-3)
    a, b = floats(4, 9, 17), floats(4, 17, 6)
    check("batched matmul", Tensor(a) @ Tensor(b), a @ b, 1e-3)
    half = floats(32, 32).astype(numpy.float16)
    check("half matmul", Tensor(half) @ Tensor(half), half.astype(numpy.float32) @ half.astype(numpy.float32), 5e-2)
    image, kernel = floats(2, 3, 12, 12), floats(5, 3, 3, 3)
    expected = numpy.zeros((2, 5, 10, 10), dtype=numpy.float64)
    for y in range(10):
        for x in range(10):
            patch = image[:, :, y : y + 3, x : x + 3].astype(numpy.float64)
            expected[:, :, y, x] = numpy.einsum("nchw,ochw->no", patch, kernel.astype(numpy.float64))
    check("convolution", Tensor(image).conv2d(Tensor(kernel)), expected, 1e-3)
    pooled = image.reshape(2, 3, 6, 2, 6, 2).max(axis=(3, 5))
    check("max pooling", Tensor(image).max_pool2d(2), pooled)


def gradients():
    a, b = floats(8, 12), floats(12, 4)
    x, w = Tensor(a), Tensor(b)
    gradient_x, gradient_w = (x @ w).relu().square().sum().gradient(x, w)
    product = a.astype(numpy.float64) @ b
    outer = 2 * numpy.maximum(product, 0)
    check("gradient of w", gradient_w, a.T.astype(numpy.float64) @ outer, 1e-3)
    check("gradient of x", gradient_x, outer @ b.T, 1e-3)


def jit():
    @TinyJit
    def step(x):
        return (x * 2 + 1).relu().sum(axis=0).realize(), (x @ x.T).realize()

    for round_number in range(6):
        a = floats(16, 24)
        sums, product = step(Tensor(a).realize())
        check(f"jit sums {round_number}", sums, numpy.maximum(a * 2 + 1, 0).sum(axis=0), 1e-3)
        check(f"jit product {round_number}", product, a @ a.T, 1e-3)


def randomness():
    Tensor.manual_seed(3)
    values = Tensor.rand(20000).numpy()
    check("rand mean", values.mean(), 0.5, 2e-2)
    check("rand range", float(values.min() >= 0 and values.max() < 1), 1.0)
    check("randn std", Tensor.randn(20000).numpy().std(), 1.0, 3e-2)


few = [unary, reductions, products, jit]
everything = [unary, binary, integers, casts, reductions, movement, products, gradients, jit, randomness]
for part in few if "--few" in sys.argv else everything:
    part()
if failures:
    sys.exit("\n".join(failures))
print("all operations agree")
