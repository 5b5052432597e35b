"""Features of capture: a program uses those that operators in its graph request, and any of them can be removed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.library_copies import copy_library, environment_of
from support.recipes import remove_feature
from torch import Tensor
from torch.func import grad, vmap  # pyright: ignore[reportPrivateImportUsage]

from deplodock.frontend.capture import export
from deplodock.frontend.capture.export import capture
from deplodock.frontend.capture.features import FEATURES, Feature, words_of

X, W = torch.randn(4, 8), torch.randn(8, 8)
N = torch.tensor([0, 2, 1])
Z = torch.randn(4, 8, dtype=torch.complex64)


def _changed(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def _switched(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
    return y * x


def _checked(x: Tensor) -> Tensor:
    if (x.isnan()).any():
        raise ValueError("not a number")
    return x.sin()


def _chosen(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


Program = tuple[Callable[..., Any], tuple[Any, ...], str, dict[str, Any]]

PROGRAMS: dict[str, Program] = {
    "add": (lambda x, y: x + y, (X, X), "", {}),
    "layer": (lambda x, w: torch.relu(x @ w), (X, W), "memory_limit", {}),
    "view": (lambda x: x.t(), (X,), "aliasing gradients known_sizes memory_limit", {}),
    "strided": (lambda x: (x.t() * 2) + 1, (X,), "aliasing gradients known_sizes memory_limit", {}),
    "results": (lambda x: (x + 1, x + 2), (X,), "aliasing gradients memory_limit", {}),
    "argument": (lambda x: x, (X,), "aliasing gradients", {}),
    "changed": (_changed, (X.clone(),), "aliasing gradients memory_limit", {}),
    "indices": (lambda x, n: x[n], (X, N), "gradients known_indices known_sizes memory_limit", {}),
    "switched": (_switched, (X,), "gradients memory_limit", {}),
    "like": (lambda x: torch.zeros_like(x) + x, (X,), "gradients memory_limit", {}),
    "complex": (lambda z: (z * z).abs(), (Z,), "complex memory_limit", {}),
    "float8": (lambda x: x.to(torch.float8_e4m3fn), (X,), "aliasing autocast float8 gradients memory_limit", {}),
    "addresses": (lambda x: x.as_strided((2, 2), (1, 2)) + 1, (X,), "addresses aliasing gradients memory_limit", {}),
    "counts": (
        lambda n: torch.bincount(n, minlength=4),
        (N,),
        "aliasing autocast gradients known_indices known_sizes memory_limit",
        {},
    ),
    "transforms": (
        vmap(grad(lambda x: x.sin().sum())),
        (X,),
        "aliasing autocast gradients memory_limit transforms",
        {},
    ),
    "chosen": (_chosen, (X,), "aliasing autocast branches gradients known_indices memory_limit", {}),
    "checked": (_checked, (X,), "aliasing autocast branches gradients known_indices known_sizes memory_limit", {}),
    "sizes": (
        lambda x: x * 2,
        (X,),
        "aliasing specialization",
        {"dynamic_shapes": ({0: torch.export.Dim("rows", min=1)},)},
    ),
    "left": (lambda x, y: x + y, (X, X), "eager", {"fallback": "eager"}),
}
"""Name -> function, arguments, features that it calls for, options."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_enters_what_applies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, args, expected, options = PROGRAMS[name]
    entered = set[str]()
    get = Feature.get

    def note(feature: Feature, stage: str) -> Any:
        entered.add(feature.name)
        return get(feature, stage)

    monkeypatch.setattr(Feature, "get", note)
    capture(function, args, in_memory=True, **options)
    assert entered == set(expected.split())


def test_autocast_is_noted_by_the_words_of_operators() -> None:
    """Operators that autocast casts on both devices are noted without the feature; other operators request it."""
    off = {"cpu": None, "cuda": None}
    assert capture(lambda x, w: x @ w, (X, W)).autocast == off
    assert capture(lambda x, w: torch.einsum("ij,jk->ik", x, w), (X, W)).autocast == off
    assert capture(lambda x: x + 1, (X,)).autocast == {}
    with torch.autocast("cpu"):
        assert capture(lambda x, w: x @ w, (X, W)).autocast == {"cpu": torch.bfloat16, "cuda": None}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_does_not_apply_would_note_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture with all features has the same result as capture with those that the program requests.

    Excluded are the memory limit of a single elementwise operator, and the fallback, which needs an option.
    """
    function, args, _, options = PROGRAMS[name]
    fields = ("outputs", "updates", "needs", "autocast", "viewed", "layouts", "checks")
    plain = capture(function, args, in_memory=True, **options)
    words = {word for f in FEATURES if f.name not in ("memory_limit", "eager") for word in f.words.split()}
    monkeypatch.setattr(export, "words_of", lambda module: words_of(module) | words)
    whole = capture(function, args, in_memory=True, **options)
    for field in fields:
        assert str(getattr(plain, field)) == str(getattr(whole, field)), field


@pytest.mark.parametrize("name", [f.name for f in FEATURES])
def test_other_programs_do_without_a_feature(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a feature is not registered and its file cannot be imported, programs that do not request it are the same."""
    others = [p for p in PROGRAMS.values() if name not in p[2].split()]
    modules = [str(capture(f, args, in_memory=True, **options).module) for f, args, _, options in others[:6]]
    home = f"{words_of.__module__}.{name}"
    monkeypatch.setattr(f"{words_of.__module__}.FEATURES", kept := tuple(f for f in FEATURES if f.name != name))
    monkeypatch.setattr("deplodock.frontend.capture.tracing.FEATURES", kept)
    monkeypatch.setitem(sys.modules, home, None)
    for module, (function, args, _, options) in zip(modules, others, strict=False):
        assert str(capture(function, args, in_memory=True, **options).module) == module


REMOVED = tuple(f.name for f in FEATURES if f.name not in ("known_indices", "gradients"))


def test_the_rest_works_without_most_features(tmp_path: Path) -> None:
    """The library works after the files of most features and their registrations are deleted."""
    copy = copy_library(tmp_path)
    for name in REMOVED:
        remove_feature(copy, name)
    command = [sys.executable, "-c", _PROGRAM, copy]
    run = subprocess.run(command, env=environment_of(copy), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "right\n"


_PROGRAM = """
import sys
import deplodock
import torch
x, w, n = torch.randn(4, 8), torch.randn(8, 8), torch.tensor([0, 2, 1])
for function, args in [(lambda x, w: torch.softmax(x @ w, -1).t(), (x, w)), (lambda x, n: x[n], (x, n))]:
    program = deplodock.compile(function, args, executor="reference")
    torch.testing.assert_close(program(*args), function(*args))
from deplodock.frontend.capture import features
assert features.__file__.startswith(sys.argv[1])
assert len(features.FEATURES) == 2
print("right")
"""


def test_a_feature_applies_by_its_words() -> None:
    feature = Feature("autocast", "a b")
    assert feature.applies({"b", "c"})
    assert not feature.applies({"c"})
