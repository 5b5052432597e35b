"""Loops that are split where a mask begins to matter, against brute force and with copies in flight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support import TESTS
from support.masked_programs import LENGTH, MASKS, ROWS, TRIANGULAR, lowered, program
from xdsl.dialects import scf
from xdsl.dialects.builtin import AffineMapAttr, ModuleOp
from xdsl.ir.affine import AffineMap

from deplodock.backend.check_each import make_inputs
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context, payload, tile
from deplodock.dialects.payload import shape_of
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.tile.copies import StageAsyncOp
from deplodock.errors import ExecutionError
from deplodock.passes.analysis.masks import scattered
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.tile import split_masked_loops

TO_TILE = "convert-loop-to-tile,cse,dce"


def loops(module: ModuleOp) -> list[scf.ForOp]:
    return [op for op in module.walk() if isinstance(op, scf.ForOp)]


def compares(loop: scf.ForOp) -> bool:
    return any(isinstance(op, payload.CmpOp) and shape_of(op.result.type) for op in loop.walk())


def uniform(mask: Callable[[int, int], bool], block: int, chunk: int, rows: int, columns: int) -> bool:
    """Returns true if a chunk is inside of the row and the mask has one value for all its elements in a block."""
    cells = [
        (i, k) for i in range(block * rows, (block + 1) * rows) for k in range(chunk * columns, (chunk + 1) * columns)
    ]
    return all(k < LENGTH for _, k in cells) and len({mask(i, k) for i, k in cells}) == 1


@pytest.mark.parametrize("name", MASKS)
def test_exactly_the_chunks_without_masks(
    name: str,
    visited: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parts of a split loop cover all iterations and give the same results.

    In the part without comparisons the mask has one value. In the adjacent chunks it has several. Loops are split here
    even if it does not pay.
    """
    monkeypatch.setattr(split_masked_loops, "MIN_UNMASKED_FRACTION", 0.01)
    divided = 0
    for rows, chunk in ((1, 4), (16, 4), (8, 8)):
        module = program(name, rows, chunk)
        args = make_inputs(list(main_function(module).function_type.inputs))
        whole = lowered(module, TO_TILE)
        parts = lowered(whole, "tile-split-masked-loops")
        visited.clear()
        (want,) = run(whole, args, "exact")
        before = [v for v in visited]
        visited.clear()
        (got,) = run(parts, args, "exact")
        np.testing.assert_array_equal(got, want, err_msg=f"{rows} {chunk}")
        found = loops(parts)
        if len(found) == 1:
            continue
        divided += 1
        blocks = -(-ROWS // rows)
        (bounds,) = (np.broadcast_to(b, (blocks, 2)).tolist() for b in before)
        ranges = [np.broadcast_to(v, (blocks, 2)).tolist() for v in visited]
        clean = [i for i, loop in enumerate(found) if not compares(loop)]
        assert len(clean) <= 1
        for block in range(blocks - (ROWS % rows > 0)):  # the last block has rows that are none
            visits = [k for part in ranges for k in range(*part[block])]
            assert visits == list(range(*bounds[block])), (rows, chunk, block)
            here = [k for i in clean for k in range(*ranges[i][block])]
            mask = MASKS[name][2]
            assert all(uniform(mask, block, k, rows, chunk) for k in here), (rows, chunk, block)
            for k in (min(here) - 1, max(here) + 1) if here else ():
                if k in range(*bounds[block]) and k != LENGTH // chunk:
                    answers = {
                        mask(i, j)
                        for i in range(block * rows, (block + 1) * rows)
                        for j in (k * chunk, (k + 1) * chunk - 1)
                    }
                    tight = len(answers) == 2 or name == "either of two"  # where both conditions hold, not their union
                    assert tight or LENGTH < (k + 1) * chunk, (rows, chunk, block, k)
    assert divided or name in ("nothing is masked", "a mask in the data", "a border")


def _late(parts: list[scf.ForOp]) -> None:
    """Plants a bug: the part without masks runs one iteration longer."""
    assert parts[0].parent is not None
    ends = (op for op in parts[0].parent.ops if isinstance(op, tile.AffineOp) and op.result.name_hint == "part")
    end = next(ends)
    end.properties["map"] = AffineMapAttr(AffineMap(0, 1, (end.map.data.results[0] + 1,)))


def _unmasked(parts: list[scf.ForOp]) -> None:
    """Plants a bug: the part with masks does not apply them."""
    for op in [o for o in parts[1].walk() if isinstance(o, payload.SelectOp)]:
        op.result.replace_all_uses_with(op.lhs)


def _early(parts: list[scf.ForOp]) -> None:
    """Plants a bug: the second part starts with the initial values of the first one."""
    parts[1].operands[3] = parts[0].operands[3]


@pytest.mark.parametrize("bug", [_late, _unmasked, _early])
def test_planted_bugs_are_seen(bug: Callable[[list[scf.ForOp]], None]) -> None:
    module = program("later keys", 4, 4)
    args = make_inputs(list(main_function(module).function_type.inputs))
    parts = lowered(module, f"{TO_TILE},tile-split-masked-loops")
    want = run(module, args, "exact")[0]
    np.testing.assert_array_equal(run(parts, args, "exact")[0], want)
    assert len(loops(parts)) == 2
    bug(loops(parts))
    try:
        assert (run(parts, args, "exact")[0] != want).any()
    except ExecutionError as error:  # the part without masks has no bounds either
        assert bug is _late and "outside" in str(error)  # noqa: PT017, PT018


PERSISTENT = (TESTS / "filecheck" / "passes" / "tile" / "tile-split-masked-loops.mlir").read_text()
PERSISTENT = PERSISTENT.split("// -----")[-1]
"""2048 tiles of a triangular sum, 32 of each batch, shared by 132 blocks."""


@pytest.mark.parametrize("rows", [16, 32, 48, 64])
@pytest.mark.parametrize("batches", [1, 32, 64, 125])
def test_loops_of_persistent_blocks_are_divided(rows: int, batches: int) -> None:
    """The row of a tile is its number divided by or modulo a size. The samples must cover all kinds of rows."""
    text = PERSISTENT.replace("2048", str(rows * batches)).replace("div 32", f"div {rows}")
    text = text.replace("mod 32", f"mod {rows}").replace("64x512x", f"{batches}x{16 * rows}x")
    module = parse_module(make_context(), text, "persistent.mlir")
    masked = [op for op in lowered(module, "tile-split-masked-loops").walk() if isinstance(op, scf.ForOp)]
    assert [compares(op) for op in masked[1:]] == [False, True]


@pytest.mark.parametrize("length", [65, 100, 2048, 4096, 1 << 20])
def test_samples_have_all_remainders(length: int) -> None:
    """Samples are spread over the range and have evenly distributed remainders modulo the usual divisors."""
    found = scattered(0, length, 64)
    assert found == scattered(0, length, 64) != scattered(0, length, 64, 1)
    assert all(abs(n * 64 / length - i) <= 1 for i, n in enumerate(sorted(found)))
    for divisor in (2, 3, 8, 32, 64):
        halves = sum(n % divisor < divisor / 2 for n in found)
        assert 32 * 0.6 < halves * divisor / (2 * -(-divisor // 2)) < 32 * 1.4, divisor


@pytest.mark.parametrize(("copy", "stages"), [("sync", 1), ("cp_async", 3)])
def test_what_is_in_flight_goes_on_in_the_next_part(copy: str, stages: int) -> None:
    text = TRIANGULAR.replace("arith.subi %n, %far", "arith.addi %n, %far").replace("cp_async", copy)
    module = parse_module(make_context(), text.replace("STAGES", str(stages)), "triangular.mlir")
    args = make_inputs(list(main_function(module).function_type.inputs))
    low = lowered(module, "loop-to-tile")
    assert [compares(op) for op in loops(low)] == [False, True]
    starts = [op for op in low.walk() if isinstance(op, StageAsyncOp)]
    assert len(starts) == (stages - 1 + 2 if stages > 1 else 0)  # in front, and in each part
    run_passes(make_context(), low, parse_passes("tile-to-kernel"))
    found = simulate(low, args, domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], run(module, args, "exact")[0])
    printed = print_cuda(low)
    outputs, reports = EmulatedProgram(printed, make_plan(low), compile_many([printed])[0]).run(args)
    assert not reports, str(reports[0])
    np.testing.assert_allclose(outputs[0], np.tril(args[0], 20) @ args[1], rtol=1e-4, atol=1e-4)
