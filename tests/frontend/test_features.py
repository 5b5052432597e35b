"""Features of capture register: a program enters those that its graph calls for, and they can be taken away."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import deplodock
from deplodock.frontend.capture import export
from deplodock.frontend.capture.export import capture
from deplodock.frontend.capture.features import FEATURES, Feature, Features, words_of

X, W = torch.randn(4, 8), torch.randn(8, 8)
N = torch.tensor([0, 2, 1])


def _changed(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def _switched(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
    return y * x


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], set[str]]] = {
    "add": (lambda x, y: x + y, (X, X), set()),
    "layer": (lambda x, w: torch.relu(x @ w), (X, W), {"autocast", "memory_limit"}),
    "view": (lambda x: x.t(), (X,), {"aliasing", "gradients", "memory_limit"}),
    "strided": (lambda x: (x.t() * 2) + 1, (X,), {"aliasing", "gradients", "memory_limit"}),
    "results": (lambda x: (x + 1, x + 2), (X,), {"aliasing", "gradients", "memory_limit"}),
    "argument": (lambda x: x, (X,), {"aliasing", "gradients"}),
    "changed": (_changed, (X.clone(),), {"aliasing", "gradients", "memory_limit"}),
    "indices": (lambda x, n: x[n], (X, N), {"gradients", "known_indices", "memory_limit"}),
    "switched": (_switched, (X,), {"gradients", "memory_limit"}),
    "like": (lambda x: torch.zeros_like(x) + x, (X,), {"gradients", "memory_limit"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_enters_what_applies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, args, expected = PROGRAMS[name]
    entered = set[str]()
    run = Features.run

    def note(features: Features, stage: str, *given: Any) -> list[tuple[str, Any]]:
        entered.update(f.name for f in FEATURES if f.applies(features.words))
        return run(features, stage, *given)

    monkeypatch.setattr(Features, "run", note)
    capture(function, args)
    assert entered == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_does_not_apply_would_note_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured with every feature, but the limit of one elementwise operator."""
    function, args, _ = PROGRAMS[name]
    fields = ("outputs", "updates", "needs", "autocast", "viewed", "layouts", "checks")
    plain = capture(function, args, in_memory=True)
    words = {word for f in FEATURES if f.name != "memory_limit" for word in f.words}
    monkeypatch.setattr(export, "words_of", lambda module: words_of(module) | words)
    whole = capture(function, args, in_memory=True)
    for field in fields:
        assert str(getattr(plain, field)) == str(getattr(whole, field)), field


REMOVED = ("aliasing", "autocast", "memory_limit")


def test_the_rest_works_without_three_features(tmp_path: Path) -> None:
    """Their files are deleted, and their lines of registration."""
    root = Path(deplodock.__file__).parent
    for part in ("__init__.py", "py.typed", *(p.name for p in root.glob("*.py"))):
        shutil.copy(root / part, tmp_path / part)
    for folder in ("backend", "dialects", "frontend", "passes"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    register = tmp_path / "frontend/capture/features/__init__.py"
    lines = register.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not any(f'Feature("{name}"' in line for name in REMOVED)]
    assert len(lines) - len(kept) == len(REMOVED)
    register.write_text("".join(kept), encoding="utf-8")
    for name in REMOVED:
        (register.parent / f"{name}.py").unlink()
    run = subprocess.run([sys.executable, "-c", _PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "right\n"


_PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("deplodock", f"{sys.argv[1]}/__init__.py")
sys.modules["deplodock"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import torch
x, w, n = torch.randn(4, 8), torch.randn(8, 8), torch.tensor([0, 2, 1])
for function, args in [(lambda x, w: torch.softmax(x @ w, -1).t(), (x, w)), (lambda x, n: x[n], (x, n))]:
    program = module.compile(function, args, executor="reference")
    torch.testing.assert_close(program(*args), function(*args))
from deplodock.frontend.capture import features
assert features.__file__.startswith(sys.argv[1]) and len(features.FEATURES) == 2
print("right")
"""


def test_a_feature_applies_by_its_words() -> None:
    feature = Feature("autocast", frozenset({"a", "b"}))
    assert feature.applies({"b", "c"})
    assert not feature.applies({"c"})
