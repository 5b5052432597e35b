"""ONNX models: built by hand, compiled and compared with ONNX's reference or with onnxruntime."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import torch  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from support import ROOT  # noqa: E402
from support.onnx_graphs import FLOAT, INT64, MLP, copied, f32, model, node  # noqa: E402

sys.path.insert(0, str(ROOT))

import deplodock  # noqa: E402
from deplodock.errors import CompileError  # noqa: E402
from deplodock.tools.cli import main  # noqa: E402


def expected(m: Any, *args: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    names = [i.name for i in m.graph.input if i.name not in {c.name for c in m.graph.initializer}]
    return ReferenceEvaluator(m).run(None, dict(zip(names, args, strict=True)))


def test_one_program_serves_all_batches() -> None:
    module = deplodock.from_onnx(MLP)
    args = module.example_inputs()
    f = deplodock.compile(module, args, dynamic_shapes=module.dynamic_shapes(), target="cpu", executor="reference")
    for batch in (1, 2, 7):
        x = f32(batch, 8)
        np.testing.assert_allclose(f(torch.from_numpy(x)).numpy(), expected(MLP, x)[0], rtol=1e-5, atol=1e-6)


def test_locations_name_the_nodes() -> None:
    module = deplodock.from_onnx(MLP)
    f = deplodock.compile(module, module.example_inputs(), target="cpu", executor="reference")
    assert 'model.onnx#the_z"' in f.compilation.text("tensor", with_locations=True)


def branches() -> Any:
    then = helper.make_graph([node("Exp", "x", "a")], "then", [], [helper.make_tensor_value_info("a", FLOAT, None)])
    other = helper.make_graph([node("Neg", "x", "c")], "else", [], [helper.make_tensor_value_info("c", FLOAT, None)])
    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Greater", "sum,zero", "positive"),
        node("If", "positive", "y", then_branch=then, else_branch=other),
    ]
    return model(nodes, {"x": [4]}, ["y"], {"zero": np.float32(0)})


def loop() -> Any:
    body = helper.make_graph(
        [node("Mul", "v,x", "w"), node("Identity", "go", "on"), node("Identity", "w", "row")],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", FLOAT, [4]),
            helper.make_tensor_value_info("row", FLOAT, [4]),
        ],
    )
    constants = {"count": np.array(3), "yes": np.array(True)}
    return model([node("Loop", "count,yes,x", "y,rows", body=body)], {"x": [4]}, ["y", "rows"], constants)


def scan() -> Any:
    body = helper.make_graph(
        [node("Add", "s,row", "t"), node("Identity", "t", "out")],
        "body",
        [helper.make_tensor_value_info(n, FLOAT, [4]) for n in ("s", "row")],
        [helper.make_tensor_value_info(n, FLOAT, [4]) for n in ("t", "out")],
    )
    nodes = [node("Scan", "start,x", "last,sums", body=body, num_scan_inputs=1)]
    return model(nodes, {"x": [5, 4]}, ["last", "sums"], {"start": np.zeros(4, np.float32)})


def function() -> Any:
    """A function of the model whose attribute is an attribute of its call."""
    inner = helper.make_node("LeakyRelu", ["a"], ["m"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    body = [inner, helper.make_node("Add", ["m", "a"], ["r"])]
    twice = helper.make_function("mine", "twice", ["a"], ["r"], body, [helper.make_opsetid("", 18)], ["slope"])
    nodes = [helper.make_node("twice", ["x"], ["y"], domain="mine", slope=0.25)]
    return model(nodes, {"x": [4]}, ["y"], functions=[twice], opsets=[helper.make_opsetid("mine", 1)])


GRAPHS: dict[str, Callable[[], tuple[Any, list[np.ndarray[Any, Any]]]]] = {
    "branch on data": lambda: (branches(), [f32(4)]),
    "loop": lambda: (loop(), [f32(4)]),
    "scan": lambda: (scan(), [f32(5, 4)]),
    "function of ONNX": lambda: (
        model([node("MeanVarianceNormalization", "x", "y")], {"x": [2, 3, 4, 4]}, ["y"]),
        [f32(2, 3, 4, 4)],
    ),
    "old operator set": lambda: (
        model([node("Squeeze", "x", "y", axes=[1])], {"x": [3, 1, 4]}, ["y"], opset=11),
        [f32(3, 1, 4)],
    ),
    "axes as an attribute": lambda: (
        model([node("ReduceMean", "x", "y", axes=[1])], {"x": [3, 5]}, ["y"], opset=13),
        [f32(3, 5)],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_right(name: str) -> None:
    graph, args = GRAPHS[name]()
    module = deplodock.from_onnx(graph)
    tensors = tuple(torch.from_numpy(a) for a in args)
    f = deplodock.compile(module, tensors, target="cpu", executor="reference")
    results = f(*tensors)
    for result, right in zip(
        results if isinstance(results, tuple) else (results,), expected(graph, *args), strict=True
    ):
        np.testing.assert_allclose(result.numpy(), right, rtol=1e-5, atol=1e-6)


def test_a_function_of_the_model_gets_its_attribute() -> None:
    module = deplodock.from_onnx(function())
    x = torch.tensor([-2.0, -1.0, 0.5, 4.0])
    f = deplodock.compile(module, (x,), target="cpu", executor="reference")
    torch.testing.assert_close(f(x), torch.where(x < 0, 1.25 * x, 2 * x))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "operator": (
        lambda: model([node("ImageDecoder", "x", "y")], {"x": (TensorProto.UINT8, [9])}, ["y"], opset=20),
        r"#the_y: .*ImageDecoder is not supported \(operator set 20\)",
    ),
    "custom operator": (
        lambda: model(
            [helper.make_node("Magic", ["x"], ["y"], name="the_y", domain="com.corp")],
            {"x": [4]},
            ["y"],
            opsets=[helper.make_opsetid("com.corp", 1)],
        ),
        r"#the_y: .*com.corp.Magic is no operator of ONNX",
    ),
    "function that replaces an operator": (
        lambda: model(
            [helper.make_node("Relu", ["x"], ["y"])],
            {"x": [4]},
            ["y"],
            functions=[
                helper.make_function("", "Relu", ["a"], ["r"], [node("Neg", "a", "r")], [helper.make_opsetid("", 18)])
            ],
        ),
        "expected functions in a domain of their own, but 'Relu' is in ONNX's",
    ),
    "attribute": (
        lambda: model(
            [node("RNN", "x,w,r", "y,h", clip=1.0, hidden_size=4)],
            {"x": [3, 2, 5], "w": [1, 4, 5], "r": [1, 4, 4]},
            ["y"],
        ),
        "#the_y: .*the attribute clip is not supported",
    ),
    "computed axes": (
        lambda: model([node("ReduceSum", "x,axes", "y")], {"x": [4, 4], "axes": (INT64, [1])}, ["y"]),
        "#the_y: .*expected a constant, or a value that follows from shapes, for the input 'axes'",
    ),
    "shapes that do not fit": (
        lambda: model([node("MatMul", "x,w", "y")], {"x": [4, 5], "w": [4, 5]}, ["y"]),
        "#the_y: .*does not fit its inputs",
    ),
    "element type": (
        lambda: model([node("Identity", "x", "y")], {"x": (TensorProto.STRING, [4])}, ["y"]),
        "expected numbers of 8 bits or more, but got the element type STRING",
    ),
    "future operator set": (
        lambda: model([node("Relu", "x", "y")], {"x": [4]}, ["y"], opset=999),
        "expected an operator set up to .*999; update onnx|No Op registered|Unrecognized|not a valid|is no valid",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_node(name: str) -> None:
    make, message = REFUSED[name]

    def compiled() -> object:
        module = deplodock.from_onnx(make())
        return deplodock.compile(module, module.example_inputs(), target="cpu", executor="reference")

    with pytest.raises(CompileError, match=message) as caught:
        compiled()
    assert "\n" not in caught.value.reason


LAYERS = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Recurrent operator -> number of its gates."""


