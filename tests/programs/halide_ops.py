"""Halide's pipelines, compiled for the CUDA device while they run, against NumPy."""

import sys

import halide as hl
import numpy

TARGET = hl.get_host_target().with_feature(hl.TargetFeature.CUDA)
TARGET = TARGET.with_feature(hl.TargetFeature.CUDACapability70)
random = numpy.random.default_rng(7)
x, y, xi, yi = hl.Var("x"), hl.Var("y"), hl.Var("xi"), hl.Var("yi")
failures = []


def check(name, func, expected, tolerance=0.0):
    """Sizes are NumPy's, whose last axis is Halide's first."""
    out = func.realize(list(reversed(expected.shape)), TARGET)
    out.copy_to_host()
    got = numpy.array(out)
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        failures.append(f"{name}: {got.shape} {got.dtype}, expected {expected.shape}")
    elif not numpy.allclose(got, expected, rtol=tolerance, atol=tolerance):
        failures.append(f"{name}: {got.ravel()[:6]}, expected {expected.ravel()[:6]}")


def source(array):
    """As Halide sees it: index (x, y) is NumPy's [y, x]."""
    return hl.Buffer(numpy.ascontiguousarray(array))


def blur():
    image = random.integers(0, 4096, (130, 258), dtype=numpy.uint16)
    pixels = source(image)
    across, down = hl.Func("across"), hl.Func("down")

    def wide(a, b):
        return hl.cast(hl.UInt(32), pixels[a, b])

    across[x, y] = (wide(x, y) + wide(x + 1, y) + wide(x + 2, y)) / 3
    down[x, y] = hl.cast(hl.UInt(16), (across[x, y] + across[x, y + 1] + across[x, y + 2]) / 3)
    down.gpu_tile(x, y, xi, yi, 32, 8)
    # What a block needs lies in its shared memory.
    across.compute_at(down, x).gpu_threads(x, y)
    i = image.astype(numpy.uint32)
    h = (i[:, :-2] + i[:, 1:-1] + i[:, 2:]) // 3
    check("blur", down, ((h[:-2] + h[1:-1] + h[2:]) // 3).astype(numpy.uint16))


def product():
    for kind, precision in ((numpy.float32, 1e-4), (numpy.float64, 1e-10)):
        a, b = (random.standard_normal((64, 64)).astype(kind) for _ in "ab")
        left, right = source(a), source(b)
        k = hl.RDom([(0, 64)])
        sums, out = hl.Func("sums"), hl.Func("out")
        sums[x, y] += left[k, y] * right[x, k]
        out[x, y] = sums[x, y]
        out.gpu_tile(x, y, xi, yi, 16, 16)
        sums.compute_at(out, xi)
        check(f"product of {kind.__name__}", out, a @ b, precision)


def histogram():
    values = random.integers(0, 32, (100, 100), dtype=numpy.uint8)
    pixels = source(values)
    counts = hl.Func("counts")
    counts[x] = 0
    r = hl.RDom([(0, 100), (0, 100)])
    counts[hl.cast(hl.Int(32), pixels[r.x, r.y])] += 1
    counts.gpu_tile(x, xi, 32)
    rxi, ryi = hl.RVar("rxi"), hl.RVar("ryi")
    rxo, ryo = hl.RVar("rxo"), hl.RVar("ryo")
    tiled = counts.update().atomic()
    tiled.split(r.x, rxo, rxi, 32).split(r.y, ryo, ryi, 4).reorder(rxi, ryi, rxo, ryo)
    tiled.gpu_blocks(rxo, ryo).gpu_threads(rxi, ryi)
    check("histogram", counts, numpy.bincount(values.ravel(), minlength=32).astype(numpy.int32))


def reduction():
    numbers = random.integers(0, 1000, 4096).astype(numpy.int64)
    entries = source(numbers)
    r = hl.RDom([(0, 4096)])
    total = hl.Func("total")
    total[x] = hl.cast(hl.Int(64), 0)
    total[x] += entries[r]
    outer, inner, lane = hl.RVar("outer"), hl.RVar("inner"), hl.Var("lane")
    total.update().split(r, outer, inner, 64)
    parts = total.update().rfactor(outer, lane)
    parts.compute_root().gpu_tile(lane, xi, 32)
    parts.update().gpu_tile(lane, xi, 32)
    total.gpu_tile(x, xi, 1)
    total.update().gpu_tile(x, xi, 1)
    check("reduction", total, numpy.array([numbers.sum()]))


def functions():
    v = random.uniform(0.1, 4, (16, 64))
    for kind, precision in ((numpy.float32, 1e-4), (numpy.float64, 1e-10)):
        given = v.astype(kind)
        a = source(given)
        of = {
            "exp": (hl.exp, numpy.exp),
            "log": (hl.log, numpy.log),
            "sin": (hl.sin, numpy.sin),
            "atan": (hl.atan, numpy.arctan),
            "tanh": (hl.tanh, numpy.tanh),
            "sqrt": (hl.sqrt, numpy.sqrt),
            "power": (lambda e: hl.pow(e, e), lambda e: e**e),
            "round": (hl.round, numpy.round),
        }
        for name, (halide, expected) in of.items():
            func = hl.Func(f"{name}_of")
            func[x, y] = halide(a[x, y])
            func.gpu_tile(x, y, xi, yi, 32, 4)
            check(f"{name} of {kind.__name__}", func, expected(given), precision)
    half = source((v * 100).astype(numpy.float32))
    saturated = hl.Func("saturated")
    saturated[x, y] = hl.saturating_cast(hl.UInt(8), half[x, y])
    saturated.gpu_tile(x, y, xi, yi, 32, 4)
    expected = numpy.clip((v * 100).astype(numpy.float32), 0, 255).astype(numpy.uint8)
    check("saturating cast", saturated, expected)


def vectors():
    data = random.standard_normal((32, 256)).astype(numpy.float32)
    a = source(data)
    scaled = hl.Func("scaled")
    scaled[x, y] = a[x, y] * 2 + 1
    inner = hl.Var("inner")
    # Four at once: ld.global.v4.f32.
    scaled.split(x, x, inner, 4).vectorize(inner).gpu_tile(x, y, xi, yi, 16, 4)
    check("vectors", scaled, data * 2 + 1, 1e-6)


def scan():
    rows = random.integers(-50, 50, (64, 100), dtype=numpy.int32)
    a = source(rows)
    sums = hl.Func("sums")
    r = hl.RDom([(1, 99)])
    sums[x, y] = a[x, y]
    sums[r, y] = sums[r - 1, y] + sums[r, y]
    sums.gpu_tile(x, y, xi, yi, 20, 4)
    sums.update().gpu_tile(y, yi, 8)
    check("scan", sums, rows.cumsum(axis=1).astype(numpy.int32))


def main():
    for pipelines in (blur, product, histogram, reduction, functions, vectors, scan):
        pipelines()
    for failure in failures:
        print(failure)
    if failures:
        sys.exit(f"{len(failures)} failed")
    print("all pipelines agree")


if __name__ == "__main__":
    main()
