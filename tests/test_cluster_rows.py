"""Rows that the blocks of a cluster share: right in every executor, each byte read once, and mistakes found."""

from __future__ import annotations

import pytest
import torch
from row_programs import is_close, lowered, rows

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.frontend.arrays import to_numpy

USED_AFTERWARDS = ("softmax", "log_softmax", "rms_norm", "layer_norm")


def check(name: str, dtype: torch.dtype, cluster: int, length: int, row: str = "registers") -> None:
    x = rows(3, 500, dtype)
    program = lowered(name, x, length, cluster=cluster, row=row, warps=min(2, length // 32))
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
    """In the domain in which every order of a sum gives the same bits."""
    program = lowered(name, rows(2, 100), 8, cluster=4, row="shared")
    x = [to_numpy(rows(2, 100))]
    wanted, found = (run(m, x, domain="exact")[0] for m in (program.loops, program.tiles))
    assert (wanted == found).all()


def test_the_printed_programs_of_clusters() -> None:
    x = rows(3, 500)
    cases = [(n, {"cluster": 4, "row": "shared"}) for n in USED_AFTERWARDS] + [("logsumexp", {"cluster": 2})]
    kernels = [lowered(name, x, 32, **decisions).kernel for name, decisions in cases]
    texts = [print_cuda(k) for k in kernels]
    for (name, _), kernel, text, built in zip(cases, kernels, texts, compile_many(texts), strict=True):
        outputs, reports = EmulatedProgram(text, make_plan(kernel), built).run([to_numpy(x)], (0, 1))
        assert not reports, str(reports[0])
        assert is_close(outputs[0], x, name)
