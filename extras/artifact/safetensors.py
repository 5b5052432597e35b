"""Weights from safetensors files. Tensors are read when they are needed.

A checkpoint may store a tensor that has two names, such as tied embeddings, under either of them. Therefore a parameter
of a program is looked up by all names that the model has for the tensor.
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
    """Error of a checkpoint that cannot be read, lacks a tensor, or has a tensor of another shape."""


def names_of_tensors(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Returns all names of the tensor of each parameter and buffer. The key is the first name in its own entry."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    same: dict[int, list[str]] = {}
    for name, tensor in named:
        same.setdefault(id(tensor), []).append(name)
    return {name: (name, *(n for n in same[id(tensor)] if n != name)) for name, tensor in named}


def names_in_checkpoints(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Returns the names that a checkpoint may have for each parameter and buffer, by name.

    In addition to `names_of_tensors`, these are the names in a checkpoint of the model without its head.
    """
    prefix = getattr(model, "base_model_prefix", "")
    names = names_of_tensors(model)
    if not prefix:
        return names
    return {k: (*v, *(n.removeprefix(f"{prefix}.") for n in v if n.startswith(f"{prefix}."))) for k, v in names.items()}


class Checkpoint:
    """Tensors of a `.safetensors` file, or of all such files in a folder.

    Raises:
        WeightError: if there are no such files, or if one cannot be read.
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
        """Names of all tensors, sorted."""
        return tuple(sorted(self._file_of))

    def tensor(self, name: str) -> torch.Tensor:
        """Reads the tensor `name`."""
        with _opened(self._file_of[name], name) as opened:
            return opened.get_tensor(name)

    def find(self, names: Iterable[str], shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns the tensor that is stored under one of several names. It is read only once.

        Args:
            names: names of the tensor.
            shape: expected shape.
            dtype: type to convert it to.

        Raises:
            WeightError: if there is no such tensor, or if it has another shape.
        """
        names = list(names)
        if (cached := self._read.get(frozenset(names))) is not None:
            return cached
        stored = next((n for n in names if n in self._file_of), None)
        if stored is None:
            raise WeightError(f"has no tensor {names[0]!r}", location=str(self.path))
        tensor = self.tensor(stored)
        if tuple(tensor.shape) != tuple(shape):
            reason = f"is of shape {list(tensor.shape)}, the program needs {list(shape)}"
            raise WeightError(reason, operator=stored, location=str(self.path))
        return self._read.setdefault(frozenset(names), tensor.to(dtype))

    def bind(self, captured: CapturedProgram, names: Mapping[str, Sequence[str]]) -> CapturedProgram:
        """Returns a program whose parameters on the meta device are replaced by tensors of the checkpoint.

        Args:
            captured: the program.
            names: all names of each parameter.

        Raises:
            WeightError: if a tensor is missing or has another shape.
        """

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
    """Returns the names of the files that the index of a checkpoint lists.

    Raises WeightError if the index is damaged, or lists files outside of its folder.
    """
    try:
        names = sorted({str(n) for n in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WeightError("the index of the weights is damaged", location=str(index)) from None
    if any(Path(n).name != n for n in names):
        raise WeightError("the index of the weights names files outside of the folder", location=str(index))
    return names
