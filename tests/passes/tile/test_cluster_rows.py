"""Rows that the blocks of a cluster share: right in every executor, each byte is read once, and bugs are detected."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from support import static_gates
from support.row_programs import FUNCTIONS, Lowered, is_close, lowered, rows
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many, run_cuda_on_cpu, run_standalone_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context, tile
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.errors import DeplodockError, ScheduleError
from deplodock.extras.standalone import emit_standalone
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

USED_AFTERWARDS = ("softmax", "log_softmax", "rms_norm", "layer_norm")


def test_alone() -> None:
    """A standalone program also launches clusters, and its version for the host detects a missing barrier."""
    x = rows(3, 500)
    program = lowered("softmax", x, 256, cluster=2)
    tensors = Compilation(capture(FUNCTIONS["softmax"], (x,)).module, "sm_90a").at("tensor")
    text = emit_standalone(program.kernel, tensors, print_cuda(program.kernel))
    assert "__cluster_dims__(2, 1, 1)" in text
    done = run_standalone_on_cpu(text)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_standalone_on_cpu(text.replace("  cluster_barrier();\n", "", 1))
    assert done.returncode != 0


def check(name: str, dtype: torch.dtype, cluster: int, length: int, row: str = "registers") -> None:
    x = rows(3, 500, dtype)
    program = lowered(name, x, length, cluster=cluster, cache_rows=row, warps=min(2, length // 32))
    assert is_close(run(program.tiles, [to_numpy(x)])[0], x, name)
    found = simulate(program.kernel, [to_numpy(x)])
    assert not found.report.findings, str(found.report)
    assert is_close(found.outputs[0], x, name)
    (counts,) = found.report.launches
    assert counts.blocks == 3 * cluster
    if name != "cross_entropy":
        assert counts.loaded == {0: x.nbytes}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", USED_AFTERWARDS)
def test_rows_in_registers_of_a_cluster(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, 2, 256)


@pytest.mark.parametrize(("cluster", "dtype"), [(2, torch.bfloat16), (4, torch.float32), (8, torch.float32)])
@pytest.mark.parametrize("name", USED_AFTERWARDS)
def test_rows_in_shared_memory_of_a_cluster(name: str, cluster: int, dtype: torch.dtype) -> None:
    check(name, dtype, cluster, 32, "shared")


@pytest.mark.parametrize("cluster", [2, 4])
@pytest.mark.parametrize("name", ["logsumexp", "cross_entropy", "argmax", "variance"])
def test_results_of_a_cluster_are_written_once(name: str, cluster: int) -> None:
    check(name, torch.float32, cluster, 64, "shared" if name == "variance" else "registers")


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_exactly_the_same_numbers(name: str) -> None:
    """The tile level equals the loop level in the exact domain."""
    program = lowered(name, rows(2, 100), 8, cluster=4, cache_rows="shared")
    x = [to_numpy(rows(2, 100))]
    wanted, found = (run(m, x, domain="exact")[0] for m in (program.loops, program.tiles))
    assert (wanted == found).all()


def test_the_printed_programs_of_clusters() -> None:
    x = rows(3, 500)
    cases = [(n, {"cluster": 4, "cache_rows": "shared"}) for n in USED_AFTERWARDS] + [("logsumexp", {"cluster": 2})]
    kernels = [lowered(name, x, 32, **decisions).kernel for name, decisions in cases]
    texts = [print_cuda(k) for k in kernels]
    for (name, _), kernel, text, built in zip(cases, kernels, texts, compile_many(texts), strict=True):
        outputs, reports = EmulatedProgram(text, make_plan(kernel), built).run([to_numpy(x)], (0, 1))
        assert not reports, str(reports[0])
        assert is_close(outputs[0], x, name)


@cache
def softmax() -> Lowered:
    return lowered("softmax", rows(3, 500), 64, cluster=4, cache_rows="shared")


def own_part(text: str) -> str:
    """Plants a bug: each block continues with its own sum instead of the cluster's."""
    own = re.search(r"tile\.cluster_allgather %\w+, (%\w+)", text)
    assert own is not None
    return re.sub(r"tile\.reduce add %\w+ over \[0\] : tensor<4xf32.*", f"arith.addf {own[1]}, %1 : f32", text)


