"""One term for one thing: names that were replaced by terms of the field must not return.

To ban a name, add a pair to a table. `NAMES` are searched in every text of the repository, so they must have no other
meaning. `FIELDS` may be English words: they are searched in operands, properties, results, regions and formats of our
operations, and in options of our passes.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from support import ROOT
from xdsl.irdl import IRDLOperation

from deplodock.dialects import OWN_DIALECTS, get_all_dialects
from deplodock.passes import OWN_PASSES
from deplodock.passes.pipelines import get_all_passes

NAMES = {
    "tensor.fold": "tensor.scan",
    "payload.join": "payload.combine_bf16x3",
    "tile.stage_box": "tile.tma_load",
    "tile.store_box": "tile.tma_store",
    "tile.put": "tile.producer_load",
    "tile.take": "tile.consumer_wait",
    "tile.release": "tile.consumer_release",
    "tile.roles": "tile.warp_specialize",
    "tile.row": "tile.row_buffer",
    "tile.keep": "tile.row_buffer_store",
    "tile.kept": "tile.row_buffer_load",
    "tile.peers": "tile.cluster_allgather",
    "kernel.fold": "kernel.reduce_registers",
    "kernel.pick": "kernel.shuffle_registers",
    "kernel.renumber": "kernel.permute_registers",
    "kernel.peer": "kernel.mapa",
    "kernel.slot": "kernel.subview",
    "kernel.roles": "kernel.warp_specialize",
    "kernel.pending": "kernel.async_accumulators",
    "kernel.wgmma_start": "kernel.accumulators",
    "kernel.wgmma_resume": "kernel.accumulators",
    "FoldOp": "ScanOp, ReduceRegistersOp",
    "PickOp": "ShuffleRegistersOp",
    "RenumberOp": "PermuteRegistersOp",
    "PeerOp": "MapaOp",
    "PeersOp": "ClusterAllGatherOp",
    "SlotOp": "SubviewOp",
    "RolesOp": "WarpSpecializeOp",
    "StageBoxOp": "TmaLoadOp",
    "StoreBoxOp": "TmaStoreOp",
    "KeepOp": "RowBufferStoreOp",
    "KeptOp": "RowBufferLoadOp",
    "JoinOp": "CombineBf16x3Op",
    "PendingType": "AsyncAccumulatorsType",
    "WgmmaStartOp": "AccumulatorsOp",
    "WgmmaResumeOp": "AccumulatorsOp",
    "lhs_place": "lhs_offset",
    "rhs_place": "rhs_offset",
    "role_of": "partition_of",
    "Facts": "NestInfo",
    "may_be_boxes": "loads_by_tma",
    "in_patches": "with_grid_swizzle",
    "stored_plans": "presplit_plans",
    "few_plans": "skinny_plans",
    "find_products": "find_matmuls",
    "stored_parts": "bf16x3_presplit",
    "check-border": "verify-level",
    "outline-layers": "torch-outline-layers",
    "decompose-torch": "convert-torch-to-tensor",
    "float8-as-bits": "tensor-emulate-float8",
    "simplify-index-maps": "tensor-simplify-index-maps",
    "plan-fusion": "tensor-plan-fusion",
    "lower-tensor-to-loop": "convert-tensor-to-loop",
    "merge-sibling-nests": "loop-fuse-siblings",
    "hoist-invariant-factors": "loop-hoist-reduction-factors",
    "invert-sums-once": "loop-use-fast-math",
    "base-two-exponentials": "loop-use-fast-math",
    "merge-reductions": "loop-fuse-reductions",
    "split-wide-factors": "loop-split-f32-operands",
    "split-reductions": "loop-split-k",
    "lower-loop-to-tile": "convert-loop-to-tile",
    "tile-order-blocks": "tile-swizzle-grid",
    "tile-persist-blocks": "tile-persistent-blocks",
    "merge-equal-kernels": "tile-deduplicate-kernels",
    "tile-stage-rows": "tile-cache-rows",
    "tile-choose-atoms": "tile-select-mma",
    "tile-stage-operands": "tile-stage-dot-operands",
    "tile-split-stores": "tile-split-epilogue",
    "tile-stage-outputs": "tile-tma-epilogue",
    "tile-specialize-warps": "tile-warp-specialize",
    "lower-tile-to-kernel": "convert-tile-to-kernel",
    "chain-products": "tile-pipeline-dots",
    "overlap-products": "tile-pipeline-dots",
    "overwrite-zero-sums": "tile-pipeline-dots",
    "fill-product-waits": "tile-pipeline-dots",
    "allocate-shared": "kernel-allocate-shared",
    "place-barriers": "kernel-insert-barriers",
    "share-launches": "host-horizontal-fusion",
}
"""Old name -> the term for it, of operations, types, classes, functions and passes."""

FIELDS = {
    "apart": "warp_group_private",
    "flips": "lane_xor",
    "fresh": "scale_d_zero",
    "loose": "reassoc",
    "moves": "reg_xor",
    "panel": "leading_offset",
    "role": "partition",
    "roles": "partitions",
    "slices": "k_steps",
    "together": "multicast",
    "transport": "rescale",
}
"""Old word -> the term for it, in the fields of operations and the options of passes."""

OPTIONS = {
    "group": "group_m",
    "k": "chunk",
    "narrow": "f32_matmul_precision",
    "persistent": "num_ctas",
    "row": "cache_rows",
}
"""Old word -> the term for it, in the options of passes alone."""


def _texts() -> dict[str, str]:
    names = subprocess.run(
        ["git", "ls-files", "*.py", "*.mlir", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    here = Path(__file__).relative_to(ROOT).as_posix()
    return {n: (ROOT / n).read_text(encoding="utf-8") for n in names if n != here}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return _texts()


@pytest.mark.parametrize("old", NAMES)
def test_name(old: str, texts: dict[str, str]) -> None:
    pattern = re.compile(rf"(?:(?<![\w/.-])|(?<=\\n)){re.escape(old)}(?!\w)")
    places = [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
        for name, text in texts.items()
        if old in text  # Much faster than the pattern, which begins with a look-behind.
        for found in pattern.finditer(text)
    ]
    assert not places, f"{old} is called {NAMES[old]}"


def _operations() -> list[type[IRDLOperation]]:
    found = [op for name in OWN_DIALECTS if name != "torch" for op in get_all_dialects()[name]().operations]
    return [op for op in found if issubclass(op, IRDLOperation)]


def test_fields_of_operations() -> None:
    for op in _operations():
        definition = op.get_irdl_definition()
        parts = (definition.operands, definition.results, definition.regions)
        names = {n for part in parts for n, _ in part} | definition.properties.keys() | definition.attributes.keys()
        words = re.findall(r"`(\w+)`", definition.assembly_format or "")
        old = FIELDS.keys() & {*names, *words}
        assert not old, f"{op.name}: {[f'{o} is called {FIELDS[o]}' for o in sorted(old)]}"


def test_options_of_passes() -> None:
    for name in OWN_PASSES:
        terms = FIELDS | OPTIONS
        old = terms.keys() & {f.name for f in fields(get_all_passes()[name]())}
        assert not old, f"{name}: {[f'{o} is called {terms[o]}' for o in sorted(old)]}"
