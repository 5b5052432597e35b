"""Programs that change tensors in place through chains of two views, compared with eager PyTorch.

A case is a base (an argument in some layout, or a tensor that the program makes), two view operators and a change in
place of the last view. Many cases make one program, so that a compilation serves all of them.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


VIEWS: dict[str, Function] = {
    "unfold with gaps": lambda x: x.unfold(-1, 2, 3),
    "unfold with a remainder": lambda x: x.unfold(0, 3, 3),
    "unfold of one": lambda x: x.unfold(-1, 1, 5),
    "unfold that overlaps": lambda x: x.unfold(-1, 3, 2),
    "as_strided with gaps": lambda x: x.as_strided((2, 3), (7, 2)),
    "as_strided backwards": lambda x: x.as_strided((3, 2), (1, 4)),
    "as_strided of one row": lambda x: x.as_strided(x.shape[-1:], x.stride()[-1:]),
    "diagonal": lambda x: x.diagonal(0, 0, -1),
    "diagonal above": lambda x: x.diagonal(1, -2, -1),
    "diagonal below": lambda x: x.diagonal(-1, 0, 1),
    "select": lambda x: x.select(-1, 1),
    "select the last": lambda x: x.select(0, -1),
    "slice with a step": lambda x: x[..., 1::2],
    "slice with a remainder": lambda x: x[:-1, ...],
    "slice of nothing": lambda x: x[1:1],
    "index": lambda x: x[None, ..., -1],
    "narrow": lambda x: x.narrow(-1, 1, 2),
    "expand": lambda x: x.expand(2, *x.shape),
    "expand of one": lambda x: x.expand(1, *x.shape),
    "split": lambda x: x.split(2, -1)[0],
    "split into unequal parts": lambda x: x.split([1, x.shape[0] - 1])[1],
    "chunk": lambda x: x.chunk(2, -1)[-1],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "unbind": lambda x: x.unbind(-1)[0],
    "movedim": lambda x: x.movedim(0, -1),
    "mT": lambda x: x.mT,
    "permute": lambda x: x.permute(*range(1, x.ndim), 0),
    "squeeze": lambda x: x.squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "view": lambda x: x.view(-1),
    "flatten": lambda x: x.flatten(-2),
    "unflatten": lambda x: x.unflatten(-1, (-1, 2)),
    "detach": lambda x: x.detach(),
    "view of the same size": lambda x: x.view({4: torch.int32, 8: torch.int64}[x.element_size()]),
    "view of half the size": lambda x: x.view({4: torch.int16, 8: torch.int32}[x.element_size()]),
    "view of twice the size": lambda x: x.view({2: torch.int32, 4: torch.int64}[x.element_size()]),
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "view_as_real": lambda x: torch.view_as_real(x),
    "view_as_complex": lambda x: torch.view_as_complex(x.unflatten(-1, (-1, 2))),
}


def _numbers(x: Tensor) -> Tensor:
    """Returns different small numbers in the shape and type of `x`."""
    return (torch.arange(x.numel()) % 17 + 2).reshape(x.shape).to(x.dtype)


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda x: x.add_(3),
    "mul_": lambda x: x.mul_(_numbers(x)),
    "+= itself": lambda x: x.add_(x),
    "copy_": lambda x: x.copy_(_numbers(x)),
    "copy_ of one row": lambda x: x.copy_(_numbers(x)[..., :1]),
    "fill_": lambda x: x.fill_(5),
    "zero_": lambda x: x.zero_(),
    "masked_fill_": lambda x: x.masked_fill_(_numbers(x).real % 3 == 0, 9),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, -1]),), _numbers(x[:2].sum(0))),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0]), 4),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(1, *x.shape[1:], dtype=torch.int64), 6),
    "setitem": lambda x: x.__setitem__((Ellipsis, slice(None, None, 2)), 8),
}

BASES = ("contiguous", "transposed", "gaps", "inside", "inside transposed", "inside empty")

TYPES = (torch.float32, torch.int64, torch.complex64)


@dataclass(frozen=True)
class Case:
    """A change in place of the second view of the first view of a base."""

    base: str
    dtype: torch.dtype
    views: tuple[str, str]
    change: str

    def __str__(self) -> str:
        return f"{str(self.dtype)[6:]}, {self.base}: {' of '.join(reversed(self.views))}, {self.change}"

    def argument(self) -> Tensor:
        """The argument from which the case starts."""
        whole = (torch.arange(1, 145) % 31).to(self.dtype).reshape(12, 12)
        x = whole[::2, 1:11] if self.base == "gaps" else whole.flatten()[:60].reshape(6, 10)
        if self.dtype.is_complex:
            x.imag.copy_(x.real.flip(0) + 1)
        return (x.reshape(10, 6).mT if "transposed" in self.base else x[:0] if "empty" in self.base else x)[
            None
        ].squeeze(0)

    def __call__(self, x: Tensor) -> list[Tensor]:
        """Returns the base and its views after the change."""
        y = x * 2 if "inside" in self.base else x
        v = VIEWS[self.views[0]](y)
        w = VIEWS[self.views[1]](v)
        CHANGES[self.change](w)
        return [y, v, w]


def as_eager(case: Case) -> list[Tensor] | None:
    """Runs a case in eager PyTorch. Returns the argument's memory and the results, or None if PyTorch refuses it."""
    x = case.argument()
    try:
        with warnings.catch_warnings(action="ignore"):  # of changes that PyTorch will refuse one day
            results = case(x)
    except (RuntimeError, IndexError, KeyError, NotImplementedError, ValueError):
        return None
    return [memory(x), *results]


