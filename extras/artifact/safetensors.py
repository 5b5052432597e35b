"""Weights from safetensors files, read when they are needed, and found by what they are rather than their names.

A model whose output projection is its embedding has one tensor under two names, of which a checkpoint stores either. So
an argument of a program is bound to a tensor by all names that the model itself has for that tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import CompileError
from ...frontend.capture.captured_program import Binding, CapturedProgram
from ...progress import counted


class WeightError(CompileError):
    """A checkpoint that cannot be read, lacks a tensor, or has one of another shape."""


def names_of_tensors(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """For every parameter and buffer by name, all names of the same tensor, its own first."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    same: dict[int, list[str]] = {}
    for name, tensor in named:
        same.setdefault(id(tensor), []).append(name)
    return {name: (name, *(n for n in same[id(tensor)] if n != name)) for name, tensor in named}


def names_in_checkpoints(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """As `names_of_tensors`, with the names that a checkpoint of the model without its head has for the tensors."""
    prefix = getattr(model, "base_model_prefix", "")
    found = names_of_tensors(model)
    if not prefix:
        return found
    return {k: (*v, *(n.removeprefix(f"{prefix}.") for n in v if n.startswith(f"{prefix}."))) for k, v in found.items()}


class Checkpoint:
    """The tensors of a `.safetensors` file, or of all those in a folder; each is read once, when it is asked for.

    Raises WeightError for a path without any, and for files that are no safetensors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, index = Path(path), Path(path) / "model.safetensors.index.json"
        files = [self.path / n for n in shards(index)] if index.is_file() else sorted(self.path.glob("*.safetensors"))
        self._file_of: dict[str, Path] = {}
        for file in [self.path] if self.path.is_file() else files:
            with _opened(file) as opened:
                self._file_of |= dict.fromkeys(opened.keys(), file)
        if not self._file_of:
            raise WeightError("there are no weights in safetensors files", location=str(path))
        self._read: dict[frozenset[str], torch.Tensor] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(sorted(self._file_of))

    def tensor(self, name: str) -> torch.Tensor:
        """Returns the tensor of a name, from disk."""
        with _opened(self._file_of[name], name) as opened:
            return opened.get_tensor(name)

    def find(self, names: Iterable[str], shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns the tensor that is stored under one of `names`, as `dtype`. Raises WeightError if none fits."""
        names = list(names)
        if (known := self._read.get(frozenset(names))) is not None:
            return known
        stored = next((n for n in names if n in self._file_of), None)
        if stored is None:
            raise WeightError(f"has no tensor {names[0]!r}", location=str(self.path))
        tensor = self.tensor(stored)
        if tuple(tensor.shape) != tuple(shape):
            reason = f"is of shape {list(tensor.shape)}, the program needs {list(shape)}"
            raise WeightError(reason, operator=stored, location=str(self.path))
        return self._read.setdefault(frozenset(names), tensor.to(dtype))

    def bind(self, captured: CapturedProgram, names: Mapping[str, Sequence[str]]) -> CapturedProgram:
        """Returns a program with tensors of the checkpoint for its parameters on the meta device. `names` are all names
        of each. Raises WeightError."""

        def bound(b: Binding) -> Binding:
            if b.tensor is None or b.tensor.device.type != "meta":
                return b
            return replace(b, tensor=self.find(names.get(b.name, (b.name,)), b.tensor.shape, b.tensor.dtype))

        return replace(captured, bindings=tuple(map(bound, counted("reading", captured.bindings, "weights"))))


@contextmanager
def _opened(file: Path, name: str | None = None) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise WeightError(f"cannot be read: {error}", operator=name, location=str(file)) from None


def shards(index: Path) -> list[str]:
    """The files that the index of a checkpoint names, in the folder it is in. Raises WeightError."""
    try:
        names = sorted({str(n) for n in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WeightError("the index of the weights is damaged", location=str(index)) from None
    if any(Path(n).name != n for n in names):
        raise WeightError("the index of the weights names files outside of the folder", location=str(index))
    return names
