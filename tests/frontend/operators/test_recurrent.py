"""Recurrent layers and folds, against eager PyTorch, in the reference, the simulator and the emulator."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.tensor_level import check
from torch import nn

import deplodock
from deplodock.backend.check_each import Checker
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import run_cuda_on_cpu, run_standalone_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.dialects import make_context
from deplodock.dialects.loop.work import count_flops
from deplodock.dialects.shapes.binding import Sizes
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.support.parsing import parse_module
from deplodock.extras.standalone import emit_standalone
from deplodock.frontend.capture.export import capture
from deplodock.frontend.comparison import tolerances
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import Observer, run_passes
from deplodock.passes.pipelines import parse_passes


def _seeded(make: Any) -> Any:
    torch.manual_seed(3)
    return make().eval()


def _check(module: nn.Module, args: tuple[torch.Tensor, ...], executor: str = "reference", rtol: float = 2e-5) -> Any:
    """Compiles a module and compares its results with PyTorch's. Returns the compiled program."""
    compiled = deplodock.compile(module, args, executor=executor)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), module(*args), rtol=rtol, atol=rtol)
    return compiled


MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(4, 8), (5, 2, 4)),
    "lstm, two layers, both directions, batch first": (
        lambda: nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True),
        (2, 6, 3),
    ),
    "lstm with projections": (lambda: nn.LSTM(4, 8, 2, proj_size=3, bidirectional=True), (4, 3, 4)),
    "lstm without bias, no batch": (lambda: nn.LSTM(4, 8, bias=False), (3, 4)),
    "lstm in f64": (lambda: nn.LSTM(4, 3).double(), (4, 3, 4)),
    "lstm of one step": (lambda: nn.LSTM(4, 3), (1, 3, 4)),
    "gru": (lambda: nn.GRU(4, 5, 2, bidirectional=True), (6, 3, 4)),
    "gru without bias, no batch": (lambda: nn.GRU(4, 5, bias=False), (6, 4)),
    "rnn": (lambda: nn.RNN(4, 5, 2), (6, 3, 4)),
    "rnn with relu": (lambda: nn.RNN(4, 5, nonlinearity="relu", bidirectional=True), (3, 3, 4)),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_modules(name: str) -> None:
    make, shape = MODULES[name]
    module = _seeded(make)
    x = torch.randn(shape, dtype=next(module.parameters()).dtype)
    check(module, x, rtol=2e-5, atol=2e-5)


def test_initial_states_and_bf16() -> None:
    module = _seeded(lambda: nn.LSTM(4, 8).bfloat16())
    x, h, c = (torch.randn(s).bfloat16() for s in ((6, 3, 4), (1, 3, 8), (1, 3, 8)))

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = module

        def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
            return self.lstm(x, (h, c))

    _check(Called(), (x, h, c), rtol=4 * 2.0**-8)


class Tagger(nn.Module):
    """A tagger of words: an embedding, a bidirectional LSTM of two layers, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 5)
        self.lstm = nn.LSTM(5, 3, 2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(6, 4)

    def forward(self, words: torch.Tensor) -> Any:
        y, (h, c) = self.lstm(self.words(words))
        return self.tags(y), h, c


class Decoder(nn.Module):
    """A GRU that starts from an encoder's state, and a distribution over words for each step."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.gru = nn.GRU(4, 8, batch_first=True)
        self.out = nn.Linear(8, 7)

    def forward(self, words: torch.Tensor, state: torch.Tensor) -> Any:
        y, state = self.gru(self.words(words), state)
        return self.out(y).softmax(-1), state


@pytest.mark.parametrize("executor", ["reference", "simulator", "emulator"])
def test_whole_modules(executor: str) -> None:
    _check(_seeded(Tagger), (torch.randint(0, 11, (3, 4)),), executor)
    _check(_seeded(Decoder), (torch.randint(0, 7, (2, 5)), torch.randn(1, 2, 8)), executor)


def test_compile_time_does_not_grow_with_time() -> None:
    """500 steps have the kernels of 5 steps and a longer launch plan."""
    found: list[tuple[int, int, float]] = []
    for steps in (5, 500):
        captured = capture(_seeded(lambda: nn.LSTM(16, 32)), (torch.zeros(steps, 2, 16),))
        start = time.process_time()
        compilation = Compilation(captured.module)
        text = compilation.cuda
        plan = make_plan(compilation.at("kernel"))
        found.append((text.count("__global__"), len(plan.launches), time.process_time() - start))
    (kernels, few, short), (same, many, long) = found
    assert kernels == same
    assert many - few == 2 * 495
    assert long < 2 * short + 1


def test_equal_steps_are_one_function() -> None:
    text = Compilation(capture(_seeded(Tagger), (torch.zeros(3, 4, dtype=torch.int64),)).module).text("tensor")
    assert text.count("tensor.scan @") == 4
    assert text.count("func.func private @step") == 1
    other = Compilation(
        capture(_seeded(lambda: nn.LSTM(4, 8, proj_size=3, num_layers=1)), (torch.zeros(3, 1, 4),)).module
    )
    assert other.text("tensor").count("func.func private @step") == 1


