"""Messages of refused programs: the user's call, its line, the reason and a remedy, without compiler internals."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from support.refused_programs import PROGRAMS, N, V, X, expression
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import deplodock
from deplodock.errors import REMEDIES, CompileError
from deplodock.frontend.capture.eager_fallback import FallbackWarning

INSIDES = re.compile(
    r"\b[zu]*u[f]?\d+\b|\bs\d+\b|GuardOn|unhinted|Unbacked|aten[.:]|prims[.:]|Node' object|FakeTensor|"
    r"\bproxy\b|GraphModule|SymInt|SymFloat|with_effects|_local_scalar|L\['"
)
"""Words that no user wrote."""


@pytest.fixture(autouse=True)
def few_frames(request: pytest.FixtureRequest) -> Iterator[None]:
    """Limits the stack of the program `recursive`, of which PyTorch traces every call until Python's limit."""
    limit = sys.getrecursionlimit()
    if "[recursive]" in request.node.name:
        sys.setrecursionlimit(limit * 2 // 5)
    yield
    sys.setrecursionlimit(limit)


def _refusal(function: Any, args: tuple[Any, ...], **how: Any) -> CompileError:
    with pytest.raises(CompileError) as caught:
        deplodock.compile(function, args, target="cpu", **how)
    return caught.value


def test_there_are_sixty_programs() -> None:
    assert len(PROGRAMS) >= 60


@pytest.mark.parametrize("name", PROGRAMS)
def test_message_names_call_line_and_remedy(name: str) -> None:
    program = PROGRAMS[name]
    error = _refusal(program.function, program.args, **program.how)
    message = str(error)
    for call in program.calls:
        assert call in message
    for place in program.places:
        assert re.search(rf"{re.escape(place.partition(':')[0])}:[\d, ]*\b{place.partition(':')[2]}\b", message), (
            message
        )
    assert program.remedy in error.advice
    assert INSIDES.search(message) is None, message
    assert error.kind is None or f"docs/refusals.md#{error.kind}" in message


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_left_to_pytorch_is_named_as_the_user_wrote_it(name: str) -> None:
    program = PROGRAMS[name]
    messages, how = list[str](), {**program.how, "fallback": "eager"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            deplodock.compile(program.function, program.args, **how)
        except CompileError as error:
            messages.append(str(error))
    for message in (*messages, *(str(w.message) for w in caught)):
        assert INSIDES.search(message) is None, message


def test_five_operators_are_listed_in_one_run() -> None:
    error = _refusal(PROGRAMS["five"].function, (X,))
    lines = str(error).splitlines()
    assert lines[0].startswith("5 calls of the program are refused; pass fallback")
    assert len(lines) == 6
    assert len({line.strip().partition(": ")[0] for line in lines[1:]}) == 5


def test_five_operators_are_listed_through_torch_compile() -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match="5 calls of the program are refused") as caught:
        torch.compile(PROGRAMS["five"].function, backend="deplodock")(X)
    for call in PROGRAMS["five"].calls:
        assert call in str(caught.value)
    assert INSIDES.search(str(caught.value)) is None


def test_five_operators_are_listed_by_the_command(tmp_path: Path) -> None:
    code = (
        "y = torch.linalg.inv(x); torch.poisson(y.abs()) + torch.linalg.svd(y)[0] + torch.linalg.qr(x)[0] + y.logdet()"
    )
    command = [sys.executable, "-m", "deplodock.tools.cli", "compile", "-c", f"x = torch.randn(4, 4); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    for call in ("torch.linalg.inv(x)", "torch.poisson(y.abs())", "torch.linalg.svd(y)", "torch.linalg.qr(x)"):
        assert call in done.stderr
    assert "y.logdet()" in done.stderr
    assert INSIDES.search(done.stderr) is None


@pytest.mark.parametrize("name", ["inverse", "poisson", "eigenvalues", "five", "cholesky"])
def test_the_remedy_helps(name: str) -> None:
    program = PROGRAMS[name]
    assert 'fallback="eager"' in str(_refusal(program.function, program.args))
    with pytest.warns(FallbackWarning):
        deplodock.compile(program.function, program.args, target="cpu", fallback="eager")


def test_with_fallback_the_rest_is_listed_with_another_remedy() -> None:
    error = _refusal(PROGRAMS["count_of_a_loop"].function, (X, N), fallback="eager")
    assert "int(n)" in str(error)
    assert "fallback" not in str(error)


@pytest.mark.parametrize("name", ["inverse", "one_of_many_on_a_line", "several_lines"])
def test_torch_compile_names_the_same(name: str) -> None:
    program = PROGRAMS[name]
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed) as caught:
        torch.compile(program.function, backend="deplodock")(*program.args)
    message = str(caught.value)
    assert program.calls[0].partition("(")[0] in message
    assert any(place in message for place in program.places)
    assert program.remedy in message
    assert INSIDES.search(message) is None


def test_a_function_of_torch_is_named_with_the_line_of_the_call() -> None:
    error = _refusal(torch.linalg.inv, (X,))
    assert error.call == "torch.linalg.inv"
    assert re.search(r"test_refusals\.py:\d+", str(error))


def test_traceback_has_the_users_frames_only() -> None:
    with pytest.raises(CompileError) as caught:
        deplodock.compile(PROGRAMS["branch"].function, (V,))
    error = caught.value
    files = [Path(f.filename).name for f in traceback.extract_tb(error.__traceback__)]
    assert files == ["test_refusals.py", "api.py", "refused_programs.py"]
    assert error.__cause__ is error.__context__ is None
    assert error.origin is not None
    assert error.full_traceback is not None
    assert "".join(traceback.format_exception(error)).count("Traceback") == 1


def test_traceback_is_whole_for_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLODOCK_DEBUG", "1")
    error = _refusal(PROGRAMS["branch"].function, (V,))
    assert len(traceback.extract_tb(error.__traceback__)) > 3
    assert error.__cause__ is not None


def test_a_notebook_shows_the_sentence_and_the_line_of_the_cell() -> None:
    function = expression("def f(x):\n    if x.sum() > 0:\n        return x\n    return -x\n")
    error = _refusal(function, (V,))
    first, *places = error._render_traceback_()
    assert first.startswith("CaptureError: <ipython-input-7-abc>:2:8: x.sum() > 0: the branch depends")
    assert places[-1] == "  <ipython-input-7-abc>, line 2: if x.sum() > 0:"
    assert not any(name in place for place in places for name in ("frontend/api", "frontend/capture", "site-packages"))


def _function(x: torch.Tensor, w: torch.Tensor, *, b: torch.Tensor) -> torch.Tensor:
    return x * w + b


CALLS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((V, V), {}, "takes 3 tensors (x, w, b=), 2 given"),
    ((V,), {"w": V, "c": V}, "and no argument c"),
    ((V, V.double()), {"b": V}, "w: expected float32[8], as the program was compiled for, but got float64[8]"),
    ((V, V), {"b": V[:3]}, "b: expected float32[8], as the program was compiled for, but got float32[3]"),
    ((V, [V]), {"b": V}, "w: expected a tensor, but got a list of 1"),
    ((V, 3), {"b": V}, "w: expected a tensor, but got int"),
]


