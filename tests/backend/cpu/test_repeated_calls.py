"""Repeated calls: a call whose arguments are like earlier ones runs without Python code, with the same results."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import deplodock
from deplodock.backend.cpu import runtime
from deplodock.backend.host import calls
from deplodock.errors import CompileError, ExecutionError, ShapeError
from deplodock.frontend.api import CompiledFunction


@pytest.fixture(autouse=True)
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Returns a list that gets an entry for each call through Python, after the extension module is built."""
    calls.building().exception()
    made, call = [], CompiledFunction._call

    def counted(self: CompiledFunction, args: Any, kwargs: Any) -> Any:
        made.append(None)
        return call(self, args, kwargs)

    monkeypatch.setattr(CompiledFunction, "_call", counted)
    return made


def _compiled(function: Callable[..., Any], *args: Any, **how: Any) -> CompiledFunction:
    return deplodock.compile(function, args, target="cpu", **how)


def _same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    torch.testing.assert_close(actual, expected)
    for a, e in zip(*map(pytree.tree_leaves, (actual, expected)), strict=True):
        assert not isinstance(a, torch.Tensor) or a.stride() == e.stride()


def _nested(x: torch.Tensor, more: list[Any]) -> Any:
    return [x + more[0], (more[1][0] * 2, 7)], x


def _named(x: torch.Tensor, *, scale: float, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"scaled": x * scale, "sum": x + y}


