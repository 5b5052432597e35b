"""The programs in which bugs are planted. They are small, have odd sizes, and cover every kind of kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.host.launch_plan import LaunchPlan, make_plan
from deplodock.dialects import loop
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.captured_program import CapturedProgram
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import LEVELS, Compilation

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Program:
    """A function with its inputs.

    `hard` turns the inputs into difficult ones, with infinities, NaN and large values. `schedule` replaces the planned
    schedule of the only nest.
    """

    function: Callable[..., torch.Tensor]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    hard: Callable[[list[Array]], list[Array]]
    schedule: ScheduleAttr | None = None


def masked_rows(inputs: list[Array]) -> list[Array]:
    """Gives the first input a row of large values, a row of small ones, a NaN, and a last row of -infinity."""
    first = inputs[0].copy()
    if first.dtype.kind in "iub":
        return inputs
    rows = first.reshape(-1, first.shape[-1])
    rows[0] *= 100
    rows[0, 7 % rows.shape[1]] = 3000
    if len(rows) > 3:
        rows[1] -= 1000
    if len(rows) > 2:
        rows[len(rows) // 2, -3] = np.nan
    rows[-1, : 17000 if rows.shape[1] > 17000 else None] = -np.inf
    return [first, *inputs[1:]]


def large(inputs: list[Array]) -> list[Array]:
    """Multiplies all inputs by ten, and makes the first rows of the first two (queries and keys) opposite.

    Values are multiples of 1/4, so that sums of products are exact in every order.
    """
    q, k, *rest = ((np.round(a.astype(np.float32) * 40) / 4).astype(a.dtype) for a in inputs)
    if q.shape == k.shape:
        k[..., 0, :] = -q[..., 0, :]
    return [q, k, *rest]


def _rising(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Returns a maker of rows with their maxima near the end, so that chunks have different reference values."""
    return lambda: (torch.randn(shape) + torch.linspace(0, 4, shape[-1]),)


