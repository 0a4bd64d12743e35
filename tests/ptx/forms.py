#!/usr/bin/env python3
"""Holds Weft's PTX against NVIDIA's assembler: draws instructions with modifiers and types, and says
which of them the assembler takes and Weft refuses.

    pip install nvidia-cuda-nvcc        # brings ptxas; no GPU, no driver
    cargo build -p weft-device --example assemble
    python3 tests/ptx/forms.py [--count 2500] [--seed 1] [--ptxas PATH] [--assemble PATH]

Most forms that are drawn are no PTX, which is the point: what neither takes costs nothing, and nobody
has to know what the assembler takes. Prints one JSON line at the end; exits with 1 if something was
refused that `KNOWN` does not name. Every form is drawn for compute capability 7.5, the software GPU's.
"""

import argparse
import collections
import concurrent.futures
import glob
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

INTEGERS = ["u16", "s16", "u32", "s32", "u64", "s64"]
BITS = ["b16", "b32", "b64"]
FLOATS = ["f32", "f64"]
HALVES = ["f16", "f16x2"]
ANY = ["pred", "b8", "u8", "s8", *BITS, *INTEGERS, *HALVES, *FLOATS]
COMPARISONS = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan".split()
ROUNDINGS = ["rn", "rz", "rm", "rp"]
WHOLE = ["rni", "rzi", "rmi", "rpi"]
SPACES = ["global", "shared", "local", "const", "param"]
SCOPES = ["cta", "gpu", "sys"]
VIDEO = ["u32", "s32"]

# What Weft refuses and why: a form belongs here only with its reason.
KNOWN = {
    "madc.hi.u16": "the assembler adds bits 32 to 47 of the product where mad.hi has 16 to 31",
    "madc.hi.s16": "the same",
    "madc.hi.cc.u16": "the same",
    "madc.hi.cc.s16": "the same",
    "addc.u16": "it reads a carry that no instruction of 16 bits sets; nobody was seen to emit it",
    "addc.s16": "the same",
    "subc.u16": "the same",
    "subc.s16": "the same",
}


def often(*choices):
    """A group of modifiers that is mostly left out."""
    return [None] * len(choices) + list(choices)


# Mnemonics, groups of modifiers of which one each is drawn, and operands: `d` is a destination of the
# last type but one if there are two, `a` a source of the last type, `i` an immediate, others themselves.
Form = collections.namedtuple("Form", "names groups operands")