class Checked(Observer):
    """Executes the program after every pass."""

    def __init__(self) -> None:
        self.checker: Checker | None = None

    def before(self, module_pass: Any, module: Any) -> None:
        self.checker = self.checker or Checker(module)

    def after(self, module_pass: Any, module: Any) -> None:
        assert self.checker is not None
        self.checker.after(module_pass.name, module)


def test_every_pass_keeps_the_answer() -> None:
    """Every pass keeps the results. Slices of 12 bytes leave gaps between rows."""
    captured = capture(_seeded(lambda: nn.GRU(2, 3)), (torch.zeros(4, 1, 2),))
    module = captured.module.clone()
    run_passes(make_context(), module, parse_passes("default"), [Checked()])


FOLD = """
func.func private @step(%n: tensor<4xf32>, %h: tensor<4xf32>, %x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = arith.addf %n, %x : tensor<4xf32>
  %1 = arith.mulf %h, %x : tensor<4xf32>
  func.return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
func.func @main(%n: tensor<4xf32>, %x: tensor<6x4xf32>) -> (tensor<4xf32>, tensor<6x4xf32>) {
  %a, %b = tensor.scan @step 6 carry(%n, %n : tensor<4xf32>, tensor<4xf32>) each(%x : tensor<6x4xf32>)
    history [1] -> tensor<4xf32>, tensor<6x4xf32>
  func.return %a, %b : tensor<4xf32>, tensor<6x4xf32>
}
"""


def test_reference_of_a_fold() -> None:
    n, x = np.ones(4, np.float32), np.arange(24, dtype=np.float32).reshape(6, 4)
    last, history = run(parse_module(make_context(), FOLD, "fold"), [n, x])
    assert np.array_equal(last, 1 + x.sum(0))
    assert np.array_equal(history, np.cumprod(x, 0))


def test_work_of_a_fold() -> None:
    assert count_flops(main_function(parse_module(make_context(), FOLD, "fold")), Sizes()) == 6 * 8


def test_standalone_program() -> None:
    module = parse_module(make_context(), FOLD, "fold")
    kernels = module.clone()
    run_passes(make_context(), kernels, parse_passes("tensor-to-loop,loop-to-tile,tile-to-kernel"))
    text = emit_standalone(kernels, module, print_cuda(kernels))
    done = run_standalone_on_cpu(text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("PASS\n")
    broken = text.replace("(char*)in1 + 32", "(char*)in1 + 16")
    assert broken != text
    assert run_standalone_on_cpu(broken).returncode == 1


def test_a_kernel_that_leaves_its_slice_is_seen() -> None:
    """The emulator knows the part of the buffer that an argument is."""
    kernels = parse_module(make_context(), FOLD, "fold")
    run_passes(make_context(), kernels, parse_passes("tensor-to-loop,loop-to-tile,tile-to-kernel"))
    plan, args = make_plan(kernels), [np.ones(4, np.float32), np.ones((6, 4), np.float32)]
    assert run_cuda_on_cpu(print_cuda(kernels), plan, args)[1] == []
    short = [replace(x, parts=tuple((a, begin, size - 4) for a, begin, size in x.parts)) for x in plan.launches]
    _, reports = run_cuda_on_cpu(print_cuda(kernels), replace(plan, steps=tuple(short)), args)
    assert {r.kind for r in reports} == {"out-of-bounds"}


def test_dropout_between_layers() -> None:
    """Dropout of nearly everything gives zeros to later layers. In evaluation mode there is no dropout."""
    torch.manual_seed(0)
    module, x = nn.GRU(4, 8, 3, dropout=0.999_999_9), torch.randn(3, 2, 4)
    compiled = deplodock.compile(module, (x,), executor="reference")
    nothing = nn.GRU(4, 8, 3)
    nothing.load_state_dict(module.state_dict() | {f"weight_ih_l{i}": torch.zeros(24, 8) for i in (1, 2)})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), nothing(x))
    half = deplodock.compile(nn.GRU(4, 8, 3, dropout=0.5), (x,), executor="reference")
    assert half.captured.draws
    assert not torch.equal(half(x)[0], half(x)[0])
    assert not deplodock.compile(module.eval(), (x,)).captured.draws


def test_saved_and_loaded(tmp_path: Any) -> None:
    module = _seeded(lambda: nn.GRU(4, 8))
    x = torch.randn(5, 2, 4)
    deplodock.compile(module, (x,)).save(tmp_path / "gru")
    loaded = deplodock.load(tmp_path / "gru", executor="simulator")
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), module(x))


def test_tolerance_of_a_fold() -> None:
    """An addition and a product for each of six steps: u * sqrt(6), times the headroom of 8."""
    found = tolerances(parse_module(make_context(), FOLD, "fold"))
    assert found == pytest.approx([8 * 2.0**-24 * 6**0.5] * 2)
