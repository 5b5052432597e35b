"""`fallback="eager"`: operators that PyTorch executes between kernels, with a warning for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import deplodock
from deplodock.backend.cuda import runtime
from deplodock.backend.host.launch_plan import EagerStep, make_plan
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError, ExecutionError, UnsupportedError
from deplodock.extras.artifact.programs import ArtifactError
from deplodock.extras.standalone import emit_standalone
from deplodock.frontend.capture.eager_fallback import FallbackWarning
from deplodock.tools.cli import main


def left(function: Callable[..., Any], *args: Any, executor: str = "reference") -> Any:
    """Compiles a function with `fallback="eager"`. Asserts that a warning names the operators."""
    with pytest.warns(FallbackWarning, match="is left to PyTorch"):
        return deplodock.compile(function, args, fallback="eager", executor=executor)


def several_results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, r = torch.linalg.qr(x * 2)
    return torch.relu(q @ r), r + 1


def through_complex(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.fft(x).cumprod(0)).sum(-1) + x


def views(x: torch.Tensor) -> torch.Tensor:
    u = torch.linalg.svd(x)[0].mT[:2]  # strides that are not those of a dense tensor
    return torch.linalg.det(u @ u.mT) * u


def one_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.linalg.inv(x)
    return y, y


PROGRAMS = (several_results, through_complex, views, one_twice)


@pytest.mark.parametrize("executor", ["reference", "simulator", "emulator"])
@pytest.mark.parametrize("function", PROGRAMS)
def test_results_are_those_of_pytorch(function: Callable[..., Any], executor: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 4, 4)
    compiled = left(function, x, executor=executor)
    torch.testing.assert_close(compiled(y), function(y), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", PROGRAMS)
def test_nothing_is_left_to_pytorch_unless_asked_for(function: Callable[..., Any]) -> None:
    with pytest.raises(CompileError):
        deplodock.compile(function, (torch.randn(4, 4),))


def test_what_can_be_compiled_is_not_left() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        compiled = deplodock.compile(lambda x: torch.softmax(x @ x, -1), (torch.randn(4, 4),), fallback="eager")
    assert compiled.eager == ()
    assert not make_plan(compiled.compilation.at("kernel")).eager


def test_what_is_left_is_listed_with_reason_and_place() -> None:
    compiled = left(several_results, torch.randn(4, 4))
    (call,) = compiled.eager
    assert call.operator == "aten.linalg_qr"
    assert "factorizations" in call.reason
    assert call.location is not None
    assert call.location.partition(":")[0].endswith("test_fallback.py")
    assert f'torch.eager = "{call.operator}"' in compiled.ir("kernel")


def test_equal_calls_are_one_function_in_the_program() -> None:
    x = torch.randn(4, 4)
    compiled = left(lambda x: torch.linalg.inv(x) + torch.linalg.inv(x * 2) + torch.linalg.inv(x[:2, :2]).sum(), x)
    functions = [call for call in compiled.eager if call.operator == "aten.linalg_inv_ex"]
    steps = [s for s in make_plan(compiled.compilation.at("kernel")).eager if "inv" in s.function]
    assert (len(functions), len(steps)) == (2, 3)
    torch.testing.assert_close(compiled(x), eager_sum(x), rtol=1e-4, atol=1e-4)


def eager_sum(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x) + torch.linalg.inv(x * 2) + torch.linalg.inv(x[:2, :2]).sum()


class Layer(nn.Module):
    """A layer with unsupported operators, whose buffer and argument change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("last", torch.zeros(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.linear(x))
        h = h + torch.linalg.matrix_exp(h * 0.1)
        self.last.copy_(torch.linalg.pinv(h))
        x.mul_(2)
        for _ in range(8):
            h = torch.tanh(h * 0.5 + 1) - h
        return h


def test_inside_of_a_module_with_updates_in_place() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(Layer() for _ in range(3)))
    x = torch.randn(6, 6)
    compiled = left(module, x, executor="simulator")
    assert "func.call @layer" in compiled.ir("tensor")  # layers with equal calls are still equal
    given, same = x.clone(), x.clone()
    result = compiled(given)
    found = [layer.last.clone() for layer in module]
    torch.testing.assert_close(result, module(same), rtol=1e-3, atol=1e-4)
    assert torch.equal(given, same)
    for layer, last in zip(module, found, strict=True):
        torch.testing.assert_close(last, layer.last, rtol=1e-2, atol=1e-3)


def test_an_argument_that_is_not_supported_is_a_reason() -> None:
    def smaller(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, size=(4, 5), mode="bilinear")

    x = torch.randint(0, 256, (1, 3, 6, 6), dtype=torch.uint8)
    with pytest.warns(FallbackWarning, match=r"interpolate\(...\) is left to PyTorch: this operator"):
        compiled = deplodock.compile(smaller, (x,), fallback="eager", executor="reference")
    assert torch.equal(compiled(x), smaller(x))


