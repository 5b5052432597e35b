"""Uses of torch.compile, and their comparison with eager PyTorch.

A use is a function that gets `torch.compile` with our backend, or a stand-in that compiles nothing. It returns all that
must be equal with both: results, changed arguments, gradients, and whether memory is shared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from deplodock.errors import CompileError
from deplodock.frontend.capture.eager_fallback import FallbackWarning
from deplodock.frontend.dynamo import RecompileWarning

Compile = Callable[..., Any]
Body = Callable[[Compile], Any]


@dataclass(frozen=True)
class Use:
    """A use of torch.compile. `says` is a part of the expected warning, or of the error if `refused`."""

    group: str
    name: str
    body: Body
    says: str | None = None
    refused: bool = False

    @property
    def expected(self) -> tuple[str, ...]:
        """Accepted kinds of outcomes. A use that falls back may become supported."""
        return ("refused",) if self.refused else ("right", "falls back") if self.says else ("right",)


@dataclass(frozen=True)
class Outcome:
    """Result of a use: `right`, `falls back` (with a warning), `refused` (our error), `wrong`, `bare` (any other
    error).
    """

    kind: str
    text: str = ""


USES: list[Use] = []


def use(group: str, says: str | None = None, refused: bool = False) -> Callable[[Body], Body]:
    """Returns a decorator that adds a function to `USES` under its name. Arguments are fields of `Use`."""

    def add(body: Body) -> Body:
        USES.append(Use(group, body.__name__.replace("_", " ").strip(), body, says, refused))
        return body

    return add


def quick(group: str, says: str | None = None, refused: bool = False, /, **entries: Any) -> None:
    """Adds several functions to `USES` by keyword."""
    USES.extend(Use(group, name.replace("_", " "), body, says, refused) for name, body in entries.items())


def eager(function: Any = None, **options: Any) -> Any:
    """Replaces `torch.compile`: returns the function."""
    return (lambda f: f) if function is None else function


def compiled(function: Any = None, **options: Any) -> Any:
    """Calls `torch.compile` with our backend."""
    return torch.compile(function, backend="deplodock", **options)


def outcome(this: Use) -> Outcome:
    """Runs a use with both, and returns the outcome."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    expected = this.body(eager)
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            actual = this.body(compiled)
        except Exception as error:  # whatever comes: what is not ours is a finding
            cause = getattr(error, "inner_exception", error)
            kind = "refused" if isinstance(cause, CompileError) else "bare"
            return Outcome(kind, str(cause) if kind == "refused" else f"{type(cause).__name__}: {cause}"[:400])
    if difference := differs(actual, expected):
        return Outcome("wrong", difference)
    said = [str(w.message) for w in caught if issubclass(w.category, RecompileWarning | FallbackWarning)]
    return Outcome("falls back", " | ".join(dict.fromkeys(said))) if said else Outcome("right")


def differs(actual: Any, expected: Any) -> str | None:
    """Returns the first difference of two nested results in values, types, strides or `requires_grad`, or None."""
    ours, theirs = pytree.tree_flatten(actual), pytree.tree_flatten(expected)
    if ours[1] != theirs[1]:
        return f"the structure {ours[1]}, not {theirs[1]}"
    for i, (a, b) in enumerate(zip(ours[0], theirs[0], strict=True)):
        if not isinstance(b, torch.Tensor) or not isinstance(a, torch.Tensor):
            if type(a) is not type(b) or a != b:
                return f"value {i} is {a!r}, not {b!r}"
            continue
        about = [(t.dtype, t.shape, t.device, t.requires_grad) for t in (a, b)]
        if about[0] != about[1]:
            return f"tensor {i} is {about[0]}, not {about[1]}"
        strides = [[s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] for t in (a, b)]
        if a.numel() and strides[0] != strides[1]:
            return f"tensor {i} has the strides {a.stride()}, not {b.stride()}"
        try:
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4, equal_nan=True)
        except AssertionError as error:
            return f"tensor {i}: {str(error).splitlines()[0]}"
    return None
