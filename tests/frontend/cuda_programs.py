"""Captures programs of CUDA tensors on a machine without a GPU, and prints those that are refused only for a GPU.

PyTorch calls other operators for CUDA tensors, and decompositions may make a tensor on the wrong device. Fake tensors
of the device `cuda` show both. PyTorch's CPU build traces them if `device_guard.cpp` registers a guard for that device.

Usage: python tests/frontend/cuda_programs.py [EVERY] captures every EVERY-th program (default 1). The exit status is 1
if a program is refused.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from deplodock.frontend.capture import export

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

Built = tuple[Callable[..., Any], tuple[Any, ...]]
Program = tuple[str, Callable[[], Built]]

NOT_CAPTURED = {
    "linspace.tensor_overload": "the result lies on the host, unless the call names a device",
    "logspace.tensor_overload": "the result lies on the host, unless the call names a device",
    "to": "the sample moves the tensor to the host",
    "combinations": "the sample has a tensor with data among its arguments",
    "__getitem__": "the sample has a tensor with data among its arguments",
    **dict.fromkeys(
        "resize_ resize_as_ masked.cumsum masked.cumprod gpt_last_logits gpt_without_flash sinc_filters".split(),
        "PyTorch runs a kernel of the device while it traces the program",
    ),
}
"""Program -> the reason why it cannot be captured from fake tensors of a GPU."""


RECURRENT = (nn.LSTMCell, nn.GRUCell, nn.RNNCell, nn.LSTM, nn.GRU, nn.RNN)


class Held(nn.Module):
    """A function as a module: tensors of its closure are buffers, modules of its closure are submodules.

    So all of them can be replaced by tensors of another device.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = [function]
        self.cells: list[tuple[Any, list[Any], Any]] = []
        self.modules_inside = nn.ModuleList()
        self._hold(None, function)

    def _hold(self, cell: Any, value: Any) -> None:
        leaves, spec = pytree.tree_flatten(value)
        for leaf in leaves:
            if isinstance(leaf, nn.Module):
                self.modules_inside.append(leaf)
            elif callable(leaf):
                for inner in getattr(leaf, "__closure__", None) or ():
                    self._hold(inner, inner.cell_contents)
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            for i, leaf in enumerate(leaves):
                if isinstance(leaf, torch.Tensor):
                    leaves[i] = f"held_{len(self._buffers)}"
                    self.register_buffer(leaves[i], leaf.detach())
            self.cells.append((cell, leaves, spec))

    def forward(self, *args: Any) -> Any:
        before = [cell.cell_contents for cell, _, _ in self.cells]
        for cell, leaves, spec in self.cells:
            values = [self._buffers.get(x, x) if isinstance(x, str) else x for x in leaves]
            cell.cell_contents = pytree.tree_unflatten(values, spec)
        try:
            return self.function[0](*args)
        finally:
            for (cell, _, _), value in zip(self.cells, before, strict=True):
                cell.cell_contents = value


def capture_on_gpu(built: Built, default: bool) -> None:
    """Captures a program with its arguments and weights as fake tensors of a GPU.

    With `default`, tensors that the program makes are on the GPU too, as after `torch.set_default_device("cuda")`.
    """
    mode, moved = FakeTensorMode(), dict[int, torch.Tensor]()

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            with mode:
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
            parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = nn.Parameter(fake, requires_grad=False) if parameter else fake
        return moved[id(tensor)]

    function, args = built
    held = function if isinstance(function, nn.Module) else Held(function)
    for module in held.modules():
        for tensors in module._parameters, module._buffers:
            tensors.update({name: move(t) for name, t in tensors.items() if t is not None})
    args = pytree.tree_map_only(torch.Tensor, move, args)
    with mode, torch.no_grad(), torch.device("cuda") if default else nullcontext():
        export.capture(held, args)


def programs() -> Iterator[Program]:
    """Yields all programs by name, each with a function that returns the program and its arguments.

    They are the 84 shapes, the classes with targets, programs as people write them, PyTorch's operators, and recurrent
    networks.
    """
    from programs.people import PROGRAMS

    from benchmarks.common.cases import cases

    for suite in ("seed84", "classes"):
        for case in cases([suite], "cuda", ["f32", "bf16"], small=suite == "seed84"):
            yield case.key, case.make
    yield from PROGRAMS.items()
    yield from _operators()
    for layer in RECURRENT:
        yield layer.__name__, lambda layer=layer: (layer(4, 5), (torch.randn(3, 4),))


def _operators() -> Iterator[Program]:
    for operator in op_db:
        name = f"{operator.name}.{operator.variant_test_name}".rstrip(".")
        if torch.float32 in operator.dtypes:
            yield f"torch: {name}", lambda operator=operator: _sample(operator)


def _sample(operator: Any) -> Built:
    """Returns a call of an operator with its first sample that has a tensor, as a function and its tensors."""
    for sample in operator.sample_inputs("cpu", torch.float32, requires_grad=False):
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def call(*tensors: Any, leaves: Any = leaves, spec: Any = spec, places: Any = places) -> Any:
            values = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            args, kwargs = pytree.tree_unflatten(values, spec)
            return operator.op(*args, **kwargs)

        if places:
            return call, tuple(leaves[i] for i in places)
    return torch.relu, (torch.ones(2),)


def refused(every: int) -> Iterator[tuple[str, str]]:
    """Yields the name and the error of each program that is captured for the CPU and refused for a GPU.

    Tries every `every`-th program, and all recurrent networks.
    """
    table = [*programs()]
    for name, build in dict(table[::every] + table[-len(RECURRENT) :]).items():
        operator = name.removeprefix("torch: ")
        if operator in NOT_CAPTURED:
            continue
        try:
            capture_on_gpu(build(), default=operator == name)
        except Exception as error:
            try:
                with torch.no_grad():
                    export.capture(*build())
            except Exception:
                continue
            yield name, str(error)


def trace_without_gpu() -> None:
    """Makes PyTorch's CPU build trace fake tensors of a GPU."""
    if not torch.backends.cuda.is_built():
        root = Path(torch.__file__).parent
        with tempfile.TemporaryDirectory() as folder:
            library, source = Path(folder) / "device_guard.so", Path(__file__).with_name("device_guard.cpp")
            flags = ("-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10")
            subprocess.run(["g++", str(source), *flags, "-o", str(library)], check=True)
            ctypes.CDLL(str(library))
        torch.cuda._lazy_init = lambda: None
    export.kind_of = lambda tensor: None  # accepts fake tensors


def main(every: str = "1") -> int:
    warnings.simplefilter("ignore")
    trace_without_gpu()
    torch.manual_seed(0)
    failures = [*refused(int(every))]
    for name, message in failures:
        print(f"{name}: {message}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
