"""Models of ONNX with inputs and expected outputs: the tests that onnx ships, and exports of PyTorch modules."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, numpy_helper
from torch import nn
from torch.export import Dim

from deplodock.extras.onnx.values import DTYPES

SHIPPED = ("light", "simple", "pytorch-operator", "pytorch-converted")
"""Folders of models in the package onnx."""

GROUPS = ("node", *SHIPPED, "exports")

RANDOM = ("bernoulli", "dropout_random")
"""Words in the names of node tests whose results are random."""

Values = Sequence[Any]


@dataclass(frozen=True)
class Case:
    """A test: a model, with inputs and expected outputs of one or several calls.

    Attributes:
        group: `node`, a folder of `SHIPPED`, or `exports`.
        name: its name.
        model: the model.
        calls: pairs of inputs and expected outputs.
        rtol, atol: tolerances.
        dynamic: whether sizes with a name vary. If not, the first inputs set them.
    """

    group: str
    name: str
    model: ModelProto
    calls: Sequence[tuple[Values, Values]]
    rtol: float = 1e-3
    atol: float = 1e-7
    dynamic: bool = False

    @property
    def operator(self) -> str:
        return next((n.op_type for n in self.model.graph.node if n.op_type != "Constant"), "Constant")


def node_cases(only: str = "") -> Iterator[Case]:
    """Yields the node tests of one operator on dense tensors of numbers of at least 8 bits.

    Tests that onnx makes of them by expanding functions, and tests of random results, are no part of it.
    """
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        if case.model is None or "_expanded" in case.name or only not in case.name:
            continue
        graph = case.model.graph
        values = [*graph.input, *graph.output]
        dense = all(v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in DTYPES for v in values)
        if dense and not any(word in case.name for word in RANDOM):
            calls = [*(case.data_sets or ())][:1]
            yield Case("node", case.name, case.model, calls, case.rtol, case.atol)


def shipped_cases(group: str, only: str = "") -> Iterator[Case]:
    """Yields the models of a folder in the package onnx with their data."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / group
    files = folder.glob("*.onnx") if group == "light" else folder.glob("*/model.onnx")
    for file in sorted(files):
        name = file.stem if group == "light" else file.parent.name
        if only in name:
            model = onnx.load(file)
            calls = [_light_call(file, model)] if group == "light" else [_call(f) for f in _data_sets(file)]
            yield Case(group, name, model, calls)


def _data_sets(file: Path) -> list[Path]:
    return sorted(file.parent.glob("test_data_set*"))


def _call(folder: Path) -> tuple[Values, Values]:
    inputs, outputs = (
        [_tensor(folder / f"{kind}_{n}.pb") for n in range(len([*folder.glob(f"{kind}_*.pb")]))]
        for kind in ("input", "output")
    )
    return inputs, outputs


def _tensor(file: Path) -> TensorProto:
    """Returns a tensor. A file of another kind, such as a sequence, becomes an empty tensor: its model is refused."""
    tensor = TensorProto()
    try:
        tensor.ParseFromString(file.read_bytes())
    except Exception:  # protobuf raises errors of many kinds
        return TensorProto(data_type=TensorProto.FLOAT, dims=[0])
    return tensor


def _light_call(file: Path, model: ModelProto) -> tuple[Values, Values]:
    """Returns the call that onnx's test runner makes: inputs are 0, 1/n, 2/n, ..., and the outputs are in files."""
    initialized = {i.name for i in model.graph.initializer}
    inputs: list[np.ndarray[Any, Any]] = []
    for value in model.graph.input:
        if value.name not in initialized:
            shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    files = [file.with_name(f"{file.stem}_output_{n}.pb") for n in range(len(model.graph.output))]
    return inputs, [_tensor(f) for f in files]


def elements(value: Any) -> np.ndarray[Any, Any]:
    """Returns an input or an expected output, which is an array or a tensor of ONNX, as an array."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


class ResNet(nn.Module):
    """Convolutions with batch norms, a residual sum, pooling, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        y = torch.relu(y + self.norms[1](self.second(y)))
        return self.head(nn.functional.max_pool2d(y, 2).mean((2, 3)))


class Transformer(nn.Module):
    """A block of a transformer between an embedding and its transpose: BERT-like, or GPT-like if it is causal."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, width = causal, 32
        self.tokens, self.positions = nn.Embedding(50, width), nn.Parameter(torch.randn(16, width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        batch, steps, width = x.shape
        heads = [t.reshape(batch, steps, 4, 8).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1)]
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, steps, width))
        return (x + self.mlp(self.norms[1](x))) @ self.tokens.weight.T


class Recurrent(nn.Module):
    """An LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


@dataclass(frozen=True)
class Export:
    """A module to export: its example argument, and the dimensions whose size varies, by name."""

    module: nn.Module
    example: torch.Tensor
    dynamic: dict[int, str]


def exported_modules() -> dict[str, Export]:
    """Returns small modules with random weights."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (2, 12))
    return {
        "resnet": Export(ResNet(), torch.randn(2, 3, 16, 16), {0: "batch"}),
        "bert": Export(Transformer(causal=False), tokens, {0: "batch"}),
        "gpt": Export(Transformer(causal=True), tokens, {0: "batch"}),
        "lstm": Export(Recurrent(), torch.randn(2, 5, 8), {}),
    }


def exported(export: Export, dynamo: bool) -> bytes:
    """Returns the ONNX file that PyTorch exports through torch.export (`dynamo`) or through TorchScript."""
    file, module, args = io.BytesIO(), export.module.eval(), (export.example,)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        if dynamo:
            sizes = {d: Dim(name, min=1, max=64) for d, name in export.dynamic.items()}
            program = torch.onnx.export(module, args, dynamo=True, dynamic_shapes=(sizes or None,), verbose=False)
            assert program is not None
            return program.model_proto.SerializeToString()
        names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": export.dynamic}}
        torch.onnx.export(module, args, file, dynamo=False, opset_version=17, **names)  # pyright: ignore
    return file.getvalue()


def export_cases(only: str = "") -> Iterator[Case]:
    """Yields the exports of `exported_modules` with the results of onnxruntime, for several batches if they vary."""
    import onnxruntime

    for name, export in exported_modules().items():
        for dynamo in (True, False):
            full = f"{name}_{'export' if dynamo else 'torchscript'}"
            if only not in full:
                continue
            data = exported(export, dynamo)
            session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
            batches = (1, 2, 5) if export.dynamic else (2,)
            inputs = [export.example[torch.arange(n) % 2].numpy() for n in batches]
            calls = [([x], session.run(None, {session.get_inputs()[0].name: x})) for x in inputs]
            model = onnx.load_from_string(data)
            yield Case("exports", full, model, calls, rtol=1e-4, atol=1e-5, dynamic=bool(export.dynamic))


def cases(groups: Sequence[str] = GROUPS, only: str = "") -> Iterator[Case]:
    """Yields the tests of groups whose names contain `only`."""
    for group in groups:
        if group == "node":
            yield from node_cases(only)
        elif group == "exports":
            yield from export_cases(only)
        else:
            yield from shipped_cases(group, only)
