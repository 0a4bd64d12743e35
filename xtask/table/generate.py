#!/usr/bin/env python3
"""Writes crates/wire/src/table/*.rs, the rows of the one table of driver calls.

`cargo xtask table` runs this with the headers of two versions from PyPI; `--check` only compares, and CI
does that:

    xtask/table/generate.py --headers DIR12/.../include --headers DIR13/.../include [--check]

From the headers come names, versions, parameter names and types: facts of the ABI. Everything that
is Weft's own decision (the class of a call and the function that answers it) stands in `calls.txt`
beside this script. The headers of the last `--headers` win where two disagree on a parameter name;
a disagreement on a type is an error. Needs a C compiler for its preprocessor.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import defaultdict

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent.parent / "crates/wire/src/table"

# What the interop headers include and no machine without a display has.
STUBS = {
    "GL/gl.h": "typedef unsigned int GLuint; typedef unsigned int GLenum;",
    "EGL/egl.h": "typedef int EGLint;",
    "EGL/eglext.h": "typedef void *EGLStreamKHR, *EGLImageKHR, *EGLSyncKHR;",
    "vdpau/vdpau.h": "typedef unsigned int VdpDevice, VdpVideoSurface, VdpOutputSurface;"
    "typedef int VdpStatus; typedef VdpStatus VdpGetProcAddress(VdpDevice, unsigned, void **);",
    "cudaProfiler.h": "typedef int CUoutput_mode;",
}
TYPEDEF_HEADERS = ["cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler"]

# The first pattern that matches the base name decides the file.
NOUNS = [
    ("profiler", r"cuProfiler|cuCoredump|cuLogs"),
    ("checkpoint", r"cuCheckpoint|cuIpc|cuLogicalEndpoint|cuFabric"),
    ("interop", r"cuGraphics|cuGL|cuEGL|cuVDPAU|cuEventCreateFromEGL|.*External|cuFlushGPUDirect"),
    ("green", r"cuGreen|cuDevSm|cuDevResource|cuMulticast|.*DevResource|cuCtxFromGreen"),
    ("pool", r"cuMemPool|cuMem\w*MemPool|cuDevice\w*MemPool|cuMemAllocFromPool|cuMem(Alloc|Free)Async"),
    ("vmm", r"cuMem(AddressReserve|AddressFree|Create|Release|Map|Unmap|SetAccess|GetAccess)$"
            r"|cuMem(Export|Import|Retain|GetAllocation|MapArray|GetHandleFor|Advise|Range|Prefetch"
            r"|Discard|AllocManaged|BatchDecompress|GetLocation)"),
    ("texture", r"cuTex|cuSurf|cuTensor|cuArray|cuMipmapped|cuParamSetTexRef|cu\w*GetTexRef"
                r"|cu\w*GetSurfRef"),
    ("graph", r"cuGraph|cuUserObject|cuDevice\w*Graph"),
    ("library", r"cuLibrary|cuKernel"),
    ("link", r"cuLink"),
    ("launch", r"cuLaunch|cuFunc|cuParam|cuOccupancy"),
    ("module", r"cuModule"),
    ("copy", r"cuMemcpy"),
    ("memset", r"cuMemset"),
    ("stream", r"cuStream|cuThreadExchange"),
    ("event", r"cuEvent"),
    ("context", r"cuCtx|cuDevicePrimaryCtx"),
    ("host_memory", r"cuMemHost|cuMemAllocHost|cuMemFreeHost"),
    ("memory", r"cuMem|cuPointer"),
    ("device", r"cuDevice"),
    ("driver", r"cu"),
]

NOUN_TITLES = {
    "profiler": "profiler control, core dumps and logs",
    "checkpoint": "checkpointing, inter-process handles and fabric end points",
    "interop": "graphics interoperation and external memory",
    "green": "green contexts, device resources and multicast objects",
    "pool": "memory pools and stream-ordered allocation",
    "vmm": "virtual memory management and managed memory",
    "texture": "arrays, textures, surfaces and tensor maps",
    "host_memory": "page-locked host memory",
    "driver": "initialisation, errors and entry points",
}

SCALARS = {
    "unsigned int": "u32", "unsigned": "u32", "int": "i32", "float": "f32", "size_t": "usize",
    "unsigned long long": "u64", "cuuint32_t": "u32", "cuuint64_t": "u64", "unsigned char": "u8",
    "unsigned short": "u16", "char": "c_char", "void": "c_void", "EGLint": "i32",
}
KEYWORDS = {"type": "kind", "mod": "module", "in": "input", "fn": "function"}

IN_NAMES = set(
    "kernelParams extra options optionValues jitOptions jitOptionsValues libraryOptions "
    "libraryOptionValues dsts srcs sizes attrs attrIdxs opList dptrs prefetchLocs prefetchLocIdxs "
    "paramsArray launchParamsList userData osHandle location ctxCreateParams mapInfoList attr op "
    "streamCigCaptureParams args shareData dataSizes attributes p ptr addr resources blockSizeToDynamicSMemSize "
    "memPool input callbackData execAffinityParams groupParams attrsIdxs "
    "vdpGetProcAddress".split())
IN_OF = {
    ("cuLinkAddData", "data"), ("cuMemPoolSetAttribute", "value"), ("cuDeviceSetGraphMemAttribute", "value"),
    ("cuStreamUpdateCaptureDependencies", "dependencies"), ("cuMemPoolImportFromShareableHandle", "handle"),
    ("cuCoredumpSetAttribute", "value"), ("cuCoredumpSetAttributeGlobal", "value"),
    ("cuStreamBatchMemOp", "paramArray"), ("cuGraphicsMapResources", "resources"),
    ("cuGraphicsUnmapResources", "resources"), ("cuDevResourceGenerateDesc", "resources"),
    ("cuCtxCreate", "paramsArray"), ("cuUserObjectCreate", "ptr"), ("cuMemGetDefaultMemPool", "location"),
    ("cuGraphSetParams", "nodeParams"), ("cuGraphNodeSetParams", "nodeParams"), ("cuGraphExecNodeSetParams", "nodeParams"),
    ("cuMemcpyBatchAsync", "sizes"), ("cuTensorMapReplaceAddress", "globalAddress"),
    ("cuTensorMapEncodeTiled", "globalAddress"), ("cuTensorMapEncodeIm2col", "globalAddress"),
    ("cuTensorMapEncodeIm2colWide", "globalAddress"), ("cuModuleLoadDataEx", "optionValues"),
    ("cuCtxFromGreenCtx", "hCtx"), ("cuLogsRegisterCallback", "userData"),
}
INOUT_NAMES = set("mode instantiateParams numDependencies numNodes numEdges numRootNodes "
                  "numDependentNodes".split())
INOUT_OF = {
    ("cuGraphAddNode", "nodeParams"), ("cuGraphAddMemAllocNode", "nodeParams"), ("cuLogsDumpToFile", "iterator"),
    ("cuLogsDumpToMemory", "iterator"), ("cuLogsDumpToMemory", "size"), ("cuCoredumpGetAttribute", "size"),
    ("cuCoredumpGetAttributeGlobal", "size"), ("cuCoredumpSetAttribute", "size"),
    ("cuCoredumpSetAttributeGlobal", "size"), ("cuDevSmResourceSplitByCount", "nbGroups"),
    ("cuTensorMapReplaceAddress", "tensorMap"), ("cuDeviceGetCliqueInfo", "count"),
    ("cuLibraryEnumerateKernels", "numKernels"),
}
LENGTH_OF = {
    "optionValues": "numOptions", "jitOptionsValues": "numJitOptions",
    "libraryOptionValues": "numLibraryOptions", "dsts": "count", "srcs": "count", "sizes": "count",
    "dptrs": "count", "attrIdxs": "numAttrs", "prefetchLocIdxs": "numPrefetchLocs",
    "opList": "numParams", "kernels": "numKernels", "dependencyData": "numDependencies",
    "from": "numDependencies", "to": "numDependencies", "edgeData": "numEdges",
    "data": "numAttributes", "dataSizes": "numAttributes", "extSemArray": "numExtSems",
    "paramsArray": "numExtSems", "mapInfoList": "count", "desc": "count", "map": "count",
    "paramArray": "count", "resources": "count", "dependentNodes": "numDependentNodes",
    "logBuffer": "bufferSize", "functions": "numFunctions", "capabilities": "count",
    "operations": "count",
}


def preprocess(headers, stubs):
    source = "".join(f"#include <{name}Typedefs.h>\n" for name in TYPEDEF_HEADERS)
    command = ["cc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", f"-I{headers}", f"-I{stubs}", "-x", "c", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def parameters(text):
    """Splits a C parameter list into (type words, name)."""
    text = re.sub(r"\s+", " ", text.replace("*", " * ").replace("const", " const ")).strip()
    if text in ("", "void"):
        return []
    found = []
    for part in text.split(","):
        words = part.split()
        name = words.pop() if re.match(r"\w+$", words[-1]) and len(words) > 1 else ""
        found.append((tuple(words), name))
    return found


def rust_type(words):
    words = list(words)
    stars = [i for i, word in enumerate(words) if word == "*"]
    head = words[: stars[0]] if stars else words
    base = " ".join(word for word in head if word not in ("const", "struct", "enum"))
    rust = SCALARS.get(base, base)
    constant = "const" in head
    for position in stars:
        rust = f"{'*const' if constant else '*mut'} {rust}"
        constant = position + 1 < len(words) and words[position + 1] == "const"
    return rust


def unaliased(rust):
    return re.sub(r"_v\d+\b", "", rust.replace("struct ", ""))


def direction(base, name, rust):
    if not rust.startswith("*"):
        return "value"
    if base == "cuModuleGetLoadingMode" or (base, name) == ("cuMemAddressReserve", "ptr"):
        return "out"
    if (base, name) in INOUT_OF or name in INOUT_NAMES:
        return "inout"
    if rust.startswith("*const") or (base, name) in IN_OF or name in IN_NAMES:
        return "input"
    return "out"


def length(base, name, rust, names):
    if rust == "*const c_char":
        return "nul"
    if not rust.startswith("*"):
        return None
    if name in ("srcHost", "dstHost") and "ByteCount" in names:
        return "ByteCount"
    if name in ("data", "dataSize") and "dataSize" in names:
        return "dataSize"
    if (base, name) == ("cuLinkAddData", "data"):
        return "size"
    if rust == "*mut c_char" and "len" in names:
        return "len"
    counted = "num" + name[:1].upper() + name[1:]
    for candidate in (LENGTH_OF.get(name), counted):
        if candidate in names:
            return candidate
    return None


class Header:
    def __init__(self, path, stubs):
        text = preprocess(path, stubs)
        declared = re.finditer(r"CUresult\s+(cu\w+)\s*\(([^;{]*)\)\s*;", text)
        self.functions = {match[1]: parameters(match[2]) for match in declared}
        typed = re.finditer(r"typedef CUresult\s*\(\s*\*\s*PFN_(cu\w+)\s*\)\s*\(([^;{]*)\)\s*;", text)
        self.typedefs = {match[1]: parameters(match[2]) for match in typed}


def merge(headers):
    functions, typedefs = {}, {}
    for header in headers:
        for target, source in ((functions, header.functions), (typedefs, header.typedefs)):
            for name, params in source.items():
                types = [unaliased(rust_type(words)) for words, _ in params]
                if name in target and [unaliased(rust_type(w)) for w, _ in target[name]] != types:
                    sys.exit(f"{name}: two headers disagree on its ABI")
                target[name] = params
    # cudaProfiler.h is in no wheel: its functions are known by their typedefs only.
    for name, params in typedefs.items():
        plain = re.sub(r"_v\d+$", "", name)
        if plain.startswith("cuProfiler"):
            functions[plain] = params
    return functions, typedefs


def versions(functions, typedefs):
    """Maps each exported spelling to its version: both lists ascend, so the ranks pair them."""
    spelled, introduced = defaultdict(list), defaultdict(list)
    for symbol in functions:
        match = re.fullmatch(r"(cu\w+?)(?:_v(\d))?(_ptds|_ptsz)?", symbol)
        spelled[match[1], match[3] or ""].append((int(match[2] or 1), symbol))
    for name in typedefs:
        match = re.fullmatch(r"(cu\w+?)_v(\d+)(_ptds|_ptsz)?", name)
        introduced[match[1], match[3] or ""].append((int(match[2]), name))
    found = {}
    for key, symbols in spelled.items():
        pairs = introduced[key]
        if len(pairs) != len(symbols):
            sys.exit(f"{key}: {len(symbols)} spellings but {len(pairs)} versions")
        for (_, symbol), (version, name) in zip(sorted(symbols), sorted(pairs)):
            have = [unaliased(rust_type(words)) for words, _ in functions[symbol]]
            want = [unaliased(rust_type(words)) for words, _ in typedefs[name]]
            if have != want:
                sys.exit(f"{symbol} {have} is not {name} {want}")
            found[symbol] = (key[0], key[1], version)
    return found


def decisions():
    found = {}
    for line in (HERE / "calls.txt").read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            symbol, kind, target = words
            found[symbol] = (kind, target)
    return found


def rows(functions, found):
    decided = decisions()
    unused = set(decided)
    per_thread = {(base, symbol[: -len(suffix)]) for symbol, (base, suffix, _) in found.items() if suffix}
    by_noun = defaultdict(list)
    for symbol, (base, suffix, version) in sorted(found.items(), key=lambda item: (item[1][0], item[1][2], item[1][1])):
        plain = symbol[: -len(suffix)] if suffix else symbol
        mode = "per_thread" if suffix else "legacy" if (base, plain) in per_thread else "plain"
        unused.discard(plain)
        kind, target = decided.get(plain, ("refused", ""))
        noun = next(noun for noun, pattern in NOUNS if re.match(pattern, base))
        names = [name for _, name in functions[symbol]]
        parts = []
        for words, name in functions[symbol]:
            rust = rust_type(words)
            rule = length(base, name, rust, names)
            spelled = KEYWORDS.get(name, name)
            parts.append(f"{direction(base, name, rust)} {spelled}: {rust}" + (f" [{rule}]" if rule else ""))
        head = f"{symbol}: {base} {version} {mode} {kind}"
        by_noun[noun].append((head, parts, f"{{{target}}}"))
    if unused:
        sys.exit(f"calls.txt names what no header has: {sorted(unused)}")
    return by_noun


def row_text(head, parts, target):
    line = f"            {head} ({', '.join(parts)}) {target}"
    if len(line) <= 100:
        return line + "\n"
    body = textwrap.fill(", ".join(part.replace(" ", "\0") for part in parts), 84, break_long_words=False)
    body = textwrap.indent(body.replace("\0", " "), " " * 16)
    if len(head) > 80:
        head = head.replace(": ", ":\n                ", 1)
    return f"            {head} (\n{body}\n            ) {target}\n"


def write(by_noun, out):
    for stale in out.glob("*.rs"):
        if "Generated by" in stale.read_text():
            stale.unlink()
    out.mkdir(parents=True, exist_ok=True)
    for noun, calls in by_noun.items():
        title = NOUN_TITLES.get(noun, f"{noun}")
        text = (f"//! Rows of the table of driver calls: {title}.\n"
                "//!\n//! Generated by `xtask/table/generate.py`; decisions stand in `xtask/table/calls.txt`.\n\n"
                "/// Hands this noun's rows to the callback macro; see [`crate::driver_calls`].\n"
                "#[doc(hidden)]\n#[macro_export]\n"
                f"macro_rules! driver_calls_{noun} {{\n    ($callback:ident) => {{\n        $callback! {{ {noun};\n")
        text += "".join(row_text(*call) for call in calls)
        text += "        }\n    };\n}\n"
        (out / f"{noun}.rs").write_text(text)


def differing(fresh):
    """The names of generated files that are not what the sources say."""
    generated = lambda folder: {path.name: path.read_text() for path in folder.glob("*.rs")
                                if "Generated by" in path.read_text()}
    now, then = generated(fresh), generated(OUT)
    return sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headers", action="append", required=True, help="an include directory, oldest first")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as stubs:
        for name, text in STUBS.items():
            path = pathlib.Path(stubs) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        functions, typedefs = merge([Header(path, stubs) for path in arguments.headers])
    by_noun = rows(functions, versions(functions, typedefs))
    if arguments.check:
        with tempfile.TemporaryDirectory() as fresh:
            write(by_noun, pathlib.Path(fresh))
            stale = differing(pathlib.Path(fresh))
        if stale:
            sys.exit(f"{OUT}: {', '.join(stale)} are stale: run `cargo xtask table`")
        return
    write(by_noun, OUT)
    for noun, calls in sorted(by_noun.items()):
        print(f"{noun:12} {len(calls):4}")


if __name__ == "__main__":
    main()