def replaced(old: str, new: str, which: int = 0) -> Callable[[str], str]:
    """Returns a function that replaces match number `which` of `old` in a text."""

    def edit(text: str) -> str:
        match = [*re.finditer(old, text)][which]
        return text[: match.start()] + match.expand(new) + text[match.end() :]

    return edit


IN_TILES = {
    "parts are not combined": own_part,
    "a part without its frame": replaced(
        r"arith\.mulf (%\w+), %\w+ : tensor<4xf32", r"arith.mulf \1, \1 : tensor<4xf32"
    ),
    "another part in its place": replaced(r"tile\.cluster_allgather (%\w+), %\w+", r"tile.cluster_allgather \1, \1"),
    "blocks side by side, loads alone": replaced(r"(%k\w*) \* 256 \+ %rank \* 64", r"\1 * 64 + %rank * 128"),
    "a tile kept in another place": replaced(
        r"tile\.row_buffer_store (%\w+), %x_row\[%k\w*\]", r"tile.row_buffer_store \1, %x_row[%c0]", 1
    ),
    "a tile read from another place": replaced(
        r"tile\.row_buffer_load %x_row\[%j\]", "tile.row_buffer_load %x_row[%c0]"
    ),
}
IN_THE_KERNEL = {
    "no barrier before peers are read": replaced(r"kernel\.cluster_barrier\n", "\n"),
    "no barrier before the end": replaced(r"kernel\.cluster_barrier\n", "\n", 1),
    "a barrier of the block alone": replaced(r"kernel\.cluster_barrier", "kernel.barrier"),
    "every peer is the first": replaced(r"kernel\.mapa (%\w+) of %\w+", r"kernel.mapa \1 of %8", 1),
    "every peer is the block itself": replaced(r"kernel\.mapa (%\w+) of %\w+", r"kernel.mapa \1 of %rank"),
    "a rank that no block has": replaced(r"kernel\.mapa (%\w+) of %\w+", r"kernel.mapa \1 of %lane"),
    "a slot for two places": replaced(r"kernel\.subview %x_row\[%\w+\]", "kernel.subview %x_row[%8]", 2),
    "both parts in one place": replaced(
        r"(kernel\.store %\w+, )(%\w+)(\[%\w+\] if %first_2 .*\n *kernel\.store %\w+, )%\w+\[", r"\1\2\3\2["
    ),
}


def objection(tiles: ModuleOp | None, kernel: ModuleOp) -> str | None:
    """Returns the first error or report about a program, `numbers` for a wrong result, or None if it is right."""
    x = rows(3, 500)
    try:
        if tiles is not None and not is_close(run(tiles, [to_numpy(x)])[0], x, "softmax"):
            return "numbers"
        found = simulate(kernel, [to_numpy(x)])
    except DeplodockError as error:
        return str(error)
    if found.report.findings:
        return str(found.report.findings[0])
    if not is_close(found.outputs[0], x, "softmax"):
        return "numbers"
    _, reports = run_cuda_on_cpu(print_cuda(kernel), make_plan(kernel), [to_numpy(x)], (0,))
    return str(reports[0]) if reports else None


def test_nobody_objects_without_mistakes() -> None:
    assert objection(softmax().tiles, softmax().kernel) is None


@pytest.mark.parametrize("mistake", IN_TILES)
def test_a_mistake_in_tiles_is_found(mistake: str) -> None:
    text = print_module(softmax().tiles)
    edited = IN_TILES[mistake](text)
    assert edited != text
    tiles = parse_module(make_context(), edited, "tiles.mlir")
    kernel = tiles.clone()
    run_passes(make_context(), kernel, parse_passes("tile-to-kernel"))
    assert objection(tiles, kernel) is not None
    assert objection(None, kernel) is not None


