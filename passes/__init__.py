"""The passes, and the registry that finds them by name without importing them.

A pass called `fuse-nests` lives in `passes/fuse_nests.py` and its FileCheck test in
`tests/filecheck/passes/fuse-nests.mlir`; adding one means adding its line to `OWN_PASSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from xdsl.passes import ModulePass

from ..plugins import plugins

ENTRY_POINT_GROUP = "deplodock.passes"
"""Entry points of this group, each naming a `ModulePass` class, are third-party passes."""

# One line a pass, sorted by name.
OWN_PASSES = {
    "allocate-shared": ".allocate_shared:AllocateSharedPass",
    "base-two-exponentials": ".base_two_exponentials:BaseTwoExponentialsPass",
    "chain-products": ".chain_products:ChainProductsPass",
    "check-border": ".check_border:CheckBorderPass",
    "cse": ".cse:CommonSubexpressionElimination",
    "decompose-torch": ".decompose_torch:DecomposeTorchPass",
    "fill-product-waits": ".fill_product_waits:FillProductWaitsPass",
    "float8-as-bits": ".float8_as_bits:Float8AsBitsPass",
    "fold-index-arithmetic": ".fold_index_arithmetic:FoldIndexArithmeticPass",
    "hoist-invariant-factors": ".hoist_invariant_factors:HoistInvariantFactorsPass",
    "inline-calls": ".inline_calls:InlineCallsPass",
    "invert-sums-once": ".invert_sums_once:InvertSumsOncePass",
    "lower-loop-to-tile": ".lower_loop_to_tile:LowerLoopToTilePass",
    "lower-tensor-to-loop": ".lower_tensor_to_loop:LowerTensorToLoopPass",
    "lower-tile-to-kernel": ".lower_tile_to_kernel:LowerTileToKernelPass",
    "merge-equal-kernels": ".merge_equal_kernels:MergeEqualKernelsPass",
    "merge-reductions": ".merge_reductions:MergeReductionsPass",
    "merge-sibling-nests": ".merge_sibling_nests:MergeSiblingNestsPass",
    "outline-layers": ".outline_layers:OutlineLayersPass",
    "overlap-products": ".overlap_products:OverlapProductsPass",
    "overwrite-zero-sums": ".overwrite_zero_sums:OverwriteZeroSumsPass",
    "place-barriers": ".place_barriers:PlaceBarriersPass",
    "plan-fusion": ".plan_fusion:PlanFusionPass",
    "plan-schedules": ".plan_schedules:PlanSchedulesPass",
    "share-launches": ".share_launches:ShareLaunchesPass",
    "simplify-index-maps": ".simplify_index_maps:SimplifyIndexMapsPass",
    "split-dimensions": ".split_dimensions:SplitDimensionsPass",
    "split-reductions": ".split_reductions:SplitReductionsPass",
    "split-wide-factors": ".split_wide_factors:SplitWideFactorsPass",
    "tile-assign-layouts": ".tile_assign_layouts:TileAssignLayoutsPass",
    "tile-choose-atoms": ".tile_choose_atoms:TileChooseAtomsPass",
    "tile-order-blocks": ".tile_order_blocks:TileOrderBlocksPass",
    "tile-persist-blocks": ".tile_persist_blocks:TilePersistBlocksPass",
    "tile-pipeline-loads": ".tile_pipeline_loads:TilePipelineLoadsPass",
    "tile-recognize-contractions": ".tile_recognize_contractions:TileRecognizeContractionsPass",
    "tile-specialize-warps": ".tile_specialize_warps:TileSpecializeWarpsPass",
    "tile-split-masked-loops": ".tile_split_masked_loops:TileSplitMaskedLoopsPass",
    "tile-split-stores": ".tile_split_stores:TileSplitStoresPass",
    "tile-stage-operands": ".tile_stage_operands:TileStageOperandsPass",
    "tile-stage-outputs": ".tile_stage_outputs:TileStageOutputsPass",
    "tile-stage-rows": ".tile_stage_rows:TileStageRowsPass",
    "update-in-place": ".update_in_place:UpdateInPlacePass",
}
"""Our passes: name -> module and class."""

UPSTREAM_PASSES = {
    "apply-pdl": "xdsl.transforms.apply_pdl:ApplyPDLPass",
    "canonicalize": "xdsl.transforms.canonicalize:CanonicalizePass",
    "dce": "xdsl.transforms.dead_code_elimination:DeadCodeElimination",
    "licm": "xdsl.transforms.loop_invariant_code_motion:LoopInvariantCodeMotionPass",
    "reconcile-unrealized-casts": "xdsl.transforms.reconcile_unrealized_casts:ReconcileUnrealizedCastsPass",
}
"""The passes of xDSL that are right on our dialects as they are."""


def _load_pass(reference: str) -> type[ModulePass]:
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module, __name__), attribute)


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Every pass that the tools know, by name, as a function that imports it.

    A third-party pass may not take a name that is already in use: PluginError.
    """
    references = {**OWN_PASSES, **UPSTREAM_PASSES}
    found: dict[str, Callable[[], type[ModulePass]]] = {
        name: partial(_load_pass, reference) for name, reference in references.items()
    }
    return dict(sorted((found | plugins(ENTRY_POINT_GROUP, found, "pass")).items()))
