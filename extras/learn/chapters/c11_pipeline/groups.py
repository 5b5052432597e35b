"""Judge of pipelines at the tile level: counts the groups of asynchronous copies while a program is interpreted.

The interpreter computes a copy when it is issued. A GPU completes it at some time before the `tile.await` that waits
for its group. So a program may be right in the interpreter although it reads a tile too early. This judge follows each
tile from its copy to its use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.ir import Block, Operation, SSAValue

from .....backend import reference
from .....backend.check_each import input_types, make_inputs
from .....dialects import tile
from .....dialects.layouts import is_in_shared
from .....errors import ExecutionError
from ...verdicts import Wrong


@dataclass
class Copy:
    """An asynchronous copy.

    Attributes:
        group: number of its group, from 0.
        issued: whether its predicate was true.
        tile: the copied tile. A reference keeps its identity unique.
    """

    group: int
    issued: bool
    tile: Any


@dataclass
class Groups(Interpreter.Listener):
    """Follows copies, groups and waits of one block.

    Attributes:
        closed: number of closed groups.
        arrived: number of groups that have arrived for certain.
        copies: identity of a tile -> its copy.
        outstanding: for each `tile.dot`, the number of groups that may still be copied while it computes.
    """

    closed: int = 0
    arrived: int = 0
    copies: dict[int, Copy] = field(default_factory=dict[int, Copy])
    outstanding: list[int] = field(default_factory=list[int])

    def will_interpret_op(self, op: Operation, args: tuple[Any, ...]) -> None:
        if isinstance(op, tile.CommitOp):
            self.closed += 1
        elif isinstance(op, tile.AwaitOp):
            for operand, value in zip(op.tiles, args, strict=True):
                self._await(op.pending.data, operand, self.copies.get(id(value)))
            self.arrived = max(self.arrived, self.closed - op.pending.data)
        elif isinstance(op, tile.DotOp):
            for operand in (op.lhs, op.rhs):
                if is_in_shared(operand.type) and not isinstance(operand.owner, tile.AwaitOp):
                    raise Wrong(f"tile.dot reads {_name(operand)}, which is no result of a tile.await")
            self.outstanding.append(
                len({c.group for c in self.copies.values() if c.issued and c.group >= self.arrived})
            )

    def did_interpret_op(self, op: Operation, results: tuple[Any, ...]) -> None:
        if isinstance(op, tile.StageAsyncOp):
            issued = not np.isnan(results[0].astype(np.float64)).all()
            self.copies[id(results[0])] = Copy(self.closed, issued, results[0])

    def _await(self, pending: int, operand: SSAValue, copy: Copy | None) -> None:
        """Requires that a wait covers the group of a tile."""
        if copy is None:
            raise Wrong(f"tile.await waits for {_name(operand)}, which is no asynchronous copy")
        iteration = f"in iteration {len(self.outstanding)}, "
        if copy.group >= self.closed:
            raise Wrong(
                f"{iteration}tile.await waits for {_name(operand)}, whose copy is in no group yet: a tile.commit must"
                " close the group between the copy and the wait"
            )
        if copy.group >= self.closed - pending:
            raise Wrong(
                f"{iteration}tile.await returns {_name(operand)} too early: its copy is in group {copy.group}, groups 0"
                f" to {self.closed - 1} are closed, and `pending {pending}` lets the newest {pending} of them be"
                " outstanding"
            )


def _name(value: SSAValue) -> str:
    hint = f"%{value.name_hint}" if value.name_hint else "a tile"
    if isinstance(value.owner, Block):
        return f"{hint} (an argument of the loop)"
    return hint


def follow(program: ModuleOp) -> Groups:
    """Interprets a program and follows its copies.

    Args:
        program: a program at the tile level, with one block.

    Raises:
        Wrong: a tile is read before its copy has arrived for certain, or a copy is out of bounds.
    """
    groups = Groups()
    try:
        reference.run(program, make_inputs(input_types(program)), "real", listeners=[groups])
    except ExecutionError as error:
        advice = ""
        if error.operator == tile.StageAsyncOp.name and "outside" in error.reason:
            advice = (
                f"; in iteration {len(groups.outstanding)} there is no such chunk: the copy needs a predicate (`if`)"
            )
        raise Wrong(f"{error}{advice}") from None
    return groups


def require_pipeline(groups: Groups, stages: int, trips: int, operands: int) -> None:
    """Requires that copies are early enough, and that none is done twice or in vain.

    Args:
        groups: the copies of a program.
        stages: number of chunks in shared memory at once.
        trips: iterations of the loop.
        operands: copies of one chunk.

    Raises:
        Wrong: a dot computes while too few groups are outstanding, or there are too many copies.
    """
    issued = sum(c.issued for c in groups.copies.values())
    if issued > trips * operands:
        raise Wrong(f"the result is right, but {issued} tiles are copied, and {trips * operands} are read")
    for i, count in enumerate(groups.outstanding):
        possible = min(stages - 1, trips - 1 - i)
        if count < possible:
            raise Wrong(
                f"the result is right, but the copies do not overlap with the computation: while tile.dot computes"
                f" iteration {i}, {_groups(count)} outstanding; with {stages} stages {_groups(possible)} possible"
            )
        if count > possible:
            raise Wrong(
                f"the result is right, but iteration {i} has {_groups(count)} outstanding and its own chunk in shared"
                f" memory: that is more than {stages} stages"
            )


def _groups(count: int) -> str:
    return "no group is" if count == 0 else "1 group is" if count == 1 else f"{count} groups are"
