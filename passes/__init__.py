"""The passes, and the table that maps their names to modules, so that only the passes in use are imported.

- Each level has a folder; `convert/` has the passes from one level to the next. The pass `tile-select-mma` is in
  `tile/select_mma.py`, and its FileCheck test in `tests/filecheck/passes/tile/select_mma.mlir`. `cse` and `dce` work at
  every level and are in `rewriting.py`.
- `analysis/` has the analyses that several passes share. `planning/` chooses the schedules.
- To add a pass, add a line to `OWN_PASSES`.

No pass imports another pass. A folder imports itself, `analysis/` and the files directly in `passes/`. In addition, a
conversion imports helpers of the level that it starts from, and fusion imports the cost model of `planning/`.
"""

from __future__ import annotations

OWN_PASSES = {
    "cse": ".rewriting:CommonSubexpressionElimination",
    "dce": ".rewriting:DeadCodeElimination",
    "verify-level": ".verify_level:VerifyLevelPass",
    "torch-outline-layers": ".torch.outline_layers:OutlineLayersPass",
    "tensor-emulate-float8": ".tensor.emulate_float8:EmulateFloat8Pass",
    "tensor-plan-fusion": ".tensor.plan_fusion:PlanFusionPass",
    "loop-collapse-dimensions": ".loop.collapse_dimensions:CollapseDimensionsPass",
    "loop-fuse-reductions": ".loop.fuse_reductions:FuseReductionsPass",
    "loop-fuse-siblings": ".loop.fuse_siblings:FuseSiblingsPass",
    "loop-hoist-reduction-factors": ".loop.hoist_reduction_factors:HoistReductionFactorsPass",
    "loop-pack-operands": ".loop.pack_operands:PackOperandsPass",
    "loop-remove-guards": ".loop.remove_guards:RemoveGuardsPass",
    "loop-split-dimensions": ".loop.split_dimensions:SplitDimensionsPass",
    "loop-separate-masks": ".loop.separate_masks:SeparateMasksPass",
    "loop-split-f32-operands": ".loop.split_f32_operands:SplitF32OperandsPass",
    "loop-unfold-operands": ".loop.unfold_operands:UnfoldOperandsPass",
    "loop-split-k": ".loop.split_k:SplitKPass",
    "loop-use-fast-math": ".loop.use_fast_math:UseFastMathPass",
    "plan-unfolding": ".planning.cpu.plan_unfolding:PlanUnfoldingPass",
    "plan-schedules": ".planning.plan_schedules:PlanSchedulesPass",
    "tile-assign-layouts": ".tile.assign_layouts:AssignLayoutsPass",
    "tile-cache-rows": ".tile.cache_rows:CacheRowsPass",
    "tile-deduplicate-kernels": ".tile.deduplicate_kernels:DeduplicateKernelsPass",
    "tile-defer-lane-sums": ".tile.defer_lane_sums:DeferLaneSumsPass",
    "tile-delay-dots": ".tile.delay_dots:DelayDotsPass",
    "tile-fuse-fma": ".tile.fuse_fma:FuseFmaPass",
    "tile-persistent-blocks": ".tile.persistent_blocks:PersistentBlocksPass",
    "tile-pipeline-dots": ".tile.pipeline_dots:PipelineDotsPass",
    "tile-pipeline-loads": ".tile.pipeline_loads:PipelineLoadsPass",
    "tile-print-values": ".tile.print_values:PrintTileValuesPass",
    "tile-promote-sums": ".tile.promote_sums:PromoteSumsPass",
    "tile-select-mma": ".tile.select_mma:SelectMmaPass",
    "tile-split-epilogue": ".tile.split_epilogue:SplitEpiloguePass",
    "tile-split-masked-loops": ".tile.split_masked_loops:SplitMaskedLoopsPass",
    "tile-stage-dot-operands": ".tile.stage_dot_operands:StageDotOperandsPass",
    "tile-swizzle-grid": ".tile.swizzle_grid:SwizzleGridPass",
    "tile-tma-epilogue": ".tile.tma_epilogue:TmaEpiloguePass",
    "tile-warp-specialize": ".tile.warp_specialize:WarpSpecializePass",
    "kernel-allocate-shared": ".kernel.allocate_shared:AllocateSharedPass",
    "kernel-insert-barriers": ".kernel.insert_barriers:InsertBarriersPass",
    "kernel-print-values": ".kernel.print_values:PrintRegistersPass",
    "host-horizontal-fusion": ".host.horizontal_fusion:HorizontalFusionPass",
    "host-inline-calls": ".host.inline_calls:InlineCallsPass",
    "host-mark-constants": ".host.mark_constants:MarkConstantsPass",
    "host-update-in-place": ".host.update_in_place:UpdateInPlacePass",
    "convert-loop-to-tile": ".convert.loop_to_tile:ConvertLoopToTilePass",
    "convert-tensor-to-loop": ".convert.tensor_to_loop:ConvertTensorToLoopPass",
    "convert-tile-to-kernel": ".convert.tile_to_kernel:ConvertTileToKernelPass",
    "convert-torch-to-tensor": ".convert.torch_to_tensor.conversion:ConvertTorchToTensorPass",
}
"""Passes of deplodock: name -> module and class, grouped by level."""

UPSTREAM_PASSES = {
    "apply-pdl": "xdsl.transforms.apply_pdl:ApplyPDLPass",
    "canonicalize": "xdsl.transforms.canonicalize:CanonicalizePass",
    "licm": "xdsl.transforms.loop_invariant_code_motion:LoopInvariantCodeMotionPass",
    "reconcile-unrealized-casts": "xdsl.transforms.reconcile_unrealized_casts:ReconcileUnrealizedCastsPass",
}
"""Passes of xDSL that work on our dialects without changes: name -> module and class."""


GROUPS = ("general", "torch", "tensor", "loop", "planning", "tile", "kernel", "host", "convert", "xDSL", "plugins")
"""Groups of passes, in the order of `dl-opt --list-passes`. Most are folders of `passes/`."""


def group_of(name: str) -> str:
    """Returns the group of a pass: the folder of its module, `general`, `xDSL` or `plugins`."""
    if name in UPSTREAM_PASSES:
        return "xDSL"
    if name not in OWN_PASSES:
        return "plugins"
    folder = OWN_PASSES[name].removeprefix(".").partition(":")[0].partition(".")[0]
    return folder if folder in GROUPS else "general"