@pytest.mark.parametrize("operator", LAYERS)
def test_sequences_have_their_own_lengths(operator: str) -> None:
    """Compares both directions with onnxruntime. States after the end of a sequence are 0."""
    runtime = pytest.importorskip("onnxruntime")
    gates, cell = LAYERS[operator], operator == "LSTM"
    outputs, states = ["y", "h", "c"][: 2 + cell], ["h0", "c0"][: 1 + cell]
    layer = node(
        operator, ",".join(["x,w,r,b,lengths", *states]), ",".join(outputs), hidden_size=4, direction="bidirectional"
    )
    inputs = {"x": [3, 2, 5], "lengths": (TensorProto.INT32, [2]), **{s: [2, 2, 4] for s in states}}
    weights = {"w": f32(2, 4 * gates, 5), "r": f32(2, 4 * gates, 4), "b": f32(2, 8 * gates)}
    m = model([layer], inputs, outputs, weights)
    values = {"x": f32(3, 2, 5), "lengths": np.array([3, 1], np.int32), **{s: f32(2, 2, 4) for s in states}}
    session = runtime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    results = deplodock.from_onnx(m)(*map(torch.from_numpy, values.values()))
    for result, right in zip(results, session.run(None, values), strict=True):
        np.testing.assert_allclose(result.numpy(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_an_export_is_right(name: str) -> None:
    """A program on the CPU is equal to onnxruntime, for several batches where the export has a dynamic one."""
    runtime = pytest.importorskip("onnxruntime")
    from benchmarks.compiler.onnx_cases import exported, exported_modules

    export = exported_modules()[name]
    data = exported(export, dynamo=False)
    module = deplodock.from_onnx(onnx.load_from_string(data))
    args = (export.example,) if not export.dynamic else module.example_inputs()
    f = deplodock.compile(module, args, dynamic_shapes=module.dynamic_shapes(), target="cpu", executor="cpu")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for batch in (1, 2, 5) if export.dynamic else (2,):
        x = export.example[torch.arange(batch) % 2]
        (right,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(f(x).numpy(), right, rtol=1e-4, atol=1e-5)


def test_the_page_lists_the_rules() -> None:
    """`docs/onnx.md` is of the present rules. `python -m benchmarks.compiler.onnx_conformance --update` writes it."""
    from benchmarks.compiler.onnx_conformance import operators_with_rules

    page = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
    section = page.partition("## Operators with a rule")[2].partition("\n## ")[0]
    assert re.findall(r"`([^`]+)`", section) == operators_with_rules()


def test_the_commands_take_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mlp.onnx"
    onnx.save(copied(), file, save_as_external_data=True, size_threshold=0)
    assert main(["run", str(file), "--target", "cpu", "--executor", "reference"]) == 0
    assert "ok" in capsys.readouterr().out
    assert main(["compile", str(file), "--target", "cpu", "--ir", "loop"]) == 0
    assert "loop.nest" in capsys.readouterr().out
