"""Fusion plans of an answer: their kernels, bytes and predicted times.

plans = Plans(program)
price = plans.price(("%11", "%23"))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ...dialects import make_context
from ...dialects.loop import NestOp
from ...dialects.loop.work import nest_work
from ...dialects.payload import tensor_bytes
from ...dialects.support.calls import main_function
from ...dialects.support.printing import quantity, value_names
from ...dialects.tensor import ROOT
from ...errors import CompileError
from ...passes.pass_manager import run_passes
from ...passes.pipelines import parse_passes
from ...passes.planning.choose import rank
from ...passes.planning.nest_info import NestInfo
from ...passes.planning.plan_schedules import fastest
from ...passes.records import plan_key
from ...passes.tensor.fusion.candidates import candidates, required_values
from ...passes.tensor.plan_fusion import PlanFusionPass
from ...target.attribute import target_of
from ...target.model import Target
from ...tools.tables import seconds as time_text, si
from .answers import HOLE, Answer
from .verdicts import Wrong


@dataclass(frozen=True)
class Price:
    """Cost of a fusion plan.

    Attributes:
        roots: names of the materialised values, without results of the program.
        kernels: number of kernels.
        read: bytes that all kernels read. A kernel reads each tensor that it loads once.
        written: bytes that all kernels write.
        predict: predicts the seconds of all kernels, which takes longer than to count bytes.
    """

    roots: tuple[str, ...]
    kernels: int
    read: int
    written: int
    predict: Callable[[], float]

    @cached_property
    def seconds(self) -> float:
        """Predicted seconds of all kernels."""
        return self.predict()

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    def __str__(self) -> str:
        return f"{quantity(self.kernels, 'kernel')}, {time_text(self.seconds)}"


class Plans:
    """Fusion plans of one program, priced by the planning model of its target.

    Attributes:
        module: the program at the tensor level, with its target.
        sizes: name of each tensor of the program -> its bytes.
        cuts: names of the values that a plan may materialise or not.
    """

    def __init__(self, module: ModuleOp) -> None:
        """Reads the values of a program."""
        self.module = module
        main = main_function(module)
        names = {value: name for name, value in value_names(main).items()}
        self.sizes = {name: tensor_bytes(v.type) for v, name in names.items() if isinstance(v.owner, Operation)}
        self._results = [names[v] for v in required_values(main)]
        self.cuts = tuple(name for v in candidates(main) if (name := names[v]) not in self._results)
        self._prices: dict[tuple[str, ...], Price] = {}
        self._times: dict[str, float] = {}

    def price(self, roots: Sequence[str]) -> Price:
        """Returns the cost of a plan.

        Args:
            roots: names of the materialised values. Results of the program are materialised in addition.

        Raises:
            CompileError: a name is unknown, or the program cannot be lowered with the plan.
        """
        cuts = tuple(sorted({*roots} - {*self._results}, key=lambda name: (len(name), name)))
        if cuts not in self._prices:
            self._prices[cuts] = self._priced(cuts, PlanFusionPass(roots=(*cuts, *self._results)))
        return self._prices[cuts]

    def _priced(self, roots: tuple[str, ...], planner: PlanFusionPass) -> Price:
        module = self.module.clone()
        run_passes(make_context(), module, [planner, *parse_passes("tensor-to-loop")[1:]], verify=False)
        nests, target = [op for op in module.walk() if isinstance(op, NestOp)], target_of(module)
        works = [nest_work(nest) for nest in nests]
        read, written = sum(w.read for w in works), sum(w.written for w in works)
        return Price(roots, len(nests), read, written, lambda: sum(self._seconds(n, target) for n in nests))

    def _seconds(self, nest: NestOp, target: Target) -> float:
        """Returns the predicted seconds of a nest. Plans have many nests in common, which are predicted once."""
        if (key := plan_key(nest)) not in self._times:
            pick = fastest(nest, target, rank(NestInfo(nest), target)[0])
            assert pick.prediction is not None
            self._times[key] = float(pick.prediction.seconds)
        return self._times[key]

    @cached_property
    def planner(self) -> Price:
        """The plan that the compiler chooses."""
        module = self.module.clone()
        run_passes(make_context(), module, [PlanFusionPass()], verify=False)
        names = {value: name for name, value in value_names(main_function(module)).items()}
        return self.price(
            [names[r] for op in main_function(module).walk() if ROOT in op.attributes for r in op.results]
        )

    @cached_property
    def best(self) -> Price:
        """The fastest of these plans by predicted time: the planner's, and those that keep at most one value."""
        plans = (self.planner, self.whole, *(self.price((cut,)) for cut in self.cuts))
        return min(plans, key=lambda price: price.seconds)

    @property
    def whole(self) -> Price:
        """The plan that keeps results only."""
        return self.price(())

    @property
    def none(self) -> Price:
        """The plan that keeps every value except views and constants."""
        return self.price(self.cuts)

    def read(self, answer: Answer) -> Price:
        """Returns the plan of an answer, a text with one line `roots = %11, %23`. `#` begins a comment.

        Raises:
            Wrong: the text has no such line, or the program cannot have these roots.
        """
        lines = [line for text in answer.text.splitlines() if (line := text.partition("#")[0].strip())]
        if len(lines) != 1 or not (match := re.fullmatch(r"roots *= *(.*)", lines[0])):
            raise Wrong("expected one line `roots = %11, %23`")
        names = [name.strip() for name in match[1].split(",") if name.strip()]
        if HOLE in names or not names:
            raise Wrong("roots is still a hole (...): write the names of values, separated by commas")
        if unknown := [name for name in names if name not in self.sizes]:
            raise Wrong(f"{unknown[0]} is no value that an operation of the program defines")
        try:
            return self.price(names)
        except CompileError as error:
            raise Wrong(f"the program has no plan with these roots: {error.reason}") from None

    def require_fast(self, price: Price, par: float) -> str:
        """Requires that a plan is at most `par` times as slow as the best one.

        Args:
            price: the plan.
            par: ratio to the best plan.

        Returns:
            a sentence with the times of this plan, of no fusion, and of one kernel.

        Raises:
            Wrong: the plan is slower. The message names a value that should not be kept, or asks to keep one.
        """
        ratio = price.seconds / self.best.seconds
        text = f"{price}, {ratio:.2f}x the best plan"
        if ratio > par:
            raise Wrong(f"{text}, and at most {par:.2f}x is asked for: {self._advice(price)}")
        return f"{text}. No fusion: {self.none}. All in one: {self.whole}. The compiler's choice: {self.planner}"

    def _advice(self, price: Price) -> str:
        """Returns words about the change of one root that saves the most time."""
        dropped = {name: self.price([r for r in price.roots if r != name]) for name in price.roots}
        added = {name: self.price((*price.roots, name)) for name in self.cuts if name not in price.roots}
        name, change = min((dropped | added).items(), key=lambda item: item[1].seconds)
        saved = time_text(price.seconds - change.seconds)
        if name in dropped:
            size = si(self.sizes[name])
            return f"{name} is kept, so {size}B are written and read again. To compute it in its reader saves {saved}"
        return f"a kernel computes a value again for each of its tiles. To keep this value instead saves {saved}"
