"""Compiled programs on disk: `save` writes an artifact, `load` makes functions of one.

An artifact is a folder of files, with a manifest that has the size and the digest of each. For every program there is
the kernel level (with the host program), the tensor level (what the reference runs) and, for a GPU, the CUDA text and
the cubin. The C++ of the CPU is printed from the kernel level and built for the machine that loads it. Parameters with
values and buffers are stored; parameters without are bound at loading, from a checkpoint.

Everything is data: JSON, IR and CUDA as text, tensors as safetensors, and cubins, which are only given to the GPU they
were made for. Nothing is executed, imported or unpickled by loading it. `docs/artifact.md` describes the format. A
folder that is truncated, changed, of another version or for another target is refused with one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch.fx.immutable_collections import immutable_list
from torch.utils import _pytree as pytree

from ... import __version__
from ...backend.cuda.runtime.nvrtc import compile_cubin
from ...dialects import make_context
from ...dialects.shapes.extents import SymbolAttr
from ...dialects.support.parsing import parse_module
from ...dialects.support.printing import print_module
from ...errors import CompileError, TargetError
from ...frontend.api import CompiledFunction
from ...frontend.capture.aliasing import A_COPY, Place, Step
from ...frontend.capture.arrays import dtype_name, dtype_named
from ...frontend.capture.captured_program import Binding, CapturedProgram, Output
from ...frontend.capture.eager_fallback import COMPLEX_TYPES, Operand
from ...frontend.compilation import Compilation
from ...progress import counted
from ...target.architectures import TARGETS
from ...target.attribute import on_cores, target_of
from .safetensors import Checkpoint

FORMAT = "deplodock-artifact"
VERSION = 7
"""Raised whenever an older deplodock could misread what a newer one writes."""

MANIFEST = "manifest.json"
MAX_MANIFEST = 64 << 20
"""Bytes of the largest manifest that is read."""

_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)?")


class ArtifactError(CompileError):
    """A folder that is no artifact of ours, or one that is damaged or made for something else."""


def digest(data: bytes) -> str:
    """Returns the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: object) -> bytes:
    """`value` as the one JSON text that stands for it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write_folder(path: Path, contents: dict[str, Any], files: dict[str, bytes]) -> None:
    """Write an artifact with these contents and files to the new folder `path`, all at once.

    Raises ArtifactError if there is something that is no artifact already, or if writing fails.
    """
    if path.exists() and not (path / MANIFEST).is_file():
        raise ArtifactError("is there already, and is no artifact", location=str(path))
    listed = {name: {"bytes": len(data), "sha256": digest(data)} for name, data in sorted(files.items())}
    manifest = {"format": FORMAT, "version": VERSION, "files": listed, **contents}
    manifest["digest"] = digest(canonical(manifest))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=".artifact-"))
        try:
            for name, data in files.items():
                (temporary / checked_name(name)).write_bytes(data)
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            temporary.chmod(0o755)
            if path.exists():
                shutil.rmtree(path)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise ArtifactError(str(error.strerror), location=str(path)) from None


def checked_name(name: str) -> str:
    """`name` if it may be the name of a file of an artifact: lower case letters, digits, `_`, one dot."""
    if not _NAME.fullmatch(name):
        raise ArtifactError(f"{name!r} may not be the name of a file in an artifact")
    return name


@dataclass(frozen=True)
class Folder:
    """An artifact on disk whose manifest has been checked."""

    path: Path
    manifest: dict[str, Any]

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Folder:
        """Read and check the manifest. Raises ArtifactError."""
        folder = Path(path)
        try:
            size = (folder / MANIFEST).stat().st_size
            if size > MAX_MANIFEST:
                raise ArtifactError("the manifest is too large", location=str(path))
            found: object = json.loads((folder / MANIFEST).read_bytes())
        except OSError:
            raise ArtifactError(f"is no artifact: it has no {MANIFEST}", location=str(path)) from None
        except (ValueError, RecursionError):
            raise ArtifactError("the manifest is damaged: it is no JSON", location=str(path)) from None
        if not isinstance(found, dict) or cast(dict[str, Any], found).get("format") != FORMAT:
            raise ArtifactError("is no artifact of deplodock", location=str(path))
        manifest = cast(dict[str, Any], found)
        if manifest.get("version") != VERSION:
            reason = f"is of version {str(manifest.get('version'))[:20]} of the format; this deplodock reads {VERSION}"
            raise ArtifactError(reason, location=str(path))
        own = {key: value for key, value in manifest.items() if key != "digest"}
        if manifest.get("digest") != digest(canonical(own)):
            raise ArtifactError("the manifest is damaged: its digest is wrong", location=str(path))
        return Folder(folder, manifest)

    def read(self, name: str) -> bytes:
        """A file of the artifact. Raises ArtifactError if it is not there or not what it was when it was written."""
        expected = self.manifest["files"].get(checked_name(name))
        if not isinstance(expected, dict):
            raise self.error(f"has no {name}")
        file = self.path / name
        try:
            if file.is_symlink() or file.stat().st_size != expected["bytes"]:
                raise self.error(f"{name} is damaged: it has not the size it was written with")
            data = file.read_bytes()
        except OSError:
            raise self.error(f"{name} is missing") from None
        if digest(data) != expected["sha256"]:
            raise self.error(f"{name} is damaged: its digest is wrong")
        return data

    def error(self, reason: str) -> ArtifactError:
        """An error about this artifact."""
        return ArtifactError(reason, location=str(self.path))


WEIGHTS = "weights.safetensors"
PRODUCER = "producer"


class SavedCompilation(Compilation):
    """The levels of a program that were stored; those in between are made from them, the torch level is gone."""

    def __init__(self, target: str, tensor: str, kernel: str, cuda: str | None, cubin: bytes | None) -> None:
        ctx = make_context()
        modules = {
            "tensor": parse_module(ctx, tensor, "tensor.mlir"),
            "kernel": parse_module(ctx, kernel, "kernel.mlir"),
        }
        planned = target_of(modules["kernel"])
        super().__init__(modules["tensor"], target, machine=planned if planned.arch == target else None)
        self._levels.clear()
        self._levels.update(modules)
        if cuda is not None:
            self._texts["print-cuda"] = cuda
        self.cubin = cubin

    def at(self, level: str) -> Any:
        """The module at a level. Raises CompileError for the torch level."""
        if level == "torch":
            raise CompileError("an artifact has no torch level")
        return super().at(level)


@dataclass(frozen=True)
class ToSave:
    """A program to be saved. `names` are, for each parameter, the names that a checkpoint may have for it."""

    captured: CapturedProgram
    compilation: Compilation
    names: Mapping[str, Sequence[str]]


def save(path: str | Path, programs: Mapping[str, ToSave], extra: Mapping[str, object] | None = None) -> None:
    """Write an artifact with these programs, all for one target; `extra` is JSON that comes back as `extra`.

    Raises ArtifactError, and CompileError where a program takes or gives what cannot be written down.
    """
    targets = sorted({p.compilation.target for p in programs.values()})
    if len(targets) != 1:
        raise ArtifactError(f"the programs of an artifact have one target, not {len(targets)}", location=str(path))
    for name, program in programs.items():
        if program.captured.eager:
            left = next(iter(program.captured.eager.values()))
            reason = f"program {name!r}: {left.call or left.operator} is left to PyTorch"
            raise ArtifactError(f"{reason}, and an artifact holds nothing but data and kernels", location=str(path))
    from safetensors.torch import save as to_bytes

    tensors = _Tensors()
    files: dict[str, bytes] = {}
    described: dict[str, object] = {}
    for name, program in programs.items():
        compilation = program.compilation
        files[f"{name}_tensor.mlir"] = print_module(compilation.at("tensor")).encode()
        files[f"{name}_kernel.mlir"] = print_module(compilation.at("kernel"), debuginfo=True).encode()
        if targets[0] in TARGETS:
            cuda = compilation.cuda
            files[f"{name}.cu"] = cuda.encode()
            files[f"{name}_{targets[0]}.cubin"] = compile_cubin(cuda, targets[0]).cubin if "__global__" in cuda else b""
        described[name] = _describe(program, tensors)
    files[WEIGHTS] = to_bytes({k: t.detach().cpu().contiguous().clone() for k, t in tensors.values()})
    contents = {"target": targets[0], "programs": described, "extra": dict(extra or {}), PRODUCER: __version__}
    write_folder(Path(path), contents, files)


def save_function(f: CompiledFunction, path: str | PathLike[str], prepack_weights: bool = True) -> None:
    """Writes a compiled function with its parameters to the folder `path`, for `load`.

    Args:
        f: the function.
        path: the folder.
        prepack_weights: whether the program for a CPU computes once what depends on weights alone, as for `compile`.

    Raises:
        ArtifactError: where the function cannot be saved, or the folder cannot be written.
    """
    compilation = f.compilation
    if prepack_weights and on_cores(compilation.target) and compilation.module is f.captured.module:
        compilation = compilation.of(f.captured.constant_module())
    save(Path(path), {"main": ToSave(f.captured, compilation, {})})


_Tensors = dict[int, tuple[str, torch.Tensor]]
"""The tensors that are stored, each once, with their keys."""


def _describe(program: ToSave, tensors: _Tensors) -> dict[str, object]:
    captured = program.captured
    specs = {"arguments": captured.in_spec, "result": captured.out_spec}
    bindings: list[dict[str, object]] = []
    for b in captured.bindings:
        bindings.append({"name": b.name, "kind": b.kind, "leaf": b.leaf})
        if b.tensor is not None:
            bindings[-1] |= {"dtype": encode(b.tensor.dtype), "shape": list(b.tensor.shape)}
            if b.tensor.is_meta:
                bindings[-1]["names"] = list(program.names.get(b.name, (b.name,)))
            else:
                bindings[-1]["tensor"] = tensors.setdefault(id(b.tensor), (f"tensor_{len(tensors)}", b.tensor))[0]
    return {
        "bindings": bindings,
        **{name: encode(getattr(captured, name)) for name in _WRITTEN},
        **{k: encode(pytree.tree_unflatten(list(range(s.num_leaves)), s)) for k, s in specs.items()},
    }


_WRITTEN = ("outputs", "updates", "examples", "viewed", "layouts", "checks", "needs", "autocast")
"""What is written down of a captured program as it is."""


@dataclass(frozen=True)
class Artifact:
    """The programs of an artifact by name, and what was saved with them."""

    target: str
    programs: dict[str, CompiledFunction]
    extra: dict[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program `main`, or the only one. Raises ArtifactError if there are several others."""
        if "main" not in self.programs and len(self.programs) != 1:
            raise ArtifactError(f"has several programs: {', '.join(self.programs)}")
        program = self.programs.get("main") or next(iter(self.programs.values()))
        return program(*args, **kwargs)

    def refresh(self) -> None:
        """Packs the weights of all programs again in the next call, as `CompiledFunction.refresh`."""
        for program in self.programs.values():
            program.refresh()


