"""Python values as JSON: numbers, strings, None, and tuples, lists and dictionaries of them; nothing else."""

from __future__ import annotations

from typing import Any, cast

from ..errors import CompileError


def encode(value: object) -> object:
    """`value` as JSON that `decode` reads back. Raises CompileError for a value of another type."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        items = cast("tuple[object, ...] | list[object]", value)
        return {"list" if type(value) is list else "tuple": [encode(v) for v in items]}
    if type(value) is dict:
        pairs = cast("dict[object, object]", value).items()
        return {"dict": [[encode(k), encode(v)] for k, v in pairs]}
    raise CompileError(f"a value of type {type(value).__name__} cannot be saved")


def decode(value: Any) -> Any:
    """The value that was encoded. Raises ValueError for JSON that `encode` does not write."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and len(cast("dict[str, Any]", value)) == 1:
        ((kind, items),) = cast("dict[str, Any]", value).items()
        if kind == "list":
            return [decode(v) for v in items]
        if kind == "tuple":
            return tuple(decode(v) for v in items)
        if kind == "dict":
            return {decode(k): decode(v) for k, v in items}
    raise ValueError("a value that is not understood")
