"""The race detector of the simulator: `simulate(races=True)`."""

from __future__ import annotations

import numpy as np
import pytest

from deplodock.backend.check_each import input_types, make_inputs
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import ExecutionError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

KERNEL = """
kernel.func @k0(%x: memref<64xf32>, %y: memref<64xf32>) grid [1] warps 2 shared 256 {{
  %thread = kernel.id thread
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  %4 = payload.constant 4 : index
  %63 = payload.constant 63 : index
  %other = arith.subi %63, %thread : index
  %is0 = payload.cmp eq %thread, %0 : index
  %is63 = payload.cmp eq %thread, %63 : index
  %s = kernel.shared at 0 : memref<64xf32, "shared">
  %v = kernel.load %x[%thread] : memref<64xf32> -> vector<1xf32>
  {body}
  kernel.store %v, %y[%thread] : memref<64xf32>, vector<1xf32>
}}
func.func @main(%x: memref<64xf32>, %y: memref<64xf32>) {{
  kernel.launch @k0(%x, %y) : memref<64xf32>, memref<64xf32>
  func.return
}}
"""

STORE = 'kernel.store %v, %s[%thread] : memref<64xf32, "shared">, vector<1xf32>'
LOAD = '%w{} = kernel.load %s[{}] : memref<64xf32, "shared"> -> vector<1xf32>'
OWN, MIRRORED, FIRST = LOAD.format(0, "%thread"), LOAD.format(1, "%other"), LOAD.format(2, "%0")
ONE_STORE = 'kernel.store %v, %s[%0] if {} : memref<64xf32, "shared">, vector<1xf32>'
BARRIER = "kernel.barrier"
LOOP = "scf.for %i = %0 to %4 step %1 {{ {} }}"


def _races(*body: str) -> list[str]:
    module = parse_module(make_context(), KERNEL.format(body="\n".join(body)), "kernel")
    _, report = simulate(module, make_inputs(input_types(module)), races=True)
    assert {f.kind for f in report.findings} <= {"race"}
    return [f.message for f in report.findings]


@pytest.mark.parametrize(
    "body",
    [
        (STORE, OWN),
        (STORE, BARRIER, MIRRORED),
        (STORE, BARRIER, MIRRORED, FIRST),
        (STORE, BARRIER, FIRST, BARRIER, ONE_STORE.format("%is63")),
        (LOOP.format("\n".join((STORE, BARRIER, MIRRORED, BARRIER))),),
        (LOOP.format("\n".join((STORE, OWN))),),
    ],
)
def test_ordered_accesses_do_not_race(body: tuple[str, ...]) -> None:
    assert not _races(*body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ((STORE, MIRRORED), "thread 0 of block 0 reads byte 252 of shared memory, and thread 63 writes it at kernel:"),
        ((STORE, BARRIER, FIRST, ONE_STORE.format("%is63")), "thread 63 of block 0 writes byte 0 of shared memory"),
        ((STORE, BARRIER, FIRST, ONE_STORE.format("%is0")), "thread 0 of block 0 writes byte 0 of shared memory"),
        ((STORE, ONE_STORE.format("%is63")), "writes byte 0 of shared memory, and thread 0 writes it"),
        ((LOOP.format("\n".join((STORE, BARRIER, MIRRORED))),), "thread 0 of block 0 writes byte 0"),
    ],
)
def test_races_are_reported_with_both_threads(body: tuple[str, ...], text: str) -> None:
    (message,) = _races(*body)
    assert text in message


TILES = """
#tile = #tile.layout<reg = [[0, 1]], lane = [[0, 2], [0, 4], [0, 8], [0, 16], [0, 32]], warp = [[0, 64]]>
#sums = #tile.layout<reg = [], lane = [[0], [0], [0], [0], [0]], warp = [[0]]>
tile.kernel @k0(%x: memref<1x128xf32>, %y: memref<1xf32>) blocks () in [] warps 2 {
  %0 = tile.load %x[d0, d1] : memref<1x128xf32> -> tensor<1x128xf32, #tile>
  %1 = tile.reduce add %0 over [1] : tensor<1x128xf32, #tile> -> tensor<1xf32, #sums>
  tile.store %1, %y[d0] : tensor<1xf32, #sums>, memref<1xf32>
}
func.func @main(%x: tensor<1x128xf32>) -> tensor<1xf32> {
  %0 = tile.launch @k0(%x) : (tensor<1x128xf32>) -> tensor<1xf32>
  func.return %0 : tensor<1xf32>
}
"""


def test_the_pass_that_inserts_barriers_removes_the_races() -> None:
    module = parse_module(make_context(), TILES, "tiles")
    inputs = [np.ones((1, 128), np.float32)]
    run_passes(make_context(), module, parse_passes("convert-tile-to-kernel,kernel-allocate-shared"))
    assert [f.kind for f in simulate(module, inputs, races=True).report.findings] == ["race"]
    assert not simulate(module, inputs).report.findings
    run_passes(make_context(), module, parse_passes("kernel-insert-barriers"))
    assert not simulate(module, inputs, races=True).report.findings


def test_asynchronous_kernels_are_refused() -> None:
    copy = 'kernel.cp_async %x[%thread] to %s[%thread] : memref<64xf32>, memref<64xf32, "shared">'
    with pytest.raises(ExecutionError, match="use the emulator"):
        _races(copy, "kernel.async_commit", "kernel.async_wait 0")
