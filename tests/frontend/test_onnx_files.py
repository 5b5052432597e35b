"""Files of ONNX that are damaged or hostile: one clear line each, without much memory, time, or another file."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import torch  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from support.onnx_graphs import FLOAT, INT64, MLP, copied, f32, model, node  # noqa: E402

import deplodock  # noqa: E402
from deplodock.errors import CompileError  # noqa: E402
from deplodock.tools.cli import main  # noqa: E402

HUGE = 1 << 40
"""A size that no memory holds."""

MEMORY = 256 << 10
"""KiB by which the memory of the process may grow for a refusal."""


def line_of(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the only line of the error that `deplodock run` prints for a file."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert main(["run", str(file), "--target", "cpu", "--executor", "reference"]) != 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.strip()]
    assert line.isprintable()
    assert "internal error" not in line
    return line


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Loads the modules of the compiler, so that they do not count as memory of a refusal."""
    args = (torch.ones(2),)
    deplodock.compile(deplodock.from_onnx(relu([2])()), args, target="cpu", executor="reference")(*args)


def with_constant(nodes: Sequence[Any], constants: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Returns a model that adds an input and the value `c`, which nodes compute from constants."""
    return model([*nodes, node("Add", "x,c", "y")], {"x": [1]}, ["y"], constants)


def doubled(first: str, times: int) -> list[Any]:
    names = [first, *(f"d{n}" for n in range(times - 1)), "c"]
    return [node("Concat", f"{a},{a}", b, axis=0) for a, b in zip(names, names[1:], strict=False)]


I = np.array  # noqa: E741
SIZE = {"s": I([HUGE])}

SIZES: dict[str, Callable[[], Any]] = {
    "ConstantOfShape": lambda: with_constant([node("ConstantOfShape", "s", "c")], SIZE),
    "product of sizes": lambda: with_constant([node("ConstantOfShape", "s", "c")], {"s": I([1 << 20, 1 << 20])}),
    "Expand of a constant": lambda: with_constant([node("Expand", "v,s", "c")], SIZE | {"v": f32(1)}),
    "Expand": lambda: model([node("Expand", "x,s", "y")], {"x": [1]}, ["y"], SIZE),
    "Tile of a constant": lambda: with_constant([node("Tile", "v,s", "c")], SIZE | {"v": f32(1)}),
    "Tile": lambda: model([node("Tile", "x,s", "y")], {"x": [2]}, ["y"], SIZE),
    "Range": lambda: with_constant(
        [node("Range", "a,b,d", "r"), node("Cast", "r", "c", to=FLOAT)], {"a": I(0), "b": I(HUGE), "d": I(1)}
    ),
    "Pad": lambda: model([node("Pad", "x,p", "y")], {"x": [1]}, ["y"], {"p": I([0, HUGE])}),
    "Resize": lambda: model(
        [node("Resize", "x,,,s", "y", mode="linear")], {"x": [1, 1, 4, 4]}, ["y"], {"s": I([1, 1, HUGE, 4])}
    ),
    "OneHot": lambda: model([node("OneHot", "i,d,v", "y")], {"i": (INT64, [4])}, ["y"], {"d": I([HUGE]), "v": f32(2)}),
    "HannWindow": lambda: with_constant([node("HannWindow", "n", "c")], {"n": I(HUGE)}),
    "RandomNormal": lambda: with_constant([helper.make_node("RandomNormal", [], ["c"], shape=[HUGE])], {}),
    "output_shape": lambda: model(
        [node("ConvTranspose", "x,w", "y", output_shape=[HUGE])], {"x": [1, 1, 4], "w": [1, 1, 3]}, ["y"]
    ),
    "pads": lambda: model([node("MaxPool", "x", "y", pads=[HUGE, HUGE], kernel_shape=[3])], {"x": [1, 1, 4]}, ["y"]),
    "outer product of constants": lambda: with_constant(
        [node("Mul", "v,w", "c")], {"v": f32(1 << 18, 1), "w": f32(1, 1 << 18)}
    ),
    "Einsum of constants": lambda: with_constant(
        [node("Einsum", "v,v,v,v,v", "c", equation="a,b,c,d,e->abcde")], {"v": f32(1000)}
    ),
    "doubled again and again": lambda: model(doubled("x", 40), {"x": [8]}, ["c"]),
    "input": lambda: model([node("Relu", "x", "y")], {"x": [HUGE, HUGE]}, ["y"]),
    "inputs together": lambda: model(
        [node("Sum", ",".join(f"x{n}" for n in range(64)), "y")], {f"x{n}": [1 << 28] for n in range(64)}, ["y"]
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_beyond_the_memory_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(SIZES[name]().SerializeToString())
    line = line_of(file, capsys)
    assert "m.onnx" in line
    assert re.search("expected (tensors|a table|inputs) of at most", line), line


def changed(change: Callable[[Any], object]) -> Callable[[], Any]:
    """Returns a function that builds an addition of a constant and changes it."""

    def make() -> Any:
        m = model([node("Add", "x,w", "y")], {"x": [4]}, ["y"], {"w": f32(4)})
        change(m)
        return m

    return make


def function(name: str, *body: Any) -> Any:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    return helper.make_function("mine", name, ["a"], ["r"], list(body), opsets)


def calls(functions: Sequence[Any], name: str) -> Any:
    called = helper.make_node(name, ["x"], ["y"], domain="mine")
    return model([called], {"x": [4]}, ["y"], functions=functions, opsets=[helper.make_opsetid("mine", 1)])


def call(name: str, source: str, result: str) -> Any:
    return helper.make_node(name, [source], [result], domain="mine")


def laughs() -> Any:
    """Functions that call each other twice: 2^40 nodes."""
    functions = [function("f0", node("Relu", "a", "r"))]
    functions += [function(f"f{n}", call(f"f{n - 1}", "a", "b"), call(f"f{n - 1}", "b", "r")) for n in range(1, 40)]
    return calls(functions, "f39")


def loop(count: int) -> Any:
    typed = helper.make_tensor_value_info
    ends = [typed("i", INT64, []), typed("go", TensorProto.BOOL, []), typed("v", FLOAT, None)]
    results = [typed("go", TensorProto.BOOL, []), typed("w", FLOAT, None)]
    body = helper.make_graph([node("Neg", "v", "w")], "body", ends, results)
    outer = node("Loop", "n,yes,x", "y", body=body)
    return model([outer], {"x": [4]}, ["y"], {"n": I(count), "yes": I(True)})


def unary(op: str, **attributes: Any) -> Callable[[], Any]:
    return lambda: model([node(op, "x", "y", **attributes)], {"x": [4, 4]}, ["y"])


def relu(x: Any, **options: Any) -> Callable[[], Any]:
    return lambda: model([node("Relu", "x", "y")], {"x": x}, ["y"], **options)


FILES: dict[str, tuple[Callable[[], Any], str]] = {
    "negative size": (relu([-3]), "expected sizes of 0 or more for the input 'x', but got -3"),
    "constant with a negative size": (changed(lambda m: m.graph.initializer[0].dims.append(-1)), "Negative dimension"),
    "constant of another size": (changed(lambda m: m.graph.initializer[0].dims.append(HUGE)), "too small"),
    "overflow of sizes": (
        changed(lambda m: m.graph.initializer[0].dims.extend([1 << 32, 1 << 32])),
        "dimension product overflow",
    ),
    "constant twice": (changed(lambda m: m.graph.initializer.append(m.graph.initializer[0])), "not unique"),
    "input twice": (changed(lambda m: m.graph.input.append(m.graph.input[0])), "multiple times"),
    "name twice": (changed(lambda m: m.graph.node.append(node("Neg", "x", "y"))), "multiple times"),
    "input without a type": (changed(lambda m: m.graph.input[0].ClearField("type")), "'type' of 'value_info'"),
    "missing input": (changed(lambda m: m.graph.node[0].input.pop()), "has input size 1"),
    "missing result": (changed(lambda m: m.graph.output[0].MergeFrom(onnx.ValueInfoProto(name="q"))), "output 'q'"),
    "no results": (changed(lambda m: m.graph.ClearField("output")), "expected a graph with results"),
    "no operator set": (changed(lambda m: m.ClearField("opset_import")), "must specify opset_import"),
    "two operator sets": (
        changed(lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 13))),
        "expected one operator set",
    ),
    "unknown operator set": (relu([4], opset=1 << 40), "out of supported range"),
    "future version of the format": (changed(lambda m: setattr(m, "ir_version", 9999)), "ir_version 9999"),
    "unknown element type": (
        changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99)),
        "m.onnx: .*type",
    ),
    "operand of a wrong type": (
        lambda: model([node("Conv", "x,w", "y")], {"x": (INT64, [1, 1, 4]), "w": [1, 1, 3]}, ["y"]),
        "the_y.* unsupported type: tensor.int64",
    ),
    "attribute of a wrong type": (unary("Softmax", axis="a"), "Mismatched attribute type"),
    "axis out of range": (unary("Flatten", axis=9), "#the_y: .*expected an axis from -2 to 1"),
    "axes out of range": (
        lambda: model([node("Unsqueeze", "x,a", "y")], {"x": [4]}, ["y"], {"a": I([HUGE])}),
        "expected an axis from -2 to 1",
    ),
    "step of zero": (unary("MaxPool", kernel_shape=[1, 1], strides=[0, 0]), "m.onnx"),
    "negative step": (
        unary("MaxPool", kernel_shape=[1, 1], strides=[-(1 << 62), 1]),
        "#the_y: .*expected kernel sizes, strides and dilations of 1 or more",
    ),
    "division of sizes by zero": (
        lambda: model(
            [node("Div", "a,b", "q"), node("Expand", "x,q", "y")], {"x": [1]}, ["y"], {"a": I([4]), "b": I([0])}
        ),
        "#the_q: .*divided by zero",
    ),
    "thousand dimensions": (
        lambda: model([node("Reshape", "x,s", "y")], {"x": [1]}, ["y"], {"s": np.ones(1000, np.int64)}),
        "at most 64 dimensions, but got 1000",
    ),
    "hidden size": (
        lambda: model(
            [node("GRU", "x,w,r", "y", hidden_size=HUGE)], {"x": [3, 2, 5], "w": [1, 12, 5], "r": [1, 12, 4]}, ["y"]
        ),
        "expected weights of the hidden size",
    ),
    "recursion": (lambda: calls([function("f", call("f", "a", "r"))], "f"), "Cycle detected"),
    "exponential calls": (laughs, "expected at most 50000 nodes, with those of functions, but got 16"),
    "function without its result": (lambda: calls([function("f", node("Relu", "a", "q"))], "f"), "is not computed"),
    "empty constant": (
        lambda: model([helper.make_node("Constant", [], ["c"]), node("Add", "x,c", "y")], {"x": [4]}, ["y"]),
        "#c: .*expected a constant with one value",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_a_fault_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, message = FILES[name]
    file = tmp_path / "m.onnx"
    file.write_bytes(make().SerializeToString())
    line = line_of(file, capsys)
    assert "m.onnx" in line
    assert re.search(message, line), line


def test_a_long_loop_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deplodock.extras.onnx.rules.control.LONGEST_LOOP", 16)
    file = tmp_path / "m.onnx"
    file.write_bytes(loop(HUGE).SerializeToString())
    assert "expected a loop of at most 16 iterations" in line_of(file, capsys)


HOSTILE = "a\"b'c\nd\x1b[31m\u202e../../etc/passwd%s{0}${x}`id`\\"


def test_names_are_only_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Quotes, line breaks and format characters in the names of values, nodes and sizes, and keywords of C++."""
    nodes = [
        helper.make_node("Relu", [HOSTILE], ["class"], name=HOSTILE),
        helper.make_node("Add", ["class", "int"], ["return"], name="main"),
    ]
    inputs = {HOSTILE: ["while", "int", "N", "a-b", "a_b", HOSTILE], "int": ["while", 1, "N", "a-b", "a_b", HOSTILE]}
    file = tmp_path / "m.onnx"
    file.write_bytes(model(nodes, inputs, ["return"]).SerializeToString())
    assert main(["run", str(file), "--target", "cpu", "--executor", "reference"]) == 0
    assert "ok" in capsys.readouterr().out
    refused = model([helper.make_node("MatMul", [HOSTILE, HOSTILE], ["y"], name=HOSTILE)], {HOSTILE: [3, 4]}, ["y"])
    file.write_bytes(refused.SerializeToString())
    assert "m.onnx#a" in line_of(file, capsys)


def test_names_of_sizes_stay_apart() -> None:
    """Names that become one identifier are two sizes: here the batch of one input and the columns of the other."""
    m = model([node("MatMul", "x,w", "y")], {"x": ["a-b", 4], "w": [4, "a_b"]}, ["y"])
    module = deplodock.from_onnx(m)
    args = module.example_inputs()
    f = deplodock.compile(module, args, dynamic_shapes=module.dynamic_shapes(), target="cpu", executor="reference")
    assert f(args[0][:2], args[1][:, :3]).shape == (2, 3)


def external(folder: Path, location: str) -> Path:
    """Writes a model with a constant in another file."""
    m = copied()
    tensor = m.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "384"}.items():
        tensor.external_data.add(key=key, value=value)
    file = folder / "m.onnx"
    file.write_bytes(m.SerializeToString())
    return file


@pytest.mark.parametrize("place", ["above", "absolute", "link", "missing"])
def test_data_is_read_from_the_folder_only(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, secret = tmp_path / "models", tmp_path / "secret.bin"
    folder.mkdir()
    secret.write_bytes(b"0" * 4096)
    (folder / "link.bin").symlink_to(secret)
    names = {"above": "../secret.bin", "absolute": str(secret), "link": "link.bin", "missing": "none.bin"}
    line = line_of(external(folder, names[place]), capsys)
    assert "m.onnx" in line or "none.bin" in line


def test_a_model_in_memory_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(copied(), tmp_path / "mlp.onnx", save_as_external_data=True, location="data", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match="are in another file; pass the path of the model"):
        deplodock.from_onnx(onnx.load("mlp.onnx", load_external_data=False))


BYTES = {
    "empty": b"",
    "text": b"import os; os.remove('x')",
    "truncated": MLP.SerializeToString()[:100],
    "one byte less": MLP.SerializeToString()[:-1],
    "zeros": bytes(100),
}


@pytest.mark.parametrize("name", BYTES)
def test_other_bytes_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(BYTES[name])
    assert "m.onnx: error: is no valid ONNX model" in line_of(file, capsys)