@pytest.mark.parametrize("mistake", IN_THE_KERNEL)
def test_a_mistake_in_a_kernel_is_found(mistake: str) -> None:
    text = print_module(softmax().kernel)
    edited = IN_THE_KERNEL[mistake](text)
    assert edited != text
    assert objection(None, parse_module(make_context(), edited, "kernel.mlir")) is not None


IN_CUDA = {
    "no barrier before peers are read": replaced(r"  cluster_barrier\(\);", ""),
    "no barrier before the end": replaced(r"  cluster_barrier\(\);", "", 1),
    "a barrier of the block alone": replaced(r"  cluster_barrier\(\);", "  __syncthreads();"),
    "every peer is the first": replaced(r"cluster_peer\((\w+), \w+\);", r"cluster_peer(\1, 0);"),
}


def test_a_mistake_in_the_printed_program_is_found() -> None:
    x, text, plan = rows(3, 500), print_cuda(softmax().kernel), make_plan(softmax().kernel)
    texts = [edit(text) for edit in IN_CUDA.values()]
    assert text not in texts
    for mistake, edited, built in zip(IN_CUDA, texts, compile_many(texts), strict=True):
        outputs, reports = EmulatedProgram(edited, plan, built).run([to_numpy(x)], (0, 1, 7))
        assert reports or not is_close(outputs[0], x, "softmax"), mistake


@pytest.mark.parametrize(
    ("name", "target", "decisions", "why"),
    [
        ("softmax", "sm_80", {"cluster": 2}, "sm_80 has no clusters of blocks"),
        ("softmax", "sm_90a", {"cluster": 8, "chunk": [128, 128]}, "no reduction has 8 chunks"),
        ("argmax", "sm_90a", {"cluster": 2, "split_k": 2}, "not divided, ordered or kept any further"),
        ("argmax", "sm_90a", {"cluster": 2, "num_ctas": 2}, "not divided, ordered or kept any further"),
    ],
)
def test_what_a_cluster_cannot_share_is_refused(name: str, target: str, decisions: dict[str, object], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        lowered(name, rows(3, 500), 64, target, **decisions)


@pytest.mark.parametrize(
    ("name", "count", "length", "dtype", "target", "cluster", "row"),
    [
        ("softmax", 1024, 32768, torch.float32, "sm_90a", 2, "registers"),
        ("softmax", 1024, 50000, torch.float32, "sm_90a", 4, "shared"),
        ("layer_norm", 64, 65536, torch.bfloat16, "sm_80", 1, "shared"),
        ("log_softmax", 64, 131072, torch.float32, "sm_90a", 8, "registers"),
        ("rms_norm", 64, 200000, torch.bfloat16, "sm_120", 4, "registers"),
        ("layer_norm", 64, 262144, torch.float32, "sm_120", 8, "registers"),
        ("logsumexp", 64, 131072, torch.float32, "sm_90a", 4, "registers"),
        ("softmax", 64, 131072, torch.float32, "sm_89", 1, "registers"),
    ],
)
def test_where_long_rows_are_kept(
    name: str, count: int, length: int, dtype: torch.dtype, target: str, cluster: int, row: str
) -> None:
    """The planner's choice passes the static gates: no spills, and only the bytes that the model predicts."""
    x = torch.zeros(count, length, dtype=dtype)  # nothing here depends on values
    kernels = list(static_gates.kernels(capture(FUNCTIONS[name], (x,)), [x], target))
    assert (kernels[0].schedule.data.cluster, kernels[0].schedule.data.cache_rows) == (cluster, row)
    for k in kernels:
        narrow = ("STG of 32 bits at most", "stored in narrower") if name == "logsumexp" else ()  # one number a row
        assert [why for why in static_gates.check(k) if not any(n in why for n in narrow)] == []


def test_few_long_rows_are_one_kernel() -> None:
    """Clusters make enough blocks from a few rows, so one kernel reads each row once."""
    module = capture(FUNCTIONS["softmax"], (rows(16, 131072),)).module
    found = Compilation(module, "sm_90a").at("tile")
    assert sum(isinstance(op, tile.KernelOp) for op in found.ops) == 1
