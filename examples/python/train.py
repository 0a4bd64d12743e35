"""A tenant that trains a small network with tinygrad and proves the result with NumPy.

    DEV=CUDA:PTX python3 train.py SECONDS [--start AT] [--window SECONDS] [--hidden N]

Each step is one JIT-compiled graph launch. The same steps are computed by NumPy afterwards for
the first `CHECKED` steps; the losses must agree. Prints one JSON line: steps, seconds, verified.
With `--start -` it prints a line when it is ready and reads the moment from standard input. A wider
hidden layer (`--hidden`) has more memory, and computes what the narrow one does on average.
"""

import argparse
import json
import math
import sys
import time

import numpy
from tinygrad import Tensor, TinyJit
from tinygrad.device import Device

INPUTS, HIDDEN, SAMPLES, RATE, CHECKED = 8, 16, 32, 0.05, 20


def rate_of(hidden):
    """A step that the loss of a layer so wide follows: the sum of its squares grows with it."""
    return RATE * HIDDEN / hidden


def make_problem(hidden):
    random = numpy.random.default_rng(7)
    x = random.standard_normal((SAMPLES, INPUTS), dtype=numpy.float32)
    y = numpy.sin(x.sum(axis=1, keepdims=True)).astype(numpy.float32)
    w1 = random.standard_normal((INPUTS, hidden), dtype=numpy.float32) * 0.3
    # The sum over a wider layer is no larger.
    scale = 0.3 * math.sqrt(HIDDEN / hidden)
    w2 = random.standard_normal((hidden, 1), dtype=numpy.float32) * scale
    return x, y, w1.astype(numpy.float32), w2.astype(numpy.float32)


def train_numpy(steps, hidden_units):
    """Losses of plain gradient descent, computed on the host."""
    x, y, w1, w2 = (part.astype(numpy.float64) for part in make_problem(hidden_units))
    rate = rate_of(hidden_units)
    losses = []
    for _ in range(steps):
        hidden = numpy.maximum(x @ w1, 0.0)
        error = hidden @ w2 - y
        losses.append(float((error**2).mean()))
        gradient = 2.0 * error / error.size
        gradient_hidden = (gradient @ w2.T) * (hidden > 0.0)
        w2 -= rate * (hidden.T @ gradient)
        w1 -= rate * (x.T @ gradient_hidden)
    return losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("--start", default="0")
    parser.add_argument("--window", type=float, default=0.0)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    options = parser.parse_args()

    x, y, w1, w2 = (Tensor(part).realize() for part in make_problem(options.hidden))
    rate = rate_of(options.hidden)

    @TinyJit
    def step():
        hidden = (x @ w1).relu()
        error = hidden @ w2 - y
        loss = (error * error).mean()
        gradient = 2.0 * error / SAMPLES
        gradient_hidden = (gradient @ w2.T) * (hidden > 0.0)
        new_w2 = w2 - rate * (hidden.T @ gradient)
        new_w1 = w1 - rate * (x.T @ gradient_hidden)
        # Together, because each new value needs the other's old one.
        return Tensor.realize(loss, w1.assign(new_w1), w2.assign(new_w2))

    losses = [float(step().item()) for _ in range(CHECKED)]
    expected = train_numpy(CHECKED, options.hidden)
    verified = all(abs(a - b) <= 1e-3 * (1.0 + abs(b)) for a, b in zip(losses, expected))
    verified = verified and losses[-1] < losses[0]

    if options.start == "-":
        print(json.dumps({"ready": True}), flush=True)
        options.start = sys.stdin.readline()
    time.sleep(max(0.0, float(options.start) - time.monotonic()))
    begin = time.monotonic()
    window_end = begin + options.window
    steps = in_window = 0
    while time.monotonic() < begin + options.seconds:
        for _ in range(4):
            loss = step()
        steps += 4
        in_window += 4
        Device[Device.DEFAULT].synchronize()
        if options.window > 0.0 and time.monotonic() >= window_end:
            print(json.dumps({"window": in_window}), flush=True)
            in_window = 0
            window_end += options.window
    seconds = time.monotonic() - begin
    final = float(loss.item())
    verified = verified and final == final and final < losses[0]
    print(json.dumps({"steps": steps, "seconds": seconds, "loss": final, "verified": verified}))
    return 0 if verified else 1


if __name__ == "__main__":
    sys.exit(main())
