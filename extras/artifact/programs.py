"""Artifacts: `save` writes compiled programs to a folder, `load` returns them as functions.

An artifact is a folder with a manifest, which has the size and the digest of each file (`docs/artifact.md`). For each
program it contains

- the kernel level, with the host program;
- the tensor level, for the reference executor;
- for a GPU the CUDA text and the cubin. C++ for CPUs is printed from the kernel level when the artifact is loaded.

Buffers, and parameters with values, are stored. Parameters on the meta device get their values from a checkpoint when
the artifact is loaded.

All files are data: JSON, IR and CUDA as text, tensors as safetensors, and cubins. Loading does not execute, import or
unpickle anything. A folder that is damaged, or of another version or target, raises an error.
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
from ...dialects.support.printing import PrintedText, print_module
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
"""Version of the format. It is incremented when an older deplodock could misread new artifacts."""

MANIFEST = "manifest.json"
MAX_MANIFEST = 64 << 20
"""Size limit of a manifest in bytes."""

_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)?")


class ArtifactError(CompileError):
    """Error of a folder that is no artifact, is damaged, or contains other programs than needed."""


def digest(data: bytes) -> str:
    """Returns the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: object) -> bytes:
    """Returns the canonical JSON text of `value`, for digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write_folder(path: Path, contents: dict[str, Any], files: dict[str, bytes]) -> None:
    """Writes an artifact atomically. Replaces an artifact at the same path.

    Args:
        path: the folder.
        contents: entries of the manifest.
        files: contents of the files, by name.

    Raises:
        ArtifactError: if something other than an artifact exists at the path, or if writing fails.
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
    """Returns `name` if it is a valid name of a file in an artifact: lower case letters, digits, `_`, one dot.

    Raises ArtifactError for other names.
    """
    if not _NAME.fullmatch(name):
        raise ArtifactError(f"{name!r} may not be the name of a file in an artifact")
    return name


@dataclass(frozen=True)
class Folder:
    """Artifact on disk, with its checked manifest."""

    path: Path
    manifest: dict[str, Any]

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Folder:
        """Reads and checks the manifest of a folder. Raises ArtifactError if it is missing or damaged."""
        folder = Path(path)
        try:
            size = (folder / MANIFEST).stat().st_size
            if size > MAX_MANIFEST:
                raise ArtifactError("the manifest is too large", location=str(path))
            content: object = json.loads((folder / MANIFEST).read_bytes())
        except OSError:
            raise ArtifactError(f"is no artifact: it has no {MANIFEST}", location=str(path)) from None
        except (ValueError, RecursionError):
            raise ArtifactError("the manifest is damaged: it is no JSON", location=str(path)) from None
        if not isinstance(content, dict) or cast(dict[str, Any], content).get("format") != FORMAT:
            raise ArtifactError("is no artifact of deplodock", location=str(path))
        manifest = cast(dict[str, Any], content)
        if manifest.get("version") != VERSION:
            reason = f"is of version {str(manifest.get('version'))[:20]} of the format; this deplodock reads {VERSION}"
            raise ArtifactError(reason, location=str(path))
        described = {key: value for key, value in manifest.items() if key != "digest"}
        if manifest.get("digest") != digest(canonical(described)):
            raise ArtifactError("the manifest is damaged: its digest is wrong", location=str(path))
        return Folder(folder, manifest)

    def read(self, name: str) -> bytes:
        """Returns the contents of a file. Raises ArtifactError if it is missing, or if size or digest are wrong."""
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
        """Returns an error that names this artifact."""
        return ArtifactError(reason, location=str(self.path))


WEIGHTS = "weights.safetensors"
PRODUCER = "producer"


class SavedCompilation(Compilation):
    """Compilation of a loaded program.

    The artifact contains the tensor and kernel levels. Loop and tile level are lowered again from the tensor level.
    There is no torch level.

    Args:
        target: name of the target.
        tensor: IR of the tensor level.
        kernel: IR of the kernel level.
        cuda: CUDA text, or None for a CPU.
        cubin: machine code, or None for a CPU.
    """

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
            self._texts["print-cuda"] = PrintedText(cuda, ())
        self.cubin = cubin

    def at(self, level: str) -> Any:
        """Returns the module at a level. Raises CompileError for the torch level."""
        if level == "torch":
            raise CompileError("an artifact has no torch level")
        return super().at(level)