def load(
    path: str | Path, *, target: str | None = None, weights: str | Path | None = None, executor: str = "auto"
) -> Artifact:
    """Loads the programs of an artifact, after a check of every file.

    Args:
        path: folder of the artifact.
        target: target that the artifact has to be compiled for; None accepts each.
        weights: checkpoint for parameters that were saved without values.
        executor: who runs the programs, as for `compile`.

    Raises:
        ArtifactError: for a folder that is no artifact, or a damaged one.
        TargetError: for an artifact of another target.
        WeightError: for a checkpoint that does not fit.
    """
    folder = Folder.open(path)
    if target is not None and (found := folder.manifest.get("target")) != target:
        raise TargetError(f"was compiled for {found}, not for {target}", location=str(path))
    checkpoint = None if weights is None else Checkpoint(weights)
    try:
        contents = {name: folder.read(name) for name in folder.manifest["files"]}
        return _assemble(folder, contents, checkpoint, executor)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise folder.error(f"the manifest lacks something or has something strange: {reason}") from error


def _assemble(folder: Folder, contents: dict[str, bytes], checkpoint: Checkpoint | None, executor: str) -> Artifact:
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    target = str(folder.manifest["target"])
    try:
        stored = from_bytes(contents[WEIGHTS])
    except SafetensorError as error:
        raise folder.error(f"the weights cannot be read: {error}") from None
    programs: dict[str, CompiledFunction] = {}
    for name, entry in cast(dict[str, Any], folder.manifest["programs"]).items():
        compilation = SavedCompilation(
            target,
            contents[f"{name}_tensor.mlir"].decode(),
            contents[f"{name}_kernel.mlir"].decode(),
            contents[f"{name}.cu"].decode() if target in TARGETS else None,
            contents[f"{name}_{target}.cubin"] if target in TARGETS else None,
        )
        captured = CapturedProgram(
            compilation.at("tensor"),
            tuple(_binding(b, stored, checkpoint, folder) for b in counted("reading", entry["bindings"], "weights")),
            in_spec=pytree.tree_flatten(decode(entry["arguments"]))[1],
            out_spec=pytree.tree_flatten(decode(entry["result"]))[1],
            **{key: decode(entry[key]) for key in _WRITTEN},
        )
        programs[name] = CompiledFunction(captured, compilation, executor)
    return Artifact(target, programs, cast(dict[str, Any], folder.manifest["extra"]))


