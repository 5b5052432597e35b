"""Long rows: how often they are read, where they are stored between loops, and the registers that hold them."""

from __future__ import annotations

import pytest
import torch
from support.row_programs import FUNCTIONS, is_close, lowered, rows

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.errors import ScheduleError
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation

KEPT = ("softmax", "log_softmax", "rms_norm", "layer_norm")


def compiled(name: str, length: int, target: str = "sm_90a") -> tuple[Compilation, torch.Tensor]:
    x = torch.randn(64, length, generator=torch.Generator().manual_seed(length)) + 3
    return Compilation(capture(FUNCTIONS[name], (x,)).module, target), x


def times_read(compilation: Compilation, x: torch.Tensor) -> float:
    """Returns how often one block reads its row."""
    found = simulate(compilation.at("kernel"), [to_numpy(x)], max_blocks=1)
    (counts,) = found.report.launches
    return counts.loaded[0] / x[0].nbytes


@pytest.mark.parametrize(
    ("name", "length", "target", "times"),
    [
        ("softmax", 32768, "sm_90a", 1),
        ("layer_norm", 20000, "sm_90a", 1),
        ("softmax", 50000, "sm_90a", 1),
        ("layer_norm", 50000, "sm_90a", 1),
        ("softmax", 50000, "sm_80", 2),
        ("variance", 50000, "sm_90a", 1),
        ("argmax", 50000, "sm_90a", 1),
    ],
)
def test_times_a_row_is_read(name: str, length: int, target: str, times: int) -> None:
    assert times_read(*compiled(name, length, target)) == times


@pytest.mark.parametrize(
    ("name", "length", "target"),
    [
        ("softmax", 32768, "sm_80"),
        ("softmax", 32768, "sm_120"),
        ("softmax", 40000, "sm_80"),
        ("softmax", 65536, "sm_89"),
        ("layer_norm", 50000, "sm_90a"),
    ],
)
def test_registers_hold_the_longest_row(name: str, length: int, target: str) -> None:
    compilation, _ = compiled(name, length, target)
    (kernel,) = compile_cubin(compilation.cuda, target).kernels.values()
    assert kernel.spills == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KEPT)
def test_kept_rows(name: str, dtype: torch.dtype) -> None:
    x = rows(3, 300, dtype)
    program = lowered(name, x, 64, cache_rows="shared")
    assert is_close(run(program.tiles, [to_numpy(x)])[0], x, name)
    found = simulate(program.kernel, [to_numpy(x)])
    assert not found.report.findings, str(found.report)
    assert is_close(found.outputs[0], x, name)
    (counts,) = found.report.launches
    assert counts.loaded == {0: x.nbytes}
    assert counts.wavefronts == counts.ideal_wavefronts


def test_the_printed_program_keeps_rows() -> None:
    x = rows(3, 300)
    kernels = [lowered(name, x, 64, cache_rows="shared").kernel for name in KEPT]
    texts = [print_cuda(k) for k in kernels]
    for name, kernel, text, built in zip(KEPT, kernels, texts, compile_many(texts), strict=True):
        outputs, reports = EmulatedProgram(text, make_plan(kernel), built).run([to_numpy(x)], (0, 1))
        assert not reports, str(reports[0])
        assert is_close(outputs[0], x, name)


@pytest.mark.parametrize(
    ("name", "length", "target", "decisions", "why"),
    [
        ("softmax", 50000, "sm_80", {"cache_rows": "shared"}, "take 229376 bytes of shared memory; sm_80 has 165888"),
        ("softmax", 300, "sm_90a", {"cache_rows": "shared", "split_k": 2}, "no row of their own to keep"),
        ("argmax", 300, "sm_90a", {"cache_rows": "shared", "serial": []}, "no two loops read the same chunks"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    name: str, length: int, target: str, decisions: dict[str, object], why: str
) -> None:
    with pytest.raises(ScheduleError, match=why):
        lowered(name, rows(64, length), 8192 if length > 1000 else 64, target, **decisions)
