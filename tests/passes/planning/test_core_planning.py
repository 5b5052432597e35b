"""Schedules for the CPU and the predictions of its cost model, for a fixed CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.dialects import loop
from deplodock.dialects.tile.schedule import Schedule, ScheduleAttr
from deplodock.frontend.profile import predicted as predicted_profile
from deplodock.passes.planning.choose import Candidate, rank
from deplodock.passes.planning.cpu import plan_unfolding
from deplodock.passes.planning.model import Prediction, model_of
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.passes.tensor.fusion import search
from deplodock.target.architectures import CPU
from deplodock.target.attribute import get_target
from deplodock.target.host import costs_of
from deplodock.target.model import Core, Target


def nest_of(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> NestInfo:
    """Returns the only nest of a function of random tensors."""
    program = deplodock.compile(function, tuple(torch.randn(s) for s in shapes), target="cpu")
    (nest,) = (op for op in program.compilation.at("loop").walk() if isinstance(op, loop.NestOp))
    return NestInfo(nest)


def planned(info: NestInfo, target: Target = CPU) -> Candidate:
    """Returns the best schedule of a nest."""
    return rank(info, target)[0]


def predicted(info: NestInfo, **decisions: object) -> Prediction:
    """Returns the prediction for a schedule with these decisions."""
    return model_of(info, CPU).predict(ScheduleAttr(Schedule(warps=1, lanes=1, **decisions)))  # pyright: ignore[reportArgumentType]


def test_tiles_of_each_kind_of_nest() -> None:
    def decided(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Schedule:
        return planned(nest_of(function, *shapes)).schedule.data

    few = decided(lambda x: torch.softmax(x, -1), (32, 32, 32))
    assert few.chunk == (32, 32)
    assert few.block[1] > 1, "a block has several of the short rows"
    long = decided(lambda x: torch.softmax(x, -1), (2048, 1000))
    assert (long.block, long.chunk) == ((1, 1024), (1024, 1024)), "several rows that are no power of two are masked"
    turned = decided(lambda x: x.t().contiguous(), (2048, 2048)).block
    assert turned[0] >= turned[1] > 16, "what is read follows in memory for longer than what is written"
    row = decided(lambda x, w: x @ w, (1, 2048), (2048, 5632))
    assert row.chunk == (1,), "memory is read row by row"
    assert row.block[1] * 4 >= 4096, "and page by page"
    product = decided(lambda x, w: x @ w, (1024, 1024), (1024, 1024))
    assert prod(product.block) >= 4096, "and the sums stay there, too"
    assert product.chunk == (128,), "a panel leaves room in the nearest cache"
    rows = decided(lambda x, w: x @ w, (32, 3584), (3584, 3584))
    assert rows.pack == (0,), "few rows are copied, and the large matrix is read where it lies, by columns"


def test_where_pages_cost_tiles_have_long_rows() -> None:
    """A large matrix that is multiplied by few rows is read in long rows and not packed; a small one is packed.

    Reading columns of the large matrix would miss the TLB.
    """
    core = replace(CPU.core or Core(), costs=costs_of("Intel(R) Xeon(R) Processor, AVX-512"))
    large, small = (
        planned(nest_of(lambda x, w: x @ w, (32, depth), (depth, depth)), replace(CPU, core=core)).schedule.data
        for depth in (3584, 1024)
    )
    assert not large.pack
    assert large.block[1] >= 256
    assert small.pack == (0,)


def test_columns_are_read_from_as_many_places_as_a_core_reads_from_in_turn() -> None:
    info, core = nest_of(lambda x, w: x @ w, (1, 4096), (4096, 4096)), CPU.core or Core()
    chunks = [planned(info, replace(CPU, core=replace(core, streams=n))).schedule.data.chunk for n in (1, 4, 8)]
    assert chunks == [(1,), (4,), (8,)]


def test_blocks_that_a_mask_excludes_count() -> None:
    def ratio(causal: bool) -> float:
        shapes = [(1, 4, 512, 64)] * 3
        info = nest_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), *shapes)
        batch = (1,) * (len(info.free) - 2)
        small, large = (predicted(info, block=(*batch, n, 64), chunk=(n, 64) * 3).times.compute for n in (64, 256))
        return small / large

    assert ratio(causal=True) < 0.8 * ratio(causal=False)


def test_operands_are_copied_before_where_many_blocks_need_them() -> None:
    """Weights of a convolution are packed for its matmuls, and the time of the packing kernel counts."""
    info = nest_of(lambda x, w: F.conv2d(x, w, padding=1), (1, 64, 56, 56), (64, 64, 3, 3))
    best = planned(info)
    assert best.schedule.data.pack
    assert best.prediction is not None
    assert best.prediction.combine > 0
    card = get_target("sm_90a")
    plain = planned(info, card).schedule
    before, after = (model_of(info, card).predict(s).seconds for s in (plain, plain.changed(pack=[1])))
    assert after > before + card.rates.gap, "it counts on every target"
    few = nest_of(lambda x, w: x @ w, (32, 2048), (2048, 32))
    assert not planned(few).schedule.data.pack, "nothing is read more than once"


@pytest.mark.parametrize(("side", "stride"), [(7, 1), (7, 2), (5, 1)])
def test_windows_and_pixels_are_no_matrix_together(side: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk has one element of the window, and a tile pixels of one row.

    Several of both would share the bounds of the image, and would be loaded element by element.
    """
    monkeypatch.setattr(plan_unfolding, "MIN_UNFOLDING_SPEEDUP", float("inf"))
    shapes = (1, 256, side * stride, side * stride), (256, 256, 3, 3)
    info = nest_of(lambda x, w: F.conv2d(x, w, padding=1, stride=stride), *shapes)
    best = planned(info).schedule.data
    assert best.chunk[0] >= 64, "the sum goes along channels"
    assert best.chunk[1:] == (1, 1), "for one element of the window at a time"
    assert best.block[2:] == (1, 8), "for pixels of one row"


