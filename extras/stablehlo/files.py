"""Files of StableHLO: MLIR as text or bytecode, and artifacts of `jax.export`. Nothing in a file is executed."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from jax import export
from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ...errors import CompileError, one_line

MOST_NESTING = 400
"""Depth of brackets in a text. The parser of MLIR is recursive, and a text of more levels may overflow its stack."""

BYTECODE = b"ML\xefR"
"""First bytes of MLIR bytecode."""


@dataclass(frozen=True)
class StableHlo:
    """A StableHLO program.

    Attributes:
        module: the module. Its function `@main` is the entry.
        exported: the artifact of `jax.export` that contains it, or None.
    """

    module: ir.Module
    exported: export.Exported | None = None


def read_file(path: str | PathLike[str]) -> StableHlo:
    """Reads a file.

    Raises:
        CompileError: the file cannot be read, or is no StableHLO program.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CompileError(f"cannot read the file: {error.strerror}", location=fspath(path)) from None
    try:
        return parsed(data)
    except CompileError as error:
        error.location = error.location or fspath(path)
        raise


def parsed(data: bytes) -> StableHlo:
    """Returns the program in the bytes of a file.

    Raises:
        CompileError: the bytes are no StableHLO program.
    """
    if data.startswith(BYTECODE):
        return StableHlo(parsed_module(data))
    if is_text(data):
        check_nesting(data)
        return StableHlo(parsed_module(data.decode()))
    try:
        exported = export.deserialize(bytearray(data))
    except Exception as error:  # Malformed flatbuffers raise errors of many kinds.
        reason = f"expected StableHLO (text or bytecode) or an artifact of jax.export, but got {len(data)} other bytes"
        raise CompileError(f"{reason} ({one_line(error, 80)})") from None
    return of_export(exported)


def of_export(exported: export.Exported) -> StableHlo:
    """Returns the program of an artifact of `jax.export`. Raises CompileError for a program of several devices or
    platforms."""
    if exported.nr_devices != 1 or len(exported.platforms) != 1:
        raise CompileError(
            f"expected a program for one device and one platform, but got {exported.nr_devices} devices and platforms"
            f" {', '.join(exported.platforms)}; export it with platforms=['cpu']"
        )
    return StableHlo(parsed_module(exported.mlir_module_serialized), exported)


def is_text(data: bytes) -> bool:
    """Returns true if bytes are text: UTF-8 without control characters."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and not any(c < " " and c not in "\t\n\r\f" for c in text)


def check_nesting(data: bytes) -> None:
    """Raises CompileError for a text with more than `MOST_NESTING` levels of brackets."""
    depth = 0
    for byte in data:
        depth += (byte in b"([{<") - (byte in b")]}>")
        if depth > MOST_NESTING:
            raise CompileError(f"expected at most {MOST_NESTING} levels of brackets, but got more")


def parsed_module(source: str | bytes) -> ir.Module:
    """Returns a module from text, bytecode, or a portable artifact of StableHLO. Raises CompileError."""
    context = make_ir_context()
    # A hostile text would otherwise have other dialects registered by name alone.
    context.allow_unregistered_dialects = False
    try:
        with context:
            if isinstance(source, bytes):
                return _from_bytecode(context, source)
            return ir.Module.parse(source)
    except Exception as error:  # The bindings raise MLIRError and ValueError.
        raise CompileError(f"is no valid StableHLO: {_reason(error)}") from None


def _from_bytecode(context: ir.Context, data: bytes) -> ir.Module:
    # The bindings print the diagnostics of a portable artifact unless a handler takes them.
    handler: Any = context.attach_diagnostic_handler(lambda diagnostic: True)
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except Exception:  # Bytecode that is no portable artifact.
        handler.detach()
        return ir.Module.parse(data)


def _reason(error: Exception) -> str:
    """Returns the first diagnostic of an error of MLIR in one line."""
    diagnostics: Any = getattr(error, "error_diagnostics", None)
    if diagnostics:
        first = diagnostics[0]
        return f"{_line(first.location)}{' '.join(str(first.message).split())[:200]}"
    return one_line(error, 200)


def _line(location: ir.Location) -> str:
    """Returns `line:column: ` of a diagnostic about a text."""
    parts = str(location).removeprefix("loc(").removesuffix(")").rsplit(":", 2)
    return f"line {parts[1]}: " if len(parts) == 3 and parts[1].isdigit() and parts[1] != "0" else ""
