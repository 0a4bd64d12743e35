"""Models in ONNX, compiled by IREE for the CUDA device, against ONNX's own evaluation in NumPy."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import onnx
from iree import compiler, runtime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

random = numpy.random.default_rng(11)
failures = []


def weights(**arrays):
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def normal(*shape):
    return random.normal(0, 0.5, shape).astype(numpy.float32)


def model(name, nodes, inputs, output, constants):
    """All tensors are of 32-bit floats."""

    def value(entry):
        return helper.make_tensor_value_info(entry[0], TensorProto.FLOAT, entry[1])

    graph = helper.make_graph(nodes, name, [value(i) for i in inputs], [value(output)], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def convolutional():
    nodes = [
        helper.make_node("Conv", ["x", "k1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "k2", "b2"], ["c2"], strides=[2, 2]),
        helper.make_node("Sigmoid", ["c2"], ["s2"]),
        helper.make_node("Flatten", ["s2"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["g"], transB=1),
        helper.make_node("Softmax", ["g"], ["y"], axis=1),
    ]
    constants = weights(
        k1=normal(8, 3, 3, 3), b1=normal(8), k2=normal(4, 8, 2, 2), b2=normal(4),
        w=normal(10, 64), b=normal(10),
    )
    return model("convolutional", nodes, [("x", [2, 3, 16, 16])], ("y", [2, 10]), constants)


def attention():
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"]),
        helper.make_node("MatMul", ["x", "wk"], ["k"]),
        helper.make_node("MatMul", ["x", "wv"], ["v"]),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["shares"], axis=2),
        helper.make_node("MatMul", ["shares", "v"], ["mixed"]),
        helper.make_node("Add", ["x", "mixed"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "g", "b"], ["y"], axis=-1),
    ]
    constants = weights(
        wq=normal(32, 32), wk=normal(32, 32), wv=normal(32, 32),
        scale=numpy.array(32**-0.5, numpy.float32), g=normal(32), b=normal(32),
    )
    return model("attention", nodes, [("x", [2, 24, 32])], ("y", [2, 24, 32]), constants)


def compiled(made, folder):
    """The module, by way of the compiler's own importer."""
    source, text = folder / "model.onnx", folder / "model.mlir"
    onnx.save(made, source)
    importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", source, "-o", text]
    subprocess.run(importer, check=True)
    options = ["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_75"]
    return compiler.compile_file(str(text), input_type="onnx", extra_args=options)


def check(made):
    given = {
        entry.name: normal(*(size.dim_value for size in entry.type.tensor_type.shape.dim))
        for entry in made.graph.input
    }
    (expected,) = ReferenceEvaluator(made).run(None, given)
    with tempfile.TemporaryDirectory() as folder:
        binary = compiled(made, Path(folder))
    config = runtime.Config("cuda")
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, binary))
    function = context.modules.module[made.graph.name]
    got = numpy.asarray(function(*given.values()).to_host())
    name = made.graph.name
    if got.shape != expected.shape or not numpy.allclose(got, expected, rtol=1e-4, atol=1e-5):
        failures.append(f"{name}: {got.ravel()[:4]}, expected {expected.ravel()[:4]}")


def main():
    for made in (convolutional(), attention()):
        check(made)
    for failure in failures:
        print(failure)
    if failures:
        sys.exit(f"{len(failures)} failed")
    print("all models agree")


if __name__ == "__main__":
    main()