def test_tiles_of_small_images_have_rows_of_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile runs along a row of pixels, although the batch is longer: images of the batch are far apart in memory."""
    monkeypatch.setattr(plan_unfolding, "MIN_UNFOLDING_SPEEDUP", 1e9)
    info = nest_of(lambda x, w: F.conv2d(x, w, padding=1), (16, 256, 7, 7), (256, 256, 3, 3))
    assert planned(info).schedule.data.block == (1, 32, 1, 8)
    near, far = (predicted(info, block=b, chunk=(256, 1, 1), pack=(1,)) for b in ((1, 32, 1, 8), (8, 32, 1, 1)))
    assert far.times.compute > 1.5 * near.times.compute


def test_what_windows_share_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_unfolding, "MIN_UNFOLDING_SPEEDUP", 1e9)
    close, apart = (
        predicted(
            nest_of(lambda x, w, d=d: F.conv2d(x, w, dilation=d), (1, 128, 64 + 2 * d, 64 + 2 * d), (128, 128, 3, 3)),
            block=(1, 32, 1, 32),
            chunk=(128, 1, 1),
            pack=(1,),
        ).seconds
        for d in (1, 16)
    )
    assert apart > 1.1 * close


def test_what_a_loop_around_it_computes_again_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that an inner loop recomputes in each iteration of an outer one count each time.

    Here they are the statistics of a pixel, in a loop over the channels.
    """
    monkeypatch.setattr(plan_unfolding, "MIN_UNFOLDING_SPEEDUP", 1e9)
    monkeypatch.setattr(search, "planned_seconds", lambda *_: 1.0)  # of few kernels, whatever they compute
    info = nest_of(_normalized_convolution, (1, 64, 14, 14), (128, 64, 2, 2))
    once, again = (predicted(info, block=(1, 64, 1, 1), chunk=(n, 1, 1, 64, 64)).times.compute for n in (64, 1))
    assert again > 1.5 * once


def test_computed_operands_are_loaded_for_their_own_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of a computed operand are loaded once, not once for each row of the other operand."""
    monkeypatch.setattr(plan_unfolding, "MIN_UNFOLDING_SPEEDUP", 1e9)
    monkeypatch.setattr(search, "planned_seconds", lambda *_: 1.0)  # of few kernels, whatever they compute
    info = nest_of(_normalized_convolution, (1, 64, 14, 14), (1024, 64, 2, 2))
    few, many = (predicted(info, block=(1, n, 1, 8), chunk=(64, 1, 1, 64, 64)).times.compute for n in (16, 128))
    assert many < 0.6 * few


def _normalized_convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution of images with a layer norm over the channels."""
    y = F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)
    return F.conv2d(y, w, stride=2).contiguous()