X, Y = torch.randn(4, 6), torch.randn(4, 6)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "one": (lambda x: x * 2 + 1, (X,), {}),
    "trees": (_nested, (X, [Y, (Y,)]), {}),
    "named": (_named, (X,), {"scale": 2.0, "y": Y}),
    "scratch": (lambda x, y: (x @ y.t()).softmax(-1) @ y, (X, Y), {}),
    "transposed": (lambda x: ((x * 2).t(), x.sum(0)), (X,), {}),
    "twice": (lambda x: (y := x.sin(), y), (X,), {}),
    "integers": (lambda x, i: x[i] + i.unsqueeze(-1), (X, torch.tensor([1, 0, 3])), {}),
    "a parameter": (nn.Linear(6, 3).requires_grad_(False), (X,), {}),
    "nothing in it": (lambda x: x * 2, (torch.randn(0, 3),), {}),
    "an argument": (lambda x, y: (x, y * 2), (X, Y), {}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_repeated(name: str, long_way: list[None]) -> None:
    function, args, kwargs = PROGRAMS[name]
    compiled = deplodock.compile(function, args, kwargs, target="cpu")
    expected = function(*args, **kwargs)
    for _ in range(3):
        _same(compiled(*args, **kwargs), expected)
    assert len(long_way) == 1
    with torch.inference_mode():
        result = pytree.tree_leaves(compiled(*args, **kwargs))[0]
        assert result is args[0] or result.is_inference()


class _Looks(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Other(torch.Tensor):
    pass


UNUSUAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "negated": torch._neg_view,  # pyright: ignore
    "with gaps": lambda x: x.repeat(1, 2)[:, :6],
    "needs a gradient": lambda x: x.clone().requires_grad_(),
    "a subclass": lambda x: x.as_subclass(_Other),
}

REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "another type": lambda x: x.double(),
    "another shape": lambda x: x[:2].clone(),
    "another rank": lambda x: x.unsqueeze(0),
    "on meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "a fake": lambda x: FakeTensorMode().from_tensor(x),
    "no tensor": lambda x: 3,
    "a list": lambda x: [x],
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_arguments_go_the_long_way(name: str, long_way: list[None]) -> None:
    compiled = _compiled(lambda x: x * 2 + 1, X)
    compiled(X)
    argument = UNUSUAL[name](X)
    result = compiled(argument)
    assert len(long_way) == 2
    assert result.requires_grad == (name == "needs a gradient")
    torch.testing.assert_close(result.detach(), torch.Tensor(argument.detach() * 2 + 1))


@pytest.mark.parametrize("name", REFUSED)
def test_other_arguments_are_refused(name: str) -> None:
    compiled = _compiled(lambda x: x * 2 + 1, X)
    for _ in range(2):
        compiled(X)
    with pytest.raises((ShapeError, ExecutionError)):
        compiled(REFUSED[name](X))
    with pytest.raises(CompileError):
        compiled(X, X)
    with pytest.raises(CompileError):
        compiled(y=X)
    assert torch.equal(compiled(x=X), X * 2 + 1)


def test_a_wrapped_tensor_goes_the_long_way(long_way: list[None]) -> None:
    compiled = _compiled(lambda x: x * 2 + 1, X)
    compiled(X)
    with pytest.raises(ExecutionError, match="torch.func"):
        torch.vmap(compiled)(X.expand(3, 4, 6))
    assert len(long_way) == 2


def test_modes_see_what_python_does(long_way: list[None]) -> None:
    compiled = _compiled(lambda x: x * 2 + 1, X)
    compiled(X)
    with _Looks():
        compiled(X)
    assert len(long_way) == 2
    with torch.device("meta"):
        assert compiled(X).device.type == compiled(X.t().contiguous().t()).device.type == "cpu"


def test_numbers_are_those_of_the_example(long_way: list[None]) -> None:
    compiled = deplodock.compile(_named, (X,), {"scale": 2.0, "y": Y}, target="cpu")
    for _ in range(2):
        compiled(X, scale=2.0, y=Y)
    compiled(X, y=Y, scale=2.0)  # in another order
    assert len(long_way) == 2
    for scale in (3.0, 2, None):
        with pytest.raises(ShapeError, match="scale: expected 2.0, as the program was compiled for, but got"):
            compiled(X, scale=scale, y=Y)


def test_trees_are_those_of_the_example(long_way: list[None]) -> None:
    compiled = _compiled(_nested, X, [Y, (Y,)])
    for _ in range(2):
        compiled(X, [Y, (Y,)])
    for other in ([Y], [Y, Y], [Y, (Y, Y)], [Y, [Y]], (Y, (Y,))):
        with pytest.raises(ShapeError, match="more: expected a "):
            compiled(X, other)
    assert len(long_way) == 6


def test_names_decide(long_way: list[None]) -> None:
    compiled = deplodock.compile(lambda *, a, b: a - 2 * b, (), {"a": X, "b": Y}, target="cpu")
    for _ in range(2):
        torch.testing.assert_close(compiled(a=X, b=Y), X - 2 * Y)
        torch.testing.assert_close(compiled(b=X, a=Y), Y - 2 * X)
    assert len(long_way) == 3


def test_sizes_that_vary(long_way: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = deplodock.compile(
        lambda x, y: (x @ y).softmax(-1), (X, Y.t()), target="cpu", dynamic_shapes=({0: Dim("n", min=2)}, None)
    )
    for _ in range(3):
        for n in (2, 5, 9):
            x, y = torch.randn(n, 6), torch.randn(6, 4)
            torch.testing.assert_close(compiled(x, y), (x @ y).softmax(-1))
    assert len(long_way) == 3
    with pytest.raises(ShapeError):
        compiled(torch.randn(1, 6), Y.t())


def test_an_argument_is_changed_in_place(long_way: list[None]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled, x = _compiled(function, X.clone(), Y), X.clone()
    for _ in range(3):
        torch.testing.assert_close(compiled(x, Y), x + Y)
    torch.testing.assert_close(x, X * 8)
    assert len(long_way) == 1
    rows = torch.randn(5, 6)
    with pytest.raises(ShapeError, match="shares memory"):
        compiled(rows[:4], rows[1:])
    with pytest.raises(ShapeError, match="shares memory"):
        compiled(x, x)
    with pytest.raises(ExecutionError, match="leaf"):
        compiled(X.clone().requires_grad_(), Y)


def test_the_last_of_many_arguments_is_changed_in_place(long_way: list[None]) -> None:
    xs = [torch.randn(2) for _ in range(300)]
    compiled = _compiled(lambda xs, y: y.add_(xs[0] + xs[299]), xs, torch.zeros(2))
    for _ in range(3):
        y = torch.ones(2)
        compiled(xs, y)
        torch.testing.assert_close(y, 1 + xs[0] + xs[299])
    assert len(long_way) == 1


def test_parameters_are_looked_at_in_every_call(long_way: list[None]) -> None:
    module = nn.Linear(6, 3)
    compiled = _compiled(module, X)
    with torch.no_grad():
        for _ in range(2):
            compiled(X)
        assert len(long_way) == 1
        module.weight.data = torch.randn(3, 6)
        torch.testing.assert_close(compiled(X), module(X))
        assert len(long_way) == 1
        other = copy.deepcopy(compiled)
        module.weight.mul_(2)
        torch.testing.assert_close(compiled(X), module(X))
        torch.testing.assert_close(other(X) - module.bias, (module(X) - module.bias) / 2)
        module.weight.data = module.weight.data.double()
        with pytest.raises(ShapeError, match="weight: expected float32.*float64"):
            compiled(X)
    module.float()
    assert compiled(X).requires_grad


def test_an_assertion_is_told(long_way: list[None]) -> None:
    compiled = _compiled(lambda x, i: x[i], X, torch.tensor([1, 2]), checked=True)
    for _ in range(2):
        compiled(X, torch.tensor([3, 0]))
    with pytest.raises(ExecutionError, match=r"outside \[-4, 4\): 4"):
        compiled(X, torch.tensor([3, 4]))
    assert len(long_way) == 1


def test_nothing_is_kept_that_is_not_needed() -> None:
    compiled = _compiled(_nested, X, [Y, (Y,)])
    args = X, [Y, (Y,)]
    for _ in range(3):
        compiled(*args)
    before = [sys.getrefcount(o) for o in (X, Y, args[1], None, 7)]
    for _ in range(100):
        result = weakref.ref(compiled(*args)[0][0])
    assert [sys.getrefcount(o) for o in (X, Y, args[1], None, 7)] == pytest.approx(before, abs=5)
    assert result() is None
    program = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert program() is None


def test_without_the_extension(long_way: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "extension", lambda: None)
    compiled = _compiled(lambda x: x * 2 + 1, X)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), X * 2 + 1)
    assert len(long_way) == 3


def _strided(t: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> None:
    t.data = t.data.as_strided(sizes, strides, offset)


def _replaced(t: torch.Tensor) -> None:
    t.data = t.data.clone()


def _negated(t: torch.Tensor) -> None:
    t.data = torch._neg_view(t.data)  # pyright: ignore


def _retyped(t: torch.Tensor) -> None:
    t.data = t.data.view(torch.int32)


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "type": _retyped,
    "a size": lambda t: _strided(t, (4, 5), (6, 1)),
    "rows": lambda t: _strided(t, (3, 6), (6, 1)),
    "a stride": lambda t: _strided(t, (4, 6), (5, 1)),
    "order": lambda t: _strided(t, (4, 6), (1, 4)),
    "rank": lambda t: _strided(t, (4,), (6,)),
    "more dimensions": lambda t: _strided(t, (4, 6, 1), (6, 1, 1)),
    "gradient": lambda t: t.requires_grad_(),
    "negation": _negated,
    "device": lambda t: torch.utils.swap_tensors(t, torch.empty(4, 6, device="meta")),
    "another tensor": lambda t: torch.utils.swap_tensors(t, torch.randn(3)),
    "class": lambda t: setattr(t, "__class__", _Other),
}
PLACES: dict[str, Callable[[torch.Tensor], object]] = {
    "memory": _replaced,
    "offset": lambda t: _strided(t, (4, 6), (6, 1), 1),
    "size of the storage": lambda t: t.untyped_storage().resize_(1 << 20),
}


@pytest.mark.parametrize("number", [0, 3, 8])
@pytest.mark.parametrize("name", [*CHANGES, *PLACES])
def test_a_snapshot_knows_what_changed(name: str, number: int) -> None:
    """A snapshot of nine tensors detects a change of one of them, at each position."""
    native = calls.building().result()
    tensors = tuple(torch.randn(48)[:24].view((4, 6) if i % 2 else (4, 6, 1, 1, 1, 1)[: 6 - i % 4]) for i in range(9))
    tensors[number].data = torch.randn(48)[:24].view(4, 6)
    seen = native.snapshot(tensors)
    assert native.is_alike(seen, tensors, True)
    assert not native.is_alike(seen, tensors[:-1], True)
    assert not native.is_alike(seen, (*tensors[:number], None, *tensors[number + 1 :]), False)
    (CHANGES | PLACES)[name](tensors[number])
    assert not native.is_alike(seen, tensors, True)
    assert native.is_alike(seen, tensors, False) == (name in PLACES)


def test_a_snapshot_of_nothing_and_of_what_is_none() -> None:
    native = calls.building().result()
    assert native.is_alike(native.snapshot(()), (), True)
    for other in (X.to_sparse(), X.as_subclass(_Other), torch._neg_view(X), 3):  # pyright: ignore
        assert native.snapshot((X, other)) is None
        assert not native.is_alike(native.snapshot((X,)), (other,), True)


def test_tensors_elsewhere_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "_cdata", 1)
    with pytest.raises(ExecutionError, match="expected the tensor at its usual offset"):
        calls.load_extension()


def test_random_numbers_differ(long_way: list[None]) -> None:
    compiled = _compiled(lambda x: x + torch.rand_like(x), X)
    assert not torch.equal(compiled(X), compiled(X))
    assert len(long_way) == 2