def _binding(
    entry: dict[str, Any], stored: dict[str, torch.Tensor], checkpoint: Checkpoint | None, folder: Folder
) -> Binding:
    tensor = stored[entry["tensor"]] if "tensor" in entry else None
    if "names" in entry:
        names, shape = tuple(entry["names"]), tuple(int(n) for n in entry["shape"])
        if checkpoint is None:
            raise folder.error(
                f"was saved without the weights; a checkpoint with {names[0]!r} is needed (--weights, `weights=`)"
            )
        tensor = checkpoint.find(names, shape, decode(entry["dtype"]))
    return Binding(entry["name"], entry["kind"], int(entry["leaf"]), tensor)


_CLASSES: dict[str, Any] = {c.__name__: c for c in (Operand, Output, Place, Step)}
"""Dataclasses, which are written with their fields in order."""


def encode(value: Any) -> object:
    """`value` as JSON that `decode` reads back, a tensor without what is in it. Raises CompileError for a value of
    another type."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (tuple, list, immutable_list, frozenset):
        name = "list" if kind is immutable_list else kind.__name__
        return {name: [encode(v) for v in (sorted(value) if kind is frozenset else value)]}
    if kind is dict:
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    if kind in _CLASSES.values():
        return {kind.__name__: [encode(getattr(value, f.name)) for f in fields(value)]}
    if isinstance(value, torch.Tensor):
        return {"tensor": [dtype_name(value.dtype), list(value.shape)]}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch._ops.OpOverload):
        return {"operator": str(value).removeprefix("aten.")}
    if isinstance(value, SymbolAttr):
        return {"size": [value.hint, value.lower.data, value.upper.data]}
    raise CompileError(f"a value of type {kind.__name__} cannot be saved")


def decode(value: Any) -> Any:
    """The value that was encoded. Raises ValueError for JSON that `encode` does not write."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, items),) = value.items()
        if kind in _CLASSES:
            return _CLASSES[kind](*map(decode, items))
        if kind in _KINDS:
            return _KINDS[kind](items)
    raise ValueError("a value that is not understood")


def _dtype(name: str) -> torch.dtype:
    """A data type of the caller's, complex ones included."""
    return {dtype_name(d): d for d in COMPLEX_TYPES}.get(name) or dtype_named(name)


def _operator(name: str) -> torch._ops.OpOverload:
    """An operator of ATen that makes a view, or a copy."""
    base, _, overload = str(name).partition(".")
    found = getattr(getattr(torch.ops.aten, base, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload) or found._schema.is_mutable:
        raise ValueError("a view that is not understood")
    if found is not A_COPY.operator and not any(a.alias_info for a in found._schema.arguments):
        raise ValueError("a view that is not understood")
    return found


_KINDS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda items: tuple(map(decode, items)),
    "list": lambda items: [*map(decode, items)],
    "frozenset": lambda items: frozenset(map(decode, items)),
    "dict": lambda pairs: {decode(k): decode(v) for k, v in pairs},
    "dtype": _dtype,
    "tensor": lambda tensor: torch.empty(tensor[1], dtype=_dtype(tensor[0]), device="meta"),
    "operator": _operator,
    "size": lambda size: SymbolAttr.get(str(size[0]), int(size[1]), int(size[2]) - 1),
}