def test_a_size_that_depends_on_data_is_known_to_pytorch() -> None:
    x = torch.tensor([1.0, -1.0, 2.0, 3.0])
    compiled = left(lambda x: torch.poisson(x[x > 0]) + 1, x)
    for argument in (x, -x, x.abs() * 0):
        torch.manual_seed(5)
        results = compiled(argument)
        torch.manual_seed(5)
        assert torch.equal(results, torch.poisson(argument[argument > 0]) + 1)


def test_random_numbers_follow_pytorchs_seed() -> None:
    x = torch.rand(8)
    compiled = left(lambda x: torch.poisson(x) + x, x)
    torch.manual_seed(5)
    found = compiled(x)
    torch.manual_seed(5)
    assert torch.equal(found, torch.poisson(x) + x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.to_sparse().to_dense(), "cannot be left to PyTorch"),
    ],
)
def test_what_cannot_be_left_is_refused(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        deplodock.compile(function, (torch.randn(4, 4),), fallback="eager")


def test_an_error_of_pytorch_is_one_line_with_its_place() -> None:
    compiled = left(lambda x: torch.linalg.inv(x), torch.eye(3))
    with pytest.raises(ExecutionError, match=r"test_fallback.py:\d+: torch.linalg.inv\(x\): .*singular"):
        compiled(torch.zeros(3, 3))


def test_other_fallbacks_are_refused() -> None:
    with pytest.raises(CompileError, match="expected 'eager' or None, but got 'numpy'"):
        deplodock.compile(torch.relu, (torch.ones(3),), fallback="numpy")  # pyright: ignore[reportArgumentType]


def test_artifacts_and_standalone_programs_are_refused(tmp_path: Any) -> None:
    compiled = left(several_results, torch.randn(4, 4))
    with pytest.raises(ArtifactError, match=r"torch.linalg.qr\(x \* 2\) is left to PyTorch"):
        compiled.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    compilation = compiled.compilation
    with pytest.raises(CompileError, match="does not stand alone"):
        emit_standalone(compilation.at("kernel"), compilation.at("tensor"), compilation.cuda)


def test_the_text_runs_nowhere_without_pytorch() -> None:
    from deplodock.backend.reference import run

    compiled = left(several_results, torch.randn(4, 4))
    module = parse_module(make_context(), compiled.ir("tensor"), "text")
    with pytest.raises(
        ExecutionError, match=r"aten.linalg_qr: left to PyTorch, but there is no PyTorch implementation"
    ):
        run(module, [torch.randn(4, 4).numpy()])


def test_dynamo() -> None:
    x = torch.randn(4, 4)
    compiled = torch.compile(several_results, backend="deplodock", options={"fallback": "eager"})
    with pytest.warns(FallbackWarning):
        found = compiled(x)
    torch.testing.assert_close(found, several_results(x), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="expected one of the options"):
        torch.compile(torch.relu, backend="deplodock", options={"fall": "eager"})(x)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = "torch.linalg.inv(torch.eye(3) * 2) + 1"
    assert main(["run", "-c", code]) == 1
    assert "not supported" in capsys.readouterr().err
    assert main(["run", "-c", code, "--fallback", "eager"]) == 0
    taken = capsys.readouterr()
    assert "torch.linalg.inv(torch.eye(3) * 2) is left to PyTorch" in taken.err
    assert "ok" in taken.out


def test_steps_on_the_device(stub_cuda: Any) -> None:
    """PyTorch reads and writes the buffers on the GPU, between the launches."""
    compiled = left(several_results, torch.randn(4, 4))
    plan = make_plan(compiled.compilation.at("kernel"))
    steps = [type(s) is EagerStep for s in plan.steps]
    assert steps[:2] == [False, True]
    assert sum(steps) == 1
    launched: list[int] = []

    def qr(tensors: Any) -> list[torch.Tensor]:
        assert [tuple(t.shape) for t in tensors] == [(4, 4)]
        launched.append(len(stub_cuda.launches))
        return [*torch.linalg.qr(tensors[0])]

    text, x = compiled.ir("cuda"), torch.randn(4, 4)
    program = runtime.CudaProgram(compiled.compilation.at("kernel"), text, eager={"eager_linalg_qr": qr})
    results = compiled.captured.restore(program.run([x]))
    torch.testing.assert_close(results, several_results(x), rtol=1e-4, atol=1e-4)
    assert launched == [1]
    assert len(stub_cuda.launches) == len(steps) - 1
    without = runtime.CudaProgram(compiled.compilation.at("kernel"), text)
    with pytest.raises(ExecutionError, match="left to PyTorch, but there is no PyTorch implementation"):
        without.run([torch.randn(4, 4)])
