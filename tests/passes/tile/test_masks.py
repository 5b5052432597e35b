"""Fully masked chunks are skipped: the visited chunks against brute force, and the saved work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.masked_programs import (
    LENGTH,
    MASKS,
    PROGRAM,
    ROWS,
    TRIANGULAR,
    lowered,
    program,
)
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.check_each import make_inputs
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.kernel import CopyAsyncOp
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.support.parsing import parse_module
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation


def needed(mask: Callable[[int, int], bool], block: int, chunk: int, rows: int) -> tuple[int, int]:
    """Returns the range of chunks that have an unmasked term in the rows of a block."""
    last = (block + 1) * rows if rows < ROWS else ROWS
    found = [
        c
        for c in range(-(-LENGTH // chunk))
        if any(mask(i, k) for i in range(block * rows, last) for k in range(c * chunk, (c + 1) * chunk))
    ]
    return (found[0], found[-1] + 1) if found else (0, 0)


@pytest.mark.parametrize("name", MASKS)
def test_exactly_the_chunks_that_count(name: str, visited: list[np.ndarray]) -> None:
    for rows, chunk in ((1, 4), (4, 16), (16, 4), (8, 8), (64, 2)):
        module = program(name, rows, chunk)
        args = make_inputs(list(main_function(module).function_type.inputs))
        visited.clear()
        got = run(lowered(module), args, "exact")
        np.testing.assert_array_equal(got[0], run(module, args, "exact")[0], err_msg=f"{rows} {chunk}")
        blocks = -(-ROWS // rows)
        bounds = np.broadcast_to(visited[0], (blocks, 2))
        for b, (start, stop) in enumerate(bounds.tolist()):
            first, last = needed(MASKS[name][2], b, chunk, rows)
            assert 0 <= start
            assert stop <= -(-LENGTH // chunk)
            assert (max(0, stop - start), start if last else 0) == (last - first, first if last else 0), (rows, chunk)


def test_the_border_of_an_image_is_not_worth_it() -> None:
    """A convolution's padding masks only windows of the first and last row, which is too few to bound its loop."""
    images = torch.randn(1, 16, 40, 40), torch.randn(16, 16, 3, 3)
    module = Compilation(capture(lambda x, w: F.conv2d(x, w, padding=1), images).module).at("tile")
    assert any(isinstance(op, scf.ForOp) for op in module.walk())
    assert not any(isinstance(op, arith.MinSIOp | arith.MaxSIOp) for op in module.walk())


@pytest.mark.parametrize(("kind", "saves"), [("max", False), ("mul", False), ("add", True)])
def test_zero_is_not_the_identity_of_everything(kind: str, saves: bool, visited: list[np.ndarray]) -> None:
    """A mask that makes terms zero lets a sum skip chunks, but not a maximum or a product."""
    module = program("a window as factor", 4, 4, kind)
    args = make_inputs(list(main_function(module).function_type.inputs))
    np.testing.assert_array_equal(run(lowered(module), args, "exact")[0], run(module, args, "exact")[0])
    assert (int(np.diff(visited[0]).max()) < 12) == saves


def test_the_frame_of_masked_rows_is_not_skipped(visited: list[np.ndarray]) -> None:
    """exp(-inf - m) is 0 only if the reference value m is not -infinity. Chunks are skipped if m is repaired."""
    term = "%b = payload.select %c, %a, %low : f32\n%d = arith.subf %b, %frame : f32\n%t = math.exp %d : f32"
    mask = "%low = payload.constant 0xff800000 : f32\n%c = payload.cmp lt %m, %n : i64"
    for repaired in (False, True):
        text = PROGRAM.format(mask=mask, term=term, block=4, chunk=4, kind="add", neutral="0.0")
        frame = """%ninf = payload.constant 0xff800000 : f32
          %max = loop.load %x[%i, 0] : tensor<37x45xf32>
          %dead = payload.cmp eq %max, %ninf : f32
          """
        chosen = "%neutral" if repaired else "%max"
        frame += f"%frame = payload.select %dead, {chosen}, %max : f32\n"
        module = parse_module(make_context(), text.replace("    %s = loop", frame + "    %s = loop"), "frame.mlir")
        args = make_inputs(list(main_function(module).function_type.inputs))
        args[0][:9, 0] = -np.inf
        visited.clear()
        (got,), (want,) = run(lowered(module), args), run(module, args)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        assert np.isnan(want[:9]).any() != repaired
        assert (int(np.diff(visited[0]).max()) - int(np.diff(visited[0]).min()) > 0) == repaired


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sliding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.shape[-2])
    distance = at[:, None] - at[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(distance >= 0) & (distance < 40))


def _compiled(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> tuple[ModuleOp, list[torch.Tensor]]:
    torch.manual_seed(1)
    inputs = [torch.randn(1, 1, 256, 16, dtype=dtype) for _ in range(3)]
    return Compilation(capture(function, inputs).module).at("kernel"), inputs


@pytest.mark.parametrize(("function", "dtype"), [(causal, torch.bfloat16), (sliding, torch.float32)])
def test_attention_reads_what_the_mask_lets_through(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    module, inputs = _compiled(function, dtype)
    whole, _ = _compiled(F.scaled_dot_product_attention, dtype)
    args = [to_numpy(t) for t in inputs]
    found, all_of_it = simulate(module, args), simulate(whole, args)
    assert not found.report.findings, str(found.report)
    want = function(*(t.double() for t in inputs)).numpy()
    atol = 2e-2 if dtype == torch.bfloat16 else 2e-6
    np.testing.assert_allclose(
        found.outputs[0].astype(np.float64), want, atol=2e-2 if dtype == torch.bfloat16 else 2e-6
    )
    read, everything = (sum(r.report.launches[-1].loaded.values()) for r in (found, all_of_it))
    assert read < (0.81 if function is causal else 0.5) * everything
    text, plan = print_cuda(module), make_plan(module)
    outputs, reports = EmulatedProgram(text, plan, compile_many([text])[0]).run(args)
    assert not reports, str(reports[0])
    np.testing.assert_allclose(outputs[0].astype(np.float64), want, atol=atol)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_blocks_of_which_all_is_masked(stages: int) -> None:
    """The first rows have no unmasked column: the loop does not run, and no copy is started for it."""
    module = parse_module(make_context(), TRIANGULAR.replace("STAGES", str(stages)), "triangular.mlir")
    args = make_inputs(list(main_function(module).function_type.inputs))
    low = lowered(module, "loop-to-tile,tile-to-kernel")
    assert sum(isinstance(op, CopyAsyncOp) for op in low.walk()) == stages
    found = simulate(low, args, domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], run(module, args, "exact")[0])
    counts = found.report.launches[0]
    assert counts.loaded[1] <= (0 + 1 + 2 + 3) * 16 * 20 * 4  # blocks of rows from 0, 16, 32, 48 need so many chunks
    text = print_cuda(low)
    outputs, reports = EmulatedProgram(text, make_plan(low), compile_many([text])[0]).run(args)
    assert not reports, str(reports[0])
    np.testing.assert_allclose(outputs[0], np.tril(args[0], -20) @ args[1], rtol=1e-4, atol=1e-4)