FORMS = [
    Form("add sub", [often("cc"), often(*ROUNDINGS), often("ftz"), often("sat"), ANY], "t, t, t"),
    Form("addc subc", [often("cc"), INTEGERS + BITS], "t, t, t"),
    Form("mul", [often("hi", "lo", "wide"), often(*ROUNDINGS), often("ftz"), often("sat"), ANY], "t, t, t"),
    Form("mul", [["wide"], INTEGERS], "w, t, t"),
    Form("mad fma", [often("hi", "lo"), often(*ROUNDINGS), often("ftz"), often("sat", "relu"), often("cc"), ANY], "t, t, t, t"),
    Form("mad", [["wide"], INTEGERS], "w, t, t, w"),
    Form("madc", [["hi", "lo"], often("cc"), INTEGERS], "t, t, t, t"),
    Form("mul24", [["hi", "lo"], ["u32", "s32", "u16"]], "t, t, t"),
    Form("mad24", [["hi", "lo"], often("sat"), ["u32", "s32"]], "t, t, t, t"),
    Form("sad", [INTEGERS + FLOATS], "t, t, t, t"),
    Form("div", [often("approx", "full", *ROUNDINGS), often("ftz"), ANY], "t, t, t"),
    Form("rem", [ANY], "t, t, t"),
    Form("abs neg", [often("ftz"), ANY], "t, t"),
    Form("min max", [often("ftz"), often("NaN", "xorsign", "relu"), ANY], "t, t, t"),
    Form("rcp sqrt", [often("approx", *ROUNDINGS), often("ftz"), FLOATS + HALVES], "t, t"),
    Form("rsqrt sin cos lg2 ex2 tanh", [often("approx"), often("ftz"), FLOATS + HALVES], "t, t"),
    Form("testp", [["finite", "infinite", "number", "notanumber", "normal", "subnormal"], FLOATS + ["f16"]], "%p0, t"),
    Form("copysign", [ANY], "t, t, t"),
    Form("popc clz", [BITS + INTEGERS], "%r0, t"),
    Form("bfind", [often("shiftamt"), INTEGERS + BITS], "%r0, t"),
    Form("brev not cnot", [ANY], "t, t"),
    Form("fns", [BITS], "%r0, %r1, %r2, %r3"),
    Form("bfe", [INTEGERS], "t, t, %r1, %r2"),
    Form("bfi", [BITS], "t, t, t, %r1, %r2"),
    Form("szext bmsk", [["clamp", "wrap"], ["u32", "s32", "b32"]], "t, t, %r1"),
    Form("dp4a", [["u32", "s32"], ["u32", "s32"]], "%r0, %r1, %r2, %r3"),
    Form("dp2a", [["lo", "hi"], ["u32", "s32"], ["u32", "s32"]], "%r0, %r1, %r2, %r3"),
    Form("and or xor", [ANY], "t, t, t"),
    Form("lop3", [often("and", "or"), BITS], "t, t, t, t, 0x96"),
    Form("shl shr", [BITS + INTEGERS], "t, t, %r1"),
    Form("shf", [["l", "r"], ["clamp", "wrap"], ["b32", "b64"]], "t, t, t, %r1"),
    Form("prmt", [["b32"], often("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")], "%r0, %r1, %r2, %r3"),
    Form("mov", [ANY], "t, t"),
    Form("mov", [BITS], "t, {%h0, %h1}"),
    Form("mov", [BITS], "t, {%r0, %r1}"),
    Form("mov", [BITS], "t, {%h0, %h1, %h2, %h3}"),
    Form("mov", [BITS], "{%r0, %r1}, t"),
    Form("mov", [BITS], "{%h0, %h1}, t"),
    Form("selp", [ANY], "t, t, t, %p0"),
    Form("slct", [often("ftz"), ANY, ["s32", "f32", "u32"]], "x, x, x, t"),
    Form("set", [COMPARISONS, often("and", "or", "xor"), often("ftz"), ["u32", "s32", "f32", "f16", "f16x2", "b32"], ANY], "x, t, t"),
    Form("set", [COMPARISONS, ["and", "or", "xor"], often("ftz"), ["u32", "s32", "f32"], ANY], "x, t, t, %p0"),
    Form("setp", [COMPARISONS, often("ftz"), ANY], "%p0, t, t"),
    Form("setp", [COMPARISONS, often("ftz"), ANY], "%p0|%p1, t, t"),
    Form("setp", [COMPARISONS, ["and", "or", "xor"], often("ftz"), ANY], "%p0, t, t, !%p1"),
    Form("cvt", [often(*ROUNDINGS, *WHOLE), often("ftz"), often("sat"), ANY, ANY], "x, t"),
    Form("cvt", [["pack"], ["sat"], ["u8", "s8", "u4", "s4", "u2", "s2", "u16", "s16"], ["s32"], often("b32")], "%r0, %r1, %r2, %r3"),
    Form("cvt", [["pack"], ["sat"], ["u16", "s16"], ["s32"]], "%r0, %r1, %r2"),
    Form("ld", [often("weak", "volatile", "relaxed", "acquire"), often(*SCOPES), often(*SPACES), often("ca", "cg", "cs", "lu", "cv", "nc"), often("v2", "v4"), ANY], "v, [%rd0]"),
    Form("ldu", [often("global"), often("v2", "v4"), ANY], "v, [%rd0]"),
    Form("st", [often("weak", "volatile", "relaxed", "release"), often(*SCOPES), often("global", "shared", "local"), often("wb", "cg", "cs", "wt"), often("v2", "v4"), ANY], "[%rd0], v"),
    Form("prefetch", [often("global", "local"), ["L1", "L2", "global::L2"]], "[%rd0]"),
    Form("prefetchu", [["L1", "L2"]], "[%rd0]"),
    Form("isspacep", [SPACES], "%p0, %rd0"),
    Form("cvta", [often("to"), SPACES, ["u32", "u64", "b64"]], "t, t"),
    Form("atom", [often("relaxed", "acquire", "release", "acq_rel"), often(*SCOPES), often("global", "shared"), "and or xor exch add inc dec min max".split(), often("noftz"), ANY], "t, [%rd0], t"),
    Form("atom", [often("relaxed", "acq_rel"), often(*SCOPES), often("global", "shared"), ["cas"], ANY], "t, [%rd0], t, t"),
    Form("red", [often("relaxed", "release"), often(*SCOPES), often("global", "shared"), "and or xor add inc dec min max".split(), often("noftz"), ANY], "[%rd0], t"),
    Form("membar", [["cta", "gl", "sys", "gpu"]], ""),
    Form("fence", [often("sc", "acq_rel"), SCOPES], ""),
    Form("bar barrier", [often("cta"), ["sync", "arrive", "red"], often("aligned")], "0"),
    Form("bar barrier", [often("cta"), ["sync", "arrive"], often("aligned")], "%r0, 64"),
    Form("bar barrier", [often("cta"), ["red"], ["popc"], often("aligned"), ["u32"]], "%r0, 0, %p0"),
    Form("bar barrier", [often("cta"), ["red"], ["and", "or"], often("aligned"), ["pred"]], "%p0, 0, %p1"),
    Form("bar", [["warp"], ["sync"]], "-1"),
    Form("vote", [often("sync"), ["all", "any", "uni"], ["pred"]], "%p0, %p1, -1"),
    Form("vote", [often("sync"), ["ballot"], ["b32"]], "%r0, !%p1, -1"),
    Form("match", [["any"], ["sync"], BITS], "%r0, t, -1"),
    Form("match", [["all"], ["sync"], BITS], "%r0|%p0, t, -1"),
    Form("shfl", [often("sync"), ["up", "down", "bfly", "idx"], BITS], "t|%p0, t, %r1, %r2, -1"),
    Form("activemask", [BITS], "%r0"),
    Form("redux", [["sync"], ["add", "min", "max", "and", "or", "xor"], VIDEO + ["b32"]], "%r0, %r1, -1"),
    Form("nanosleep", [["u32"]], "%r0"),
    Form("vadd vsub vabsdiff vmin vmax", [VIDEO, VIDEO, VIDEO, often("sat")], "%r0, %r1.b0, %r2.h1"),
    Form("vadd vsub vabsdiff vmin vmax", [VIDEO, VIDEO, VIDEO, often("sat"), ["add", "min", "max"]], "%r0, %r1, %r2, %r3"),
    Form("vshl vshr", [VIDEO, VIDEO, ["u32"], often("sat"), ["clamp", "wrap"]], "%r0, %r1, %r2"),
    Form("vmad", [VIDEO, VIDEO, VIDEO, often("sat"), often("shr7", "shr15", "po")], "%r0, %r1.b1, -%r2.h0, %r3"),
    Form("vset", [VIDEO, VIDEO, COMPARISONS[:6]], "%r0, %r1, %r2.b3"),
    Form("vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2", [VIDEO, VIDEO, VIDEO, often("sat", "add")], "%r0, %r1, %r2, %r3"),
    Form("vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4", [VIDEO, VIDEO, VIDEO, often("sat", "add")], "%r0, %r1, %r2, %r3"),
    Form("vset2 vset4", [VIDEO, VIDEO, COMPARISONS[:6], often("add")], "%r0, %r1, %r2, %r3"),
    Form("exit trap brkpt ret", [[None]], ""),
]