def test_wrong_arguments_are_named_by_their_parameters() -> None:
    compiled = deplodock.compile(_function, (V, V), {"b": V}, executor="reference")
    for args, kwargs, message in CALLS:
        with pytest.raises(deplodock.CompileError, match=re.escape(message)) as caught:
            compiled(*args, **kwargs)
        assert "refusals.md#wrong-arguments" in str(caught.value)
    torch.testing.assert_close(compiled(b=V, w=V + 1, x=V), V * (V + 1) + V)


def test_a_compiled_module_has_the_state_of_the_module() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    compiled = deplodock.compile(module, (X,), executor="reference")
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in module.parameters()]
    assert dict(compiled.named_buffers()).keys() == dict(module.named_buffers()).keys()
    assert compiled.eval() is compiled.train(False) is compiled.to("cpu") is compiled.float() is compiled
    assert compiled.training is False
    compiled.load_state_dict({k: v * 0 for k, v in module.state_dict().items()})
    assert not module.state_dict()["0.weight"].any()


REFUSED_OF_MODULES = {
    "half": "call half() on the module, and compile it again",
    "register_forward_hook": "register it on the module",
    "no_such_name": "neither the program nor Linear has this attribute",
    "apply": "call it on the module",
}


@pytest.mark.parametrize("name", REFUSED_OF_MODULES)
def test_attributes_of_a_module_say_what_to_do(name: str) -> None:
    compiled = deplodock.compile(nn.Linear(4, 4).eval(), (X,), executor="reference")
    with pytest.raises(CompileError, match=re.escape(REFUSED_OF_MODULES[name])):
        getattr(compiled, name)()


@pytest.mark.parametrize("name", ["state_dict", "eval", "parameters", "cuda"])
def test_attributes_of_a_function_say_what_to_do(name: str) -> None:
    compiled = deplodock.compile(torch.relu, (X,), executor="reference")
    assert not hasattr(compiled, name)
    with pytest.raises(CompileError, match=r"pass the nn\.Module itself to deplodock\.compile"):
        getattr(compiled, name)()


PAGE = (ROOT / "docs" / "refusals.md").read_text() if (ROOT / "docs" / "refusals.md").exists() else ""
_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.M | re.S)
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.S)
SECTIONS = {title.lower().replace(" ", "-"): body for title, body in _SECTION.findall(PAGE)}


def test_every_kind_has_its_section() -> None:
    assert set(SECTIONS) == {*REMEDIES, "stale-weights"}


@pytest.mark.parametrize("kind", REMEDIES)
def test_the_example_of_a_section_gives_its_message(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (_, code), (_, message) = _BLOCK.findall(SECTIONS[kind])
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(code)
    with pytest.raises(CompileError) as caught:
        exec(compile(code, "model.py", "exec"), {"__name__": "model"})
    assert caught.value.kind == kind
    assert str(caught.value) == " ".join(message.split())