def _growing(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Returns a maker of queries, keys and values. Later keys are longer, so row maxima change between chunks."""
    lengths = torch.linspace(0.2, 4, shape[-2])[:, None]
    return lambda: (torch.randn(shape), torch.randn(shape) * lengths, torch.randn(shape))


def _randn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(s).to(dtype) for s in shapes)


def _banded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    distance = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(distance >= -1) & (distance < 10))


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _whole(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a > b, a * 7 - b, torch.div(a, b.abs() + 2, rounding_mode="floor"))


def _numbers() -> tuple[torch.Tensor, ...]:
    return torch.randint(-50, 50, (7, 30)), torch.randint(-50, 50, (7, 30))


PROGRAMS: dict[str, Program] = {
    "softmax": Program(lambda x: torch.softmax(x, -1), _randn((5, 200)), masked_rows),
    "chunked softmax": Program(
        lambda x: torch.softmax(x, -1),
        _rising(4, 18000),
        masked_rows,
        ScheduleAttr.get([1, 4096], [16384, 16384], serial=[1], warps=32),
    ),
    "rms_norm": Program(lambda x, w: F.rms_norm(x, (2048,), w, 1e-6), _randn((2, 2048), (2048,)), masked_rows),
    "bf16 rms_norm": Program(
        lambda x, w: F.rms_norm(x, (300,), w, 1e-6),
        _randn((5, 300), (300,), dtype=torch.bfloat16),
        masked_rows,
        ScheduleAttr.get([1, 512], [512], warps=1),
    ),
    "layer_norm": Program(
        lambda x, w, b: F.layer_norm(x, (100,), w, b),
        _randn((5, 100), (100,), (100,)),
        masked_rows,
        ScheduleAttr.get([1, 128], [128, 128], warps=1),
    ),
    "relu matmul": Program(lambda x, y: torch.relu(x @ y), _randn((19, 13), (13, 21)), masked_rows),
    "chunked matmul": Program(lambda x, y: x @ y, _randn((17, 72), (72, 20)), masked_rows),
    "matmul of relus": Program(lambda x, y: x.relu() @ y.relu(), _randn((17, 72), (72, 20)), masked_rows),
    "bf16 matmul": Program(lambda x, y: x @ y, _randn((16, 40), (40, 24), dtype=torch.bfloat16), masked_rows),
    "attention": Program(
        _attention,
        _randn(*[(1, 2, 19, 16)] * 3),
        large,
        ScheduleAttr.get([1, 1, 32, 16], [32, 16] * 3, thread=[2, 4], warps=2),
    ),
    "chunked attention": Program(
        _attention,
        _growing(1, 1, 41, 8),
        large,
        ScheduleAttr.get([1, 1, 32, 8], [32, 8] * 3, thread=[2, 2], warps=2, stages=2, copy="cp_async"),
    ),
    "attention of warpgroups": Program(
        lambda q, k, v: _attention(q, k, v).float(),
        _randn(*[(1, 1, 100, 64)] * 3, dtype=torch.bfloat16),
        large,
        ScheduleAttr.get([1, 1, 64, 64], [32, 64] * 3, warps=4, atom="wgmma", copy="tma", stages=2),
    ),
    "banded attention": Program(
        _banded,
        _randn(*[(1, 1, 100, 8)] * 3),
        large,
        ScheduleAttr.get([1, 1, 32, 8], [32, 8] * 3, thread=[2, 2], warps=2, stages=3, copy="cp_async"),
    ),
    "column sums": Program(
        lambda x: x.sum(0), _randn((1100, 40)), masked_rows, ScheduleAttr.get([32], [512], warps=16)
    ),
    "transpose": Program(lambda x: (x.t() * 2).contiguous(), _randn((33, 45)), masked_rows),
    "sliced norm": Program(
        lambda x, y: F.layer_norm(x[:, 2:102] + y[:, :100], (100,)),
        _randn((5, 104), (5, 102)),
        masked_rows,
        ScheduleAttr.get([1, 128], [128, 128], warps=1),
    ),
    "part of images": Program(lambda x: x[:, :, :5] * 2, _randn((3, 6, 8)), masked_rows),
    "padding": Program(lambda x: F.pad(x, (1, 2), value=3.0) * 2, _randn((5, 13)), masked_rows),
    "gather and pad": Program(
        lambda t, i: F.pad(F.embedding(i, t), (1, 2)),
        lambda: (torch.randn(11, 13), torch.randint(0, 11, (3, 4))),
        masked_rows,
        ScheduleAttr.get([4, 8, 16], warps=4),
    ),
    "argmax": Program(lambda x: x.argmax(-1), _randn((5, 77)), masked_rows, ScheduleAttr.get([1], [128, 128], warps=1)),
    "integers": Program(_whole, _numbers, masked_rows),
    "matmul softmax": Program(
        lambda x, a: (x @ a).softmax(0),
        _randn((37, 18), (18, 24)),
        large,
        ScheduleAttr.get([32, 32], [32] * 5, thread=[4, 4], warps=2, stages=2, copy="cp_async"),
    ),
    "two kernels": Program(lambda x, a, b: torch.relu(x @ a) @ b, _randn((20, 18), (18, 24), (24, 17)), masked_rows),
    "three stages": Program(
        lambda x, y: x @ y,
        _randn((17, 72), (72, 20)),
        masked_rows,
        ScheduleAttr.get([16, 16], [16], thread=[2, 2], warps=2, copy="cp_async", stages=3),
    ),
    "four stages of tensor cores": Program(
        lambda x, y: x @ y,
        _randn((32, 96), (96, 40), dtype=torch.bfloat16),
        masked_rows,
        ScheduleAttr.get([32, 16], [16], warps=2, atom="mma", copy="cp_async", stages=4),
    ),
    "partial sums": Program(
        lambda x, y: x @ y,
        _randn((17, 168), (168, 20)),
        masked_rows,
        ScheduleAttr.get([16, 16], [16], thread=[2, 2], warps=2, copy="cp_async", stages=3, promotion_interval=2),
    ),
    "partial sums beside shared memory": Program(
        lambda x, y: x @ y,
        _randn((17, 168), (168, 20)),
        masked_rows,
        ScheduleAttr.get(
            [16, 16],
            [16],
            thread=[2, 2],
            warps=2,
            copy="cp_async",
            stages=3,
            promotion_interval=4,
            promotion_memory="shared",
        ),
    ),
    "partial sums of tensor cores": Program(
        lambda x, y: x @ y,
        _randn((20, 72), (72, 20)),
        masked_rows,
        ScheduleAttr.get([16, 16], [32], warps=1, atom="mma", f32_matmul_precision="bf16x3", promotion_interval=1),
    ),
    "split sums": Program(
        lambda x, y: x @ y,
        _randn((17, 72), (72, 20)),
        masked_rows,
        ScheduleAttr.get([16, 16], [8], thread=[2, 2], warps=2, split_k=3),
    ),
    "split attention": Program(
        _attention,
        _randn(*[(1, 1, 40, 8)] * 3),
        large,
        ScheduleAttr.get([1, 1, 16, 8], [8, 8, 8, 8, 8, 8], thread=[2, 2], warps=1, split_k=2),
    ),
}


@dataclass
class Scheduled(Compilation):
    """A compilation that sets the schedule of its only nest before the planner runs."""

    of_nest: ScheduleAttr | None = None

    def at(self, level: str) -> ModuleOp:
        module = super().at(level)
        if level == "loop" and self.of_nest is not None:
            for nest in (op for op in module.walk() if isinstance(op, loop.NestOp)):
                nest.attributes["schedule"] = self.of_nest
        return module


class Subject:
    """A compiled program, with the modules and texts with which its mutants are compared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.program = PROGRAMS[name]
        torch.manual_seed(sum(map(ord, name)))
        self.torch_inputs = self.program.inputs()
        self.captured: CapturedProgram = capture(self.program.function, self.torch_inputs)
        self.compilation = self._new()
        self._texts: dict[str, str] = {}
        self.cuda = self.compilation.cuda  # Compiled now, before a bug is planted.
        self.inputs: list[Array] = [to_numpy(t) for t in self.captured.bind(self.torch_inputs)]
        self.hard_inputs = self.program.hard(self.inputs)

    def _new(self) -> Compilation:
        return Scheduled(self.captured.module, of_nest=self.program.schedule)

    def at(self, level: str) -> ModuleOp:
        """Returns a copy of the module at a level, for a mutant."""
        return self.compilation.at(level).clone()

    def text(self, level: str) -> str:
        """Returns the text of the module at a level, printed once."""
        if level not in self._texts:
            self._texts[level] = str(self.compilation.at(level))
        return self._texts[level]

    @cached_property
    def plan(self) -> LaunchPlan:
        """Launch plan of the printed text."""
        return make_plan(self.compilation.at("kernel"))

    def compile_from(self, level: str, module: ModuleOp | None = None) -> Compilation:
        """Returns a new compilation with the levels of this program down to `level`. `module` replaces the last one."""
        fresh = self._new()
        known = LEVELS[: LEVELS.index(level) + 1]
        modules = {k: self.compilation.at(k) for k in known}
        if module is not None:
            modules[level] = module
        fresh._levels.update(modules)  # pyright: ignore[reportPrivateUsage]
        return fresh


@cache
def subject(name: str) -> Subject:
    """Returns the subject with a name, compiled once."""
    return Subject(name)