@dataclass(frozen=True)
class ProgramToSave:
    """Program to save.

    Attributes:
        captured: the captured program.
        compilation: its compilation.
        names: names that a checkpoint may have for each parameter, by name.
    """

    captured: CapturedProgram
    compilation: Compilation
    names: Mapping[str, Sequence[str]]


def save(path: str | Path, programs: Mapping[str, ProgramToSave], extra: Mapping[str, object] | None = None) -> None:
    """Writes an artifact.

    Args:
        path: the folder.
        programs: programs by name, all for the same target.
        extra: data to store with the programs (`Artifact.extra`), as JSON.

    Raises:
        ArtifactError: if the programs have several targets or functions of PyTorch, or if writing fails.
        CompileError: if the arguments or results of a program have types that cannot be stored.
    """
    targets = sorted({p.compilation.target for p in programs.values()})
    if len(targets) != 1:
        raise ArtifactError(f"the programs of an artifact have one target, not {len(targets)}", location=str(path))
    for name, program in programs.items():
        if program.captured.eager:
            operation = next(iter(program.captured.eager.values()))
            reason = f"program {name!r}: {operation.call or operation.operator} is left to PyTorch"
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
        prepack_weights: whether a program for a CPU computes values that only depend on weights once, as in `compile`.

    Raises:
        ArtifactError: where the function cannot be saved, or the folder cannot be written.
    """
    compilation = f.compilation
    if prepack_weights and on_cores(compilation.target) and compilation.module is f.captured.module:
        compilation = compilation.of(f.captured.constant_module())
    save(Path(path), {"main": ProgramToSave(f.captured, compilation, {})})


_Tensors = dict[int, tuple[str, torch.Tensor]]
"""Identity (`id`) of a tensor -> its key in the weights file, and the tensor."""


def _describe(program: ProgramToSave, tensors: _Tensors) -> dict[str, object]:
    """Returns the entry of a program in the manifest. Adds its tensors to `tensors`."""
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
"""Attributes of a captured program that are encoded without changes."""


@dataclass(frozen=True)
class Artifact:
    """Loaded artifact.

    Attributes:
        target: name of the target.
        programs: programs by name.
        extra: data that was saved with them.
    """

    target: str
    programs: dict[str, CompiledFunction]
    extra: dict[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program `main`, or the only program. Raises ArtifactError if there are several without a `main`."""
        if "main" not in self.programs and len(self.programs) != 1:
            raise ArtifactError(f"has several programs: {', '.join(self.programs)}")
        program = self.programs.get("main") or next(iter(self.programs.values()))
        return program(*args, **kwargs)

    def refresh(self) -> None:
        """Makes the next calls pack the weights again, as `CompiledFunction.refresh`."""
        for program in self.programs.values():
            program.refresh()


def load(
    path: str | Path, *, target: str | None = None, weights: str | Path | None = None, executor: str = "auto"
) -> Artifact:
    """Loads the programs of an artifact, after a check of every file.

    Args:
        path: folder of the artifact.
        target: expected target; None accepts any.
        weights: path of a checkpoint for parameters that were saved without values.
        executor: executor of the programs, as in `compile`.

    Raises:
        ArtifactError: for a folder that is no artifact, or a damaged one.
        TargetError: for an artifact of another target.
        WeightError: for a checkpoint that does not fit.
    """
    folder = Folder.open(path)
    if target is not None and (saved_for := folder.manifest.get("target")) != target:
        raise TargetError(f"was compiled for {saved_for}, not for {target}", location=str(path))
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
"""Dataclasses that are encoded as the list of their fields, by name."""


def encode(value: Any) -> object:
    """Returns `value` as JSON for `decode`. Of a tensor only type and shape are encoded.

    Raises CompileError for types that cannot be encoded.
    """
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
    """Returns the value that `encode` has encoded. Raises ValueError for other JSON."""
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
    """Returns a data type by name, including complex types."""
    return {dtype_name(d): d for d in COMPLEX_TYPES}.get(name) or dtype_named(name)


def _operator(name: str) -> torch._ops.OpOverload:
    """Returns an ATen operator by name. Raises ValueError unless it returns a view, or is the copy `A_COPY`."""
    base, _, overload = str(name).partition(".")
    overload_op = getattr(getattr(torch.ops.aten, base, None), overload, None)
    if not isinstance(overload_op, torch._ops.OpOverload) or overload_op._schema.is_mutable:
        raise ValueError("a view that is not understood")
    if overload_op is not A_COPY.operator and not any(a.alias_info for a in overload_op._schema.arguments):
        raise ValueError("a view that is not understood")
    return overload_op


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
