"""Running passes one after another, with observers in between.

Both `dl-opt` and `deplodock` run passes through here, so both verify, compare and report in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff
from typing import TextIO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from ..dialects.dominance import DominanceError, verify_dominance
from ..dialects.locations import location_text
from ..dialects.printing import print_module
from ..errors import CompileError


class InvalidIRError(CompileError):
    """IR that a verifier refuses."""


class Observer:
    """Looks at the module around every pass. The base class does nothing; override what is needed."""

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        """Called before `module_pass` runs on `module`."""

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        """Called after `module_pass` has run on `module` and the result has been verified."""

    def finish(self, module: ModuleOp) -> None:
        """Called once after the last pass."""


def run_passes(
    ctx: Context,
    module: ModuleOp,
    passes: Sequence[ModulePass],
    observers: Sequence[Observer] = (),
    *,
    verify: bool = True,
) -> None:
    """Apply `passes` to `module` in order, verifying it (with SSA dominance) after each unless told not to.

    Raises what a pass raises, and InvalidIRError if a pass leaves IR that does not verify.
    """
    for module_pass in passes:
        for observer in observers:
            observer.before(module_pass, module)
        module_pass.apply(ctx, module)
        if verify:
            verify_module(module)
        for observer in observers:
            observer.after(module_pass, module)
    for observer in observers:
        observer.finish(module)


def verify_module(module: ModuleOp) -> None:
    """Run all verifiers and the dominance check; raises InvalidIRError naming the first op at fault."""
    try:
        verify_dominance(module)
        module.verify()
    except VerifyException as error:
        op = error.op if isinstance(error, DominanceError) else _first_invalid(module)
        error.__notes__ = []  # the whole module in text, added upstream
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = reason.removeprefix("Operation does not verify: ")
        raise InvalidIRError(reason, operator=op.name, location=location_text(op)) from None


def _first_invalid(module: ModuleOp) -> Operation:
    """The first op that does not verify by itself, innermost first: an outer op may only be wrong because of it."""
    for op in module.walk(region_first=True):
        try:
            op.verify(verify_nested_ops=False)
        except VerifyException:
            return op
    return module


class PrintChanges(Observer):
    """After each pass that changed the text of the module, print a diff that tools can cut out.

    ```
    >>> t:fuse-nests
    -  %1 = arith.addf ...
    <<< t:fuse-nests
    2 passes, 1 changed
    ```
    """

    def __init__(self, stream: TextIO, context_lines: int = 3) -> None:
        self.stream = stream
        self.context_lines = context_lines
        self.passes = 0
        self.changed = 0
        self._text: str | None = None

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        if self._text is None:
            self._text = print_module(module)

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.passes += 1
        old, new = self._text or "", print_module(module)
        self._text = new
        if old == new:
            return
        self.changed += 1
        lines = list(unified_diff(old.splitlines(), new.splitlines(), "", "", lineterm="", n=self.context_lines))
        body = "\n".join(lines[2:])  # without the two lines that name files
        self.stream.write(f">>> t:{module_pass.name}\n{body}\n<<< t:{module_pass.name}\n")

    def finish(self, module: ModuleOp) -> None:
        self.stream.write(f"{self.passes} passes, {self.changed} changed\n")
        self._text = None
