"""Pipelines of asynchronous copies: every number of stages and iterations in all executors, and planted bugs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.attention_nests import attention
from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr, ModuleOp

from deplodock.backend.check_each import make_inputs
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, make_context
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.errors import CompileError, ScheduleError
from deplodock.passes.pass_manager import collect_remarks
from deplodock.passes.pipelines import parse_passes
from deplodock.target.architectures import TARGETS

MATMUL = """
func.func @main(%x: tensor<{m}x{k}x{t}>, %w: tensor<{w}x{t}>) -> tensor<{m}x{n}xf32> {{
  %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}xf32> attributes {{schedule = #tile.schedule<{schedule}>}} {{
    %s = loop.reduce add (%k) in [{k}] -> f32 {{
      %a = loop.load %x[%i, %k] : tensor<{m}x{k}x{t}>
      %b = loop.load %w[{wmap}] : tensor<{w}x{t}>
      {cast}
      %p = arith.mulf %{c}, %{d} : f32
      loop.yield %p : f32
    }}
    loop.yield %s : f32
  }}
  func.return %y : tensor<{m}x{n}xf32>
}}
"""

TILES = "block = [32, 32], chunk = [16], thread = [4, 4], warps = 2, copy = cp_async"
LOWERED = "loop-to-tile,tile-to-kernel"


def matmul(
    m: int, n: int, k: int, stages: int, *, t: str = "f32", transposed: bool = False, tiles: str = TILES
) -> ModuleOp:
    w, wmap = (f"{n}x{k}", "%j, %k") if transposed else (f"{k}x{n}", "%k, %j")
    widen = "" if t == "f32" else f"%c = payload.cast %a : {t} -> f32\n      %d = payload.cast %b : {t} -> f32"
    c, d = ("a", "b") if t == "f32" else ("c", "d")
    atom = "" if t == "f32" else ", atom = mma"
    text = MATMUL.format(
        m=m, n=n, k=k, t=t, w=w, wmap=wmap, c=c, d=d, cast=widen, schedule=f"{tiles}, stages = {stages}{atom}"
    )
    return parse_module(make_context(), text, "test.mlir")


def lower(module: ModuleOp, pipeline: str) -> list[str]:
    """Runs passes on the module. Returns the reasons for which `tile-pipeline-loads` skipped loops."""
    ctx = make_context()
    with collect_remarks() as remarks:
        for p in parse_passes(pipeline):
            p.apply(ctx, module)
            module.verify()
    return [r.why for r in remarks if r.pass_name == "tile-pipeline-loads"]


def count(module: ModuleOp, kind: type) -> int:
    return sum(isinstance(op, kind) for op in module.walk())


CASES = {
    **{f"{s} stages": (lambda s=s: matmul(32, 32, 128, s)) for s in (1, 2, 3, 4)},
    **{f"{s} stages, odd": (lambda s=s: matmul(37, 23, 109, s)) for s in (2, 3, 4)},
    "as many iterations as stages": lambda: matmul(32, 32, 48, 3),
    "fewer iterations than stages": lambda: matmul(32, 35, 32, 4),
    "transposed": lambda: matmul(33, 40, 76, 3, transposed=True),
    "aligned to 8 bytes": lambda: matmul(32, 34, 70, 3),
    "wide and narrow": lambda: matmul(
        70, 30, 64, 3, tiles="block = [64, 16], chunk = [16], thread = [4, 2], warps = 4, copy = cp_async"
    ),
    "tensor cores": lambda: matmul(40, 48, 104, 3, t="bf16"),
    "tensor cores, transposed": lambda: matmul(40, 48, 104, 2, t="f16", transposed=True),
    "only one factor aligned": lambda: matmul(40, 33, 104, 3, t="bf16"),
}


@pytest.mark.parametrize("case", CASES)
def test_copies_ahead_change_nothing(case: str) -> None:
    module = CASES[case]()
    args = make_inputs(list(main_function(module).function_type.inputs))
    exact, real = run(module, args, "exact"), run(module, args, "real")
    lower(module, "loop-to-tile")
    np.testing.assert_array_equal(run(module, args, "exact")[0], exact[0], err_msg="tile level")
    lower(module, "tile-to-kernel")
    assert count(module, kernel.CopyAsyncOp) > 0
    found = simulate(module, args, domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], exact[0])
    floats = simulate(module, args)
    np.testing.assert_allclose(floats.outputs[0].astype(np.float64), real[0], rtol=3e-5, atol=3e-5)


def test_the_printed_text_under_any_order_and_arrival() -> None:
    expected, inputs, plans, sources = [], [], [], []
    for case in CASES.values():
        module = case()
        args = make_inputs(list(main_function(module).function_type.inputs))
        expected.append(run(module, args, "real"))
        inputs.append(args)
        lower(module, LOWERED)
        plans.append(make_plan(module))
        sources.append(print_cuda(module))
    compiled = zip(CASES, sources, plans, compile_many(sources), inputs, expected, strict=True)
    for case, source, plan, emulated, args, wanted in compiled:
        outputs, reports = EmulatedProgram(source, plan, emulated).run(args, seeds=(0, 1, 7))
        assert not reports, f"{case}: {reports[0]}"
        np.testing.assert_allclose(outputs[0].astype(np.float64), wanted[0], rtol=3e-5, atol=3e-5, err_msg=case)


def test_one_barrier_an_iteration() -> None:
    module = matmul(32, 32, 128, 3)
    lower(module, LOWERED)
    args = make_inputs(list(main_function(module).function_type.inputs)[:2])
    (counts,) = simulate(module, args).report.launches
    assert counts.barriers == 8
    assert counts.wavefronts == counts.ideal_wavefronts
    plain = matmul(32, 32, 128, 1, tiles=TILES.replace(", copy = cp_async", ""))
    lower(plain, LOWERED)
    assert simulate(plain, args).report.launches[0].barriers > 2 * 8 - 2


def test_rings_of_one_size_turn_together() -> None:
    module = matmul(32, 32, 128, 3)
    lower(module, LOWERED)
    assert len(loop_of(module).iter_args) == 1 + 3  # the accumulator, two slots that fill, and a free one
    module = CASES["wide and narrow"]()
    lower(module, LOWERED)
    assert len(loop_of(module).iter_args) == 1 + 2 * 3


@pytest.mark.parametrize("k", [0, 8, 16])
def test_nothing_to_overlap(k: int) -> None:
    module = matmul(32, 32, k, 3)
    args = make_inputs(list(main_function(module).function_type.inputs))
    exact = run(module, args, "exact")
    lower(module, LOWERED)
    assert count(module, kernel.CopyAsyncOp) == 0
    np.testing.assert_array_equal(simulate(module, args, domain="exact").outputs[0], exact[0])


def test_what_is_computed_on_goes_through_registers() -> None:
    text = str(matmul(32, 32, 64, 3)).replace(
        "%p = arith.mulf %a, %b", "%e = math.exp %a : f32\n%p = arith.mulf %e, %b"
    )
    module = parse_module(make_context(), text, "test.mlir")
    args = make_inputs(list(main_function(module).function_type.inputs))
    exact = run(module, args, "exact")
    reasons = lower(module, LOWERED)
    assert len(reasons) == 1
    assert "computed" in reasons[0]
    assert count(module, kernel.CopyAsyncOp) == 3  # two in front of the loop, one in it, and none for the exponentials
    found = simulate(module, args, domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], exact[0])


@pytest.mark.parametrize("transposed", [False, True])
def test_boxes_for_products_without_tensor_cores(transposed: bool) -> None:
    """A producer loads f32 tiles by TMA, and threads read them without tensor cores."""
    tiles = TILES.replace("cp_async", "tma")
    rng = np.random.default_rng(3)
    args = [rng.standard_normal(s).astype(np.float32) for s in ((64, 96), (64, 96) if transposed else (96, 64))]
    exact = run(matmul(64, 64, 96, 2, tiles=tiles, transposed=transposed), args, "exact")
    module = matmul(64, 64, 96, 2, tiles=tiles, transposed=transposed)
    lower(module, LOWERED)
    assert count(module, kernel.TmaLoadOp) == 2
    found = simulate(module, args, domain="exact")
    found.report.raise_errors()
    np.testing.assert_array_equal(found.outputs[0], exact[0])


@pytest.mark.parametrize(
    ("tiles", "stages", "why"),
    [
        (TILES.replace(", copy = cp_async", ""), 2, "stages"),
        (TILES, 9, "at most 8"),
        ("block = [128, 128], chunk = [64], thread = [8, 8], warps = 8, copy = cp_async", 4, "shared memory"),
    ],
)
def test_impossible_schedules_are_refused(tiles: str, stages: int, why: str) -> None:
    module = matmul(256, 256, 512, stages, tiles=tiles)
    with pytest.raises(ScheduleError, match=why):
        lower(module, LOWERED)


# -- planted mistakes


def loop_of(module: ModuleOp) -> scf.ForOp:
    """Returns the loop over chunks."""
    return next(op for op in module.walk() if isinstance(op, scf.ForOp) and len(op.iter_args) > 1)


def inside(module: ModuleOp, kind: type) -> list:
    return [op for op in loop_of(module).body.block.ops if isinstance(op, kind)]


def wait_for_too_little(module: ModuleOp) -> None:
    (wait,) = inside(module, kernel.AsyncWaitOp)
    wait.pending = IntAttr(wait.pending.data + 1)


def no_wait(module: ModuleOp) -> None:
    (wait,) = inside(module, kernel.AsyncWaitOp)
    wait.parent.erase_op(wait)


def no_barrier(module: ModuleOp) -> None:
    (barrier,) = inside(module, kernel.BarrierOp)
    barrier.parent.erase_op(barrier)


def barrier_before_the_wait(module: ModuleOp) -> None:
    (barrier,), (wait,) = inside(module, kernel.BarrierOp), inside(module, kernel.AsyncWaitOp)
    barrier.detach()
    loop_of(module).body.block.insert_op_before(barrier, wait)


def barrier_behind_the_copies(module: ModuleOp) -> None:
    (barrier,), (commit,) = inside(module, kernel.BarrierOp), inside(module, kernel.AsyncCommitOp)
    barrier.detach()
    loop_of(module).body.block.insert_op_after(barrier, commit)


def no_group(module: ModuleOp) -> None:
    (commit,) = inside(module, kernel.AsyncCommitOp)
    commit.parent.erase_op(commit)


def group_closed_early(module: ModuleOp) -> None:
    (commit,), copies = inside(module, kernel.AsyncCommitOp), inside(module, kernel.CopyAsyncOp)
    commit.detach()
    loop_of(module).body.block.insert_op_before(commit, copies[-1])


def copy_into_the_slot_that_is_read(module: ModuleOp) -> None:
    read, written = inside(module, kernel.SubviewOp)[0], inside(module, kernel.CopyAsyncOp)[0].target.owner
    written.operands[1] = read.offset


def read_the_slot_that_is_filled(module: ModuleOp) -> None:
    read, written = inside(module, kernel.SubviewOp)[0], inside(module, kernel.CopyAsyncOp)[0].target.owner
    read.operands[1] = written.offset


def slots_that_stay(module: ModuleOp) -> None:
    body = loop_of(module).body.block
    for i in range(1, len(body.last_op.operands)):
        body.last_op.operands[i] = body.args[1 + i]


def no_predicate(module: ModuleOp) -> None:
    for copy in inside(module, kernel.CopyAsyncOp):
        copy.operands = [copy.target, copy.place, copy.memory, *copy.coordinates, *copy.checks]
        sizes = copy.properties["operandSegmentSizes"]
        copy.properties["operandSegmentSizes"] = type(sizes).from_list(
            sizes.elt_type, [1, 1, 0, 1, len(copy.regs.data[0].data), 0]
        )


def no_first_copy(module: ModuleOp) -> None:
    copy = next(op for op in module.walk() if isinstance(op, kernel.CopyAsyncOp))
    copy.parent.erase_op(copy)


def ring_too_short(module: ModuleOp) -> None:
    """Plants a bug: two of three stages use the same memory."""
    loop = loop_of(module)
    loop.operands[3 + len(loop.iter_args) - 1] = loop.operands[3 + len(loop.iter_args) - 3]


ORDER = (
    wait_for_too_little,
    no_wait,
    no_barrier,
    barrier_before_the_wait,
    barrier_behind_the_copies,
    no_group,
    group_closed_early,
    slots_that_stay,
)
"""Mistakes in the order of accesses alone, which the simulator does not know: what is asynchronous is done at once."""

PLANTED: list[Callable[[ModuleOp], None]] = [
    *ORDER,
    copy_into_the_slot_that_is_read,
    read_the_slot_that_is_filled,
    no_predicate,
    no_first_copy,
    ring_too_short,
]


@pytest.mark.parametrize("plant", [p for p in PLANTED if p not in ORDER], ids=lambda p: p.__name__)
def test_the_simulator_sees(plant: Callable[[ModuleOp], None]) -> None:
    module = matmul(32, 32, 128, 3)
    args = make_inputs(list(main_function(module).function_type.inputs))
    lower(module, LOWERED)
    wanted = simulate(module, args, domain="exact").outputs[0]
    plant(module)
    module.verify()
    found = simulate(module, args, domain="exact")
    assert found.report.findings or (found.outputs[0] != wanted).any()


def test_the_emulator_reports() -> None:
    sources, plans = [], []
    for plant in PLANTED:
        module = matmul(32, 32, 128, 3)
        args = make_inputs(list(main_function(module).function_type.inputs))
        lower(module, LOWERED)
        plant(module)
        plans.append(make_plan(module))
        sources.append(print_cuda(module))
    for plant, source, plan, emulated in zip(PLANTED, sources, plans, compile_many(sources), strict=True):
        _, reports = EmulatedProgram(source, plan, emulated).run(args, seeds=(0, 1))
        assert reports, plant.__name__


def test_barriers_are_refused_where_a_wait_is_missing() -> None:
    module = matmul(32, 32, 128, 3)
    lower(module, "loop-to-tile,convert-tile-to-kernel,cse,dce,kernel-allocate-shared")
    wait_for_too_little(module)
    with pytest.raises(CompileError, match="may still write; wait for the copy first"):
        lower(module, "kernel-insert-barriers")


@pytest.mark.parametrize("arch", TARGETS)
def test_every_target_compiles_the_copies(arch: str) -> None:
    tiles = "block = [64, 64], chunk = [32], thread = [8, 4], warps = 4, copy = cp_async"
    for t, widths in (("f32", {32: 48, 128: 12}), ("bf16", {128: 12})):
        module = matmul(256, 256, 256, 3, t=t, tiles=tiles)
        lower(module, f"loop-to-tile{{target={arch}}},tile-to-kernel{{target={arch}}}")
        compiled = compile_cubin(print_cuda(module), arch)
        use, code = compiled.kernels["k0"], disassemble(compiled.cubin)["k0"]
        assert use.spills == use.stack == code.spills == 0
        assert code.widths("LDGSTS") == widths
        assert not code.widths("LDG")


@pytest.mark.parametrize("stages", [1, 3])
def test_pipelines_inside_pipelines(stages: int) -> None:
    """Attention has a pipeline of values along the keys, and in it one of queries and keys along the head dimension.

    Each is emitted twice, for full chunks and for the chunk past the last key.
    """
    module = parse_module(make_context(), attention(33, 50, 16, 8), "test.mlir")
    nest = next(op for op in module.walk() if op.name == "loop.nest")
    nest.attributes["schedule"] = ScheduleAttr.get([32, 8], [16, 8] * 3, warps=4, copy="cp_async", stages=stages)
    args = make_inputs(list(main_function(module).function_type.inputs))
    exact = run(module, args, "exact")
    lower(module, LOWERED)
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    assert sum(any(isinstance(o, kernel.CopyAsyncOp) for o in op.body.block.ops) for op in loops) == 4
    found = simulate(module, args, domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], exact[0])
    source, plan = print_cuda(module), make_plan(module)
    _, reports = EmulatedProgram(source, plan).run(args, seeds=(0, 1))
    assert not reports, str(reports[0])
