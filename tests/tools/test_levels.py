"""Three programs at all levels: their text is parsed, and dl-opt lowers it to the same CUDA."""

from __future__ import annotations

import pytest
import torch

from deplodock.dialects.support.printing import print_module
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture
from deplodock.tools import dl_opt
from deplodock.tools.calls import call
from deplodock.tools.evaluate import evaluate

PROGRAMS = {
    "relu-matmul": "x = torch.randn(16, 64); bias = torch.randn(64); w = torch.randn(64, 16);"
    " torch.relu(torch.matmul(x + bias, w))",
    "rms-norm": "nn.RMSNorm(2048)(torch.randn(1, 32, 2048))",
    "softmax": "torch.nn.Softmax(dim=-1)(torch.randn(1, 28, 128, 128))",
}
DIALECT_LEVELS = ("torch", "tensor", "loop", "tile", "kernel")


def compiled(name: str) -> CompiledFunction:
    torch.manual_seed(0)
    program = evaluate(PROGRAMS[name])
    return CompiledFunction(
        capture(program.function, program.args, program.kwargs, names=program.names), "sm_90a", "reference"
    )


def dl_opt_text(text: str, *args: str) -> str:
    code, out, err = call(dl_opt.main, list(args), text.encode())
    assert code == 0, err.decode()
    return out.decode()


@pytest.mark.parametrize("name", PROGRAMS)
def test_levels_read_back_to_the_same_text(name: str) -> None:
    program = compiled(name)
    for level in DIALECT_LEVELS:
        places = level == "torch"
        text = print_module(program.compilation.at(level), debuginfo=places)  # without the breaks of long lines
        options = ["--print-debuginfo"] if places else []
        assert dl_opt_text(program.ir(level), *options).strip() == text.strip(), level


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pipeline_replays_to_the_same_cuda(name: str) -> None:
    program = compiled(name)
    assert dl_opt_text(program.ir("torch"), "-p", program.pipeline, "-t", 'cuda{arch="sm_90a"}') == program.ir("cuda")


def test_relu_matmul_is_one_kernel_without_the_product() -> None:
    program = compiled("relu-matmul")
    assert program.ir("cuda").count("__global__") == 1
    assert "16x64x16x" in program.ir("tensor") or "16x16x64x" in program.ir("tensor")
    for level in ("loop", "tile", "kernel"):
        text = program.ir(level)
        assert "16x64x16x" not in text, level
        assert "16x16x64x" not in text, level