REGISTERS = {"8": "%h", "16": "%h", "32": "%r", "64": "%rd", "x2": "%r"}


def register(kind, number):
    """A register of a type; where there is none, one that makes the form wrong."""
    if kind == "pred":
        return f"%p{number}"
    if kind in ("f32", "f64"):
        return ("%f" if kind == "f32" else "%fd") + str(number)
    for size, name in REGISTERS.items():
        if kind.endswith(size):
            return name + str(number)
    return f"%r{number}"


def draw(rng):
    """One form: how it is called, and its text."""
    form = rng.choice(FORMS)
    drawn = [rng.choice(group) for group in form.groups]
    parts = [part for part in drawn if part is not None]
    name = ".".join([rng.choice(form.names.split()), *parts])
    of = parts[-1] if parts else "b32"
    before = parts[-2] if len(parts) > 1 else of
    wide = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}.get(of, of)
    lanes = {"v2": 2, "v4": 4}.get(before, 1)
    text, number = "", 0
    for place, letter in enumerate(form.operands):
        alone = not (form.operands[place - 1 : place].isalnum() or form.operands[place + 1 : place + 2].isalnum())
        alone = alone and form.operands[place - 1 : place] != "%"
        if letter in "txw" and alone:
            text += register({"t": of, "x": before, "w": wide}[letter], number)
            number += 1
        elif letter == "v" and alone:
            vector = ", ".join(register(of, lane) for lane in range(lanes))
            text += f"{{{vector}}}" if lanes > 1 else vector
        else:
            text += letter
    return name, f"{name} {text};".replace(" ;", ";")


