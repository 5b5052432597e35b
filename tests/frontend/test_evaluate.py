"""Programs in `-c` and in Python files: their inputs, names, and errors with locations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from deplodock.errors import CompileError
from deplodock.frontend.capture.export import capture
from deplodock.tools.evaluate import evaluate, load_file

PROGRAMS = {
    "nn.RMSNorm(8)(torch.randn(1, 3, 8))": ["weight", "x"],
    "torch.nn.Softmax(dim=-1)(torch.randn(1, 2, 4, 4))": ["input"],
    "nn.BatchNorm1d(3).eval()(torch.randn(2, 3))": ["weight", "bias", "running_mean", "running_var", "input"],
    "torch.relu(torch.matmul(torch.randn(4, 6) + torch.randn(6), torch.randn(6, 4)))": ["x", "x1", "x2"],
    "x = torch.randn(4, 6); bias = torch.randn(6); w = torch.randn(6, 4)\ntorch.relu((x + bias) @ w)": [
        "x",
        "bias",
        "w",
    ],
    "x = torch.randn(4, 8); m = nn.Linear(8, 3); h = m(x) * 2; F.gelu(h, approximate='tanh') + math.sqrt(2.0)": [
        "m.weight",
        "m.bias",
        "x",
    ],
    "def f(a):\n    b = a + 1\n    return b * 2\nf(torch.randn(3))": ["x"],
    "n = 3\ny = torch.relu(torch.randn(n))\ny * n": ["x"],
    "[t * 2 for t in torch.randn(3, 2).unbind()][1]": ["x"],
    "torch.tensor([[0.5, 2.0]]).T * 2": ["x"],
}


@pytest.mark.parametrize("code", PROGRAMS)
def test_inputs_and_result(code: str) -> None:
    torch.manual_seed(0)
    program = evaluate(code)
    captured = capture(program.function, program.args, program.kwargs, names=program.names, place=program.place)
    assert [b.name for b in captured.bindings] == PROGRAMS[code]
    torch.manual_seed(0)
    scope: dict[str, object] = {"torch": torch, "nn": nn, "F": nn.functional, "math": __import__("math")}
    *statements, last = code.replace("; ", "\n").split("\n")
    exec("\n".join(statements), scope)
    expected = eval(last, scope)
    assert torch.equal(program.function(*program.args, **program.kwargs), expected)


ERRORS = {
    "torch.relu(torch.randn(3)": r"<expression>:1:11: SyntaxError: '\(' was never closed",
    "torch.randn(3": r"<expression>:1:12: SyntaxError",
    "1 / 0": r"<expression>:1:1: ZeroDivisionError: division by zero",
    "nn.Linear(3, 'a')(torch.randn(3))": r"<expression>:1:1: TypeError: empty\(\)",
    "nn.ReLU()": r"<expression>:1:1: a module alone",
    "torch.randn(3)": r"<expression>:1:1: nothing is computed",
    "x = 3": r"<expression>:1: the last statement is not an expression",
    "": r"<expression>:1: the last statement",
    "torch.relu(\n  torch.randn(what))": r"<expression>:2:15: NameError: name 'what' is not defined",
    "import no_such_module\ntorch.relu(torch.randn(3))": r"<expression>:1:1: ModuleNotFoundError",
    "x = 1\n\x00": r"<expression>.*null",
    "exit(3)": r"<expression>:1:1: SystemExit",
}


@pytest.mark.parametrize("code", ERRORS)
def test_errors_in_one_line_with_a_place(code: str) -> None:
    with pytest.raises(CompileError, match=ERRORS[code]) as caught:
        evaluate(code)
    assert "\n" not in str(caught.value)


def test_errors_in_the_program_have_a_place() -> None:
    program = evaluate("x = torch.randn(3, 4)\n(x @ x) + 1")
    with pytest.raises(CompileError, match=r"^<expression>:2:2: x @ x: RuntimeError: a and b"):
        capture(program.function, program.args, place=program.place)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import torch\nmodel = torch.nn.ReLU()\ninputs = (torch.ones(3),)\n")
    program = load_file(str(file))
    assert torch.equal(program.function(*program.args), torch.ones(3))
    file.write_text(
        "import torch\n\ndef fn(a, b):\n    return a + b\n\ninputs = {'a': torch.ones(2), 'b': torch.ones(2)}\n"
    )
    program = load_file(str(file))
    assert torch.equal(program.function(**program.kwargs), torch.full((2,), 2.0))
    file.write_text("import torch\nx = torch.ones(3)\ntorch.exp(x)\n")
    program = load_file(str(file))
    assert program.names == ("x",)
    assert program.place == (str(file), 3)


def test_files_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="cannot read the file: No such file"):
        load_file(str(tmp_path / "missing.py"))
    file = tmp_path / "program.py"
    for text, message in (
        ("x = 1\n", "defines no `model`"),
        ("raise ValueError('no')\n", r"program.py:1(:1)?: ValueError: no"),
        ("def f(:\n", r"program.py:1:7: SyntaxError"),
    ):
        file.write_text(text)
        with pytest.raises(CompileError, match=message):
            load_file(str(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CompileError, match="not a text file"):
        load_file(str(file))


@pytest.mark.parametrize(
    "code",
    [
        "nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])(torch.randn(2, 4))",
        "m = []\nfor _ in range(3):\n    m.append(nn.Linear(4, 4))\nnn.Sequential(*m)(torch.randn(2, 4))",
        "m = []\nwhile len(m) < 3:\n    m.append(nn.Linear(4, 4))\nnn.Sequential(*m)(torch.randn(2, 4))",
    ],
)
def test_an_iteration_evaluates_its_calls_again(code: str) -> None:
    """Layers that a comprehension or a loop makes have weights of their own."""
    module = evaluate(code).function
    assert isinstance(module, torch.nn.Module)
    assert len([*module.parameters()]) == 6