def test_rows_that_are_computed_while_the_next_are_read() -> None:
    info = nest_of(lambda x: torch.softmax(x, -1), (28, 2048, 2048))
    one, eight = (predicted(info, block=(1, n, 2048), chunk=(2048, 2048)).times.compute for n in (1, 8))
    assert eight > 1.1 * one
    small = nest_of(lambda x: torch.softmax(x, -1), (64, 128))
    one, eight = (predicted(small, block=(n, 128), chunk=(128, 128)).times.compute for n in (1, 8))
    assert eight < 1.1 * one, "what is in the caches need not be waited for"


def test_what_follows_in_memory_is_read_faster() -> None:
    columns = nest_of(lambda x: x.sum(0), (8192, 8192))
    whole, part = (
        predicted(columns, block=(n,), chunk=(1,), split_k=k).times.compute for n, k in ((8192, 4), (512, 1))
    )
    assert part > 1.2 * whole
    blocks = nest_of(lambda x: x + 1, (8192, 8192))
    one, four = (predicted(blocks, block=(1, n)).times.compute for n in (8192, 2048))
    assert four == pytest.approx(one, rel=0.05), "the next block goes on where the last has ended"


def test_lanes_of_strided_windows_are_columns() -> None:
    """A depthwise convolution with stride 2 reads every other pixel of a row, by two loads and a permutation."""
    weight = torch.randn(96, 1, 3, 3)
    info = nest_of(lambda x: F.conv2d(x, weight, None, 2, 1, 1, 96), (2, 96, 112, 112))
    best, other = planned(info), predicted(info, block=(1, 16, 1, 1), chunk=(1, 1, 4))
    assert best.schedule.data.block[-1] >= 16
    assert best.schedule.data.chunk[-1] == 1
    assert best.prediction is not None
    assert best.prediction.seconds < 0.7 * other.seconds


def test_few_elements_are_the_work_of_one_core() -> None:
    add = planned(nest_of(lambda x, y: x + y, (64, 64), (64, 64)))
    assert add.prediction is not None
    assert add.prediction.times.start == 0
    many = planned(nest_of(lambda x, y: x + y, (4096, 4096), (4096, 4096))).prediction
    assert many is not None
    assert many.times.start == CPU.rates.launch
    assert many.limit == "memory"


def test_kernels_of_programs_are_predicted() -> None:
    program = deplodock.compile(lambda x: x + 1, (torch.randn(4096, 4096),), target="cpu")
    profile = predicted_profile(program.compilation)
    assert "predicted for cpu" in profile.source
    assert [c.limit for c in profile.costs] == ["memory"]
    assert profile.seconds > 2 * 4096 * 4096 * 4 / get_target("cpu").rates.memory


def test_parts_of_rows_take_longer_than_rows_that_follow_one_another() -> None:
    info = nest_of(lambda x: x.sum(1), (512, 8192))
    rows, parts = (predicted(info, block=(8,), chunk=(n,)).times.compute for n in (8192, 64))
    assert parts > 2 * rows


def test_blocks_share_what_each_computes_again() -> None:
    """Of schedules with the same memory time, the one with the least recomputation is chosen."""
    norm = torch.nn.RMSNorm(896)
    best = planned(nest_of(lambda x, w: F.linear(norm(x), w), (1, 896), (65536, 896)))
    assert best.schedule.data.block[-1] >= 64


def test_rows_that_end_inside_of_a_tile_take_longer() -> None:
    info = nest_of(lambda x: torch.softmax(x, -1), (2048, 1000))
    one, two = (predicted(info, block=(n, 1024), chunk=(1024, 1024)).times.compute for n in (1, 2))
    assert two > 1.1 * one


def test_shorter_vectors_take_longer() -> None:
    info = nest_of(lambda x, w: x @ w, (256, 256), (256, 256))
    narrow = replace(CPU, core=Core(lanes=8, registers=16, tile_rows=6))
    wide, half = planned(info).prediction, planned(info, narrow).prediction
    assert wide is not None
    assert half is not None
    assert half.seconds == pytest.approx(wide.seconds, rel=0.5), "the rate of multiply-adds is that of the record"
    assert planned(info, replace(CPU, rates=replace(CPU.rates, fma=2e11))).prediction.seconds > wide.seconds  # pyright: ignore[reportOptionalMemberAccess]
