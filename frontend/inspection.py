"""Base class of compiled programs: texts of levels, kernels, remarks, and the plans of the compiler.

Notebooks show programs, texts and kernels as HTML if an installed package declares functions for it
(`deplodock.displays`). IPython calls `_repr_html_`; nothing here imports IPython.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from ..errors import DeplodockError, presented
from .compilation import Compilation, one_at_a_time
from .texts import Text, displayed

if TYPE_CHECKING:
    from ..passes.pass_manager import Remark
    from .kernels import Kernel

LevelName: TypeAlias = Literal["torch", "tensor", "loop", "tile", "kernel", "cuda", "cpp", "ptx", "sass", "asm"]

T = TypeVar("T")

LANGUAGES = {"cuda": "cpp", "cpp": "cpp", "ptx": "", "sass": "", "asm": ""}
"""Level -> language of its text. The language of other levels is `mlir`."""


def inspected(read: Callable[[], T]) -> T:
    """Returns a fact about a program, and lowers the program as far as the fact needs.

    Args:
        read: function that returns the fact. It runs under the lock of compilations.

    Raises:
        CompileError: the program cannot be lowered.
    """
    try:
        with one_at_a_time():
            return read()
    except DeplodockError as error:
        raise presented(error) from error.__cause__


def level_text(compilation: Compilation, level: str) -> Text:
    """Returns the text of a program at a level."""
    return Text(compilation.text(level), level, LANGUAGES.get(level, "mlir"))


class Kernels(tuple["Kernel", ...]):
    """Kernels of a program, in the order of the printed text. Notebooks show them as a table.

    Args:
        kernels: the kernels.
        on_cpu: whether they are C++ for a CPU.
    """

    on_cpu: bool

    def __new__(cls, kernels: Iterable[Kernel], on_cpu: bool) -> Kernels:
        value = super().__new__(cls, kernels)
        value.on_cpu = on_cpu
        return value

    def _repr_html_(self) -> str | None:
        return displayed("kernels", self)


class Inspected:
    """Base class of compiled programs.

    Attributes:
        compilation: the program at all levels of IR.
    """

    compilation: Compilation

    def ir(self, level: LevelName | str) -> Text:
        """Returns the text of the program at a level.

        The levels are `torch`, `tensor`, `loop`, `tile`, `kernel` and `cuda` (`cpp` for the target `cpu`). A program
        that is written as IR has the levels from its own on. `ptx`, `sass` (GPU) and `asm` (CPU) are machine code.
        """
        return inspected(lambda: level_text(self.compilation, level))

    @property
    def kernels(self) -> Kernels:
        """The kernels: name, grid, least bytes and FLOP, predicted time, schedule, lines of Python, and `text`."""
        from ..target.attribute import on_cores
        from .kernels import kernels_of

        return inspected(lambda: Kernels(kernels_of(self.compilation), on_cores(self.compilation.target)))

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The reasons why passes did not apply a transformation."""

        def read() -> tuple[Remark, ...]:
            self.compilation.at("kernel")
            return tuple(self.compilation.remarks)

        return inspected(read)

    def explain(self) -> Text:
        """Returns the plans of fusion and the schedules that the planner considered, as `--explain` prints them."""
        from .explanation import explain

        return inspected(lambda: Text(explain(self.compilation), "explain"))

    @property
    def pipeline(self) -> str:
        """The passes from the level of the program to the kernel level, as one argument for `dl-opt -p`."""
        return self.compilation.pipeline()

    def _repr_html_(self) -> str | None:
        return inspected(lambda: displayed("program", self))