def memory(x: Tensor) -> Tensor:
    """Returns all elements of the storage of `x`."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())


def shares_elements(case: Case) -> bool:
    """Returns true if elements of the changed view share an address."""
    x = case.argument()
    y = x * 2 if "inside" in case.base else x
    w = VIEWS[case.views[1]](VIEWS[case.views[0]](y))
    addresses = torch.arange(w.untyped_storage().nbytes() // w.element_size())
    addresses = addresses.as_strided(w.shape, w.stride(), w.storage_offset())
    return len(addresses.unique()) < w.numel()


@cache
def every_case() -> list[Case]:
    """Returns all chains of two views, with alternating bases, types and changes."""
    return list(_cases())


def _cases() -> Iterator[Case]:
    order = random.Random(7)
    for first in VIEWS:
        for second in VIEWS:
            for base in BASES:
                complex_ = {"real", "imag", "view_as_real"} & {first, second}
                dtype = torch.complex64 if complex_ else order.choice(TYPES[:2])
                case = Case(base, dtype, (first, second), order.choice(list(CHANGES)))
                if as_eager(case) is not None:
                    yield case


@cache
def some_cases() -> list[Case]:
    """Returns cases that cover each view as first and as second one, each base and each change."""
    cases = [c for c in every_case() if not is_refused(c)]
    random.Random(3).shuffle(cases)
    chosen, missing = (
        [],
        {*VIEWS, *((name,) for name in VIEWS), *((base, 0) for base in BASES), *((c, 1) for c in CHANGES)},
    )
    for case in cases:
        kinds = {case.views[0], (case.views[1],), (case.base, 0), (case.change, 1)}
        if kinds & missing:
            chosen.append(case)
            missing -= kinds
    return chosen


def is_refused(case: Case) -> bool:
    """Returns true if a case may be refused.

    These are results that depend on the order of writes, `as_strided` in another type or outside of the argument's
    memory, and operators that are not supported on complex numbers, such as `view(dtype)`.
    """
    if shares_elements(case) and case.change not in ("fill_", "zero_"):
        return True
    typed = any("real" in name or "imag" in name or "complex" in name or "size" in name for name in case.views)
    by_strides = "transposed" in case.base and "unfold" in case.views[0] and "size" in case.views[1]
    addressed = by_strides or any("as_strided" in name for name in case.views)
    results = as_eager(case)
    complex_ = results is not None and results[-1].is_complex()
    if results and any("size" in name and x.is_complex() for name, x in zip(case.views, results[1:], strict=False)):
        return True
    return addressed and (typed or case.base == "gaps" or _leaves(case)) or complex_ and "index_fill_" == case.change


def _leaves(case: Case) -> bool:
    """Returns true if a view of a case has elements outside of its base."""
    x = case.argument()
    y = x * 2 if "inside" in case.base else x
    v = VIEWS[case.views[0]](y)
    numbers = [set[int](), set[int](), set[int]()]
    for known, t in zip(numbers, [y, v, VIEWS[case.views[1]](v)], strict=True):
        addresses = torch.arange(t.untyped_storage().nbytes() // t.element_size())
        known.update(addresses.as_strided(t.shape, t.stride(), t.storage_offset()).flatten().tolist())
    return not numbers[1] | numbers[2] <= numbers[0]


@dataclass(frozen=True)
class Together:
    """Several cases combined to one program."""

    cases: Sequence[Case]

    def __call__(self, *arguments: Tensor) -> list[list[Tensor]]:
        return [case(x) for case, x in zip(self.cases, arguments, strict=True)]