def module(text):
    """A module whose only kernel is this instruction."""
    return f""".version 7.8
.target sm_75
.address_size 64
.visible .entry k()
{{
    .reg .pred %p<9>;
    .reg .b16 %h<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    .reg .f32 %f<9>;
    .reg .f64 %fd<9>;
    {text}
    ret;
}}
"""


def find_ptxas():
    found = [path for folder in sys.path for path in glob.glob(f"{folder}/nvidia/**/bin/ptxas", recursive=True)]
    return found[0] if found else "ptxas"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ptxas", default=find_ptxas())
    root = pathlib.Path(__file__).resolve().parents[2]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    parser.add_argument("--assemble", default=str(target / "debug/examples/assemble"))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    forms = {}
    while len(forms) < options.count:
        name, text = draw(rng)
        forms.setdefault(text, name)
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for number, text in enumerate(forms):
            path = pathlib.Path(folder, f"{number}.ptx")
            path.write_text(module(text))
            paths[str(path)] = text

        def is_ptx(path):
            command = [options.ptxas, "-arch=sm_75", "-o", os.devnull, path]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            valid = {path for path, taken in zip(paths, pool.map(is_ptx, paths)) if taken}
        told = subprocess.run([options.assemble, *paths], capture_output=True, text=True, check=True)
    words = dict(line.split(": ", 1) for line in told.stdout.splitlines() if ": " in line)
    taken = {path for path in paths if words.get(path, "").startswith("taken")}
    refused = sorted((paths[path], words.get(path, "nothing")) for path in valid - taken)
    unknown = [(text, why) for text, why in refused if forms[text] not in KNOWN]
    for text, why in unknown:
        print(f"{text:50} {why}")
    counts = {"drawn": len(paths), "ptx": len(valid), "taken": len(valid & taken), "known": len(refused) - len(unknown)}
    print(json.dumps({**counts, "refused": len(unknown), "taken_beyond_ptx": len(taken - valid), "seed": options.seed}))
    if not valid:
        sys.exit(f"{options.ptxas} takes nothing at all: is it an assembler for sm_75?")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
