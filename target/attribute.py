"""Names of targets, and the attributes `deplodock.*` of a module: its target, and facts about the program.

The driver writes the target into the module once, and passes read it there. The attribute is the name of the target,
followed by the numbers that differ from its record in `architectures.py` (a calibrated rate, the caches of the local
machine), with their units. So the text of a program yields the same kernels on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from typing import Any

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Data, Dialect, Operation
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..errors import TargetError
from .architectures import CPU, DEFAULT, ISAS, TARGETS, tile_rows
from .model import Target, problem_of, units

_CPU_NAME = re.compile(rf"{CPU.name}(?:\{{([^{{}}]*)\}})?")
_GPU_NAME = re.compile(r"(\w+):(\d+)")


def on_cores(name: str) -> bool:
    """Returns true if `name` is the name of a CPU target."""
    return _CPU_NAME.fullmatch(name) is not None


@cache
def get_target(name: str) -> Target:
    """Returns the record of a target. It does not depend on the local machine.

    Names of GPUs may have a number of multiprocessors (`sm_90a`, `sm_90a:114`), that of the CPU an instruction set and
    a number of cores (`cpu{isa=avx2 cores=4}`). Raises TargetError for an unknown name.
    """
    if name in TARGETS:
        return TARGETS[name]
    if on_cores(name):
        return with_options(CPU, name)
    if (match := _GPU_NAME.fullmatch(name)) is not None:
        return get_target(match[1]).with_multiprocessors(int(match[2]))
    close = get_close_matches(name, TARGETS, 1)
    hint = f", did you mean {close[0]}?" if close else ""
    raise TargetError(f"unknown target {name!r}{hint} (known: {', '.join(TARGETS)}, {CPU.name})", argument="target")


def with_options(cores: Target, name: str) -> Target:
    """Returns a CPU target with the instruction set and the number of cores that its name specifies.

    The rates are scaled in proportion to both. Raises TargetError for an invalid name.

    Args:
        cores: the CPU target whose numbers are scaled.
        name: a name such as `cpu{isa=avx2 cores=4}`.
    """
    assert cores.core is not None
    if name == cores.name:
        return cores
    match = _CPU_NAME.fullmatch(name)
    pairs = [word.partition("=") for word in (match[1] or "").split()] if match else []
    options = {key: value for key, _, value in pairs}
    valid = match and len(options) == len(pairs) and {*options} <= {"isa", "cores"}
    isa, count = options.get("isa", "native"), options.get("cores", str(cores.sms))
    if not valid or isa not in {"native", *ISAS} or not count.isdecimal() or int(count) < 1:
        isas = "|".join(["native", *ISAS])
        raise TargetError(f"{name!r} is not cpu{{isa={isas} cores=N}}", argument="target")
    core = cores.core
    if isa != "native":
        i = ISAS[isa]
        vectors = {"lanes": i.lanes, "registers": i.registers, "tile_rows": tile_rows(i.registers)}
        core = replace(core, **vectors, bf16_rate=1.0, isa=isa, march=i.march)
    r, scale = cores.rates, core.lanes / cores.core.lanes * int(count) / cores.sms
    rates = replace(r, **{n: getattr(r, n) * scale for n in ("vector", "special", "cache", "bulk", "fma", "mma")})
    speed = {"fp32": cores.fp32 * scale, "tensor": cores.fp32 * scale * core.bf16_rate}
    return replace(cores, name=name, sms=int(count), rates=rates, core=core, **speed)


def arch_of(capability: tuple[int, int]) -> str:
    """Returns the name of the target whose code runs on a device of a compute capability (major, minor).

    Raises TargetError if there is none.
    """
    for record in TARGETS.values():
        if capability in record.capabilities:
            return record.name
    raise TargetError(f"no code for a device of compute capability {capability[0]}.{capability[1]}")


TARGET = "deplodock.target"
"""Name of the module attribute that holds the target."""


@irdl_attr_definition
class TargetAttr(Data[Target]):
    """Target of a program: `#deplodock.target<sm_90a>`.

    ```
    #deplodock.target<"sm_90a:114", rates.memory = 3.9e12 B_per_s>
    ```

    The text has the name as for `--target`, in quotes unless it is one word. Each number that differs from the record
    of that name follows, with its unit. The keys are the fields of `Target` (`sms`, `l2`, `card`), `rates.*`, and for a
    CPU `core.*` and `costs.*` (`target/model.py`).
    """

    name = "deplodock.target"

    def verify(self) -> None:
        try:
            record = get_target(self.data.name)
        except TargetError as error:
            raise VerifyException(f"target: {error.reason}") from None
        if self.data is not record:
            self._verify_numbers(record)

    def _verify_numbers(self, record: Target) -> None:
        if record.changed(self.data.numbers()) != self.data:
            raise VerifyException(f"target: features, warps and tables of {record.name} are those of its record")
        if (problem := problem_of(self.data)) is not None:
            raise VerifyException(f"target: {problem}")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Target:
        with parser.in_angle_brackets():
            name = parser.parse_optional_str_literal() or parser.parse_identifier(" after '<': the name of a target")
            try:
                record = get_target(name)
            except TargetError as error:
                parser.raise_error(f"target: {error.reason}")
            unit_of, numbers = _units(record), dict[str, Any]()
            while parser.parse_optional_punctuation(",") is not None:
                key = parser.parse_identifier(" after ',': a number of the target")
                if key in numbers or key not in unit_of:
                    parser.raise_error(f"target: unknown or repeated number '{key}'")
                parser.parse_punctuation("=")
                numbers[key] = _parse_value(parser, key, record.numbers()[key], unit_of[key])
        return record.changed(numbers)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(self.text())

    def text(self) -> str:
        """Returns the text of the attribute without its brackets."""
        name = self.data.name if self.data.name.isidentifier() else f'"{self.data.name}"'
        return name if self.is_record else ", ".join((name, *self._differences()))

    @property
    def is_record(self) -> bool:
        """True if all numbers are those of the record of the target's name."""
        return self.data == get_target(self.data.name)

    def _differences(self) -> Iterator[str]:
        """Yields the numbers that differ from the record, with their units."""
        numbers, unit_of = get_target(self.data.name).numbers(), _units(self.data)
        changed = {key: value for key, value in self.data.numbers().items() if value != numbers[key]}
        yield from (f"{key} = {_value_text(value)} {unit_of[key]}".rstrip() for key, value in changed.items())


def _units(target: Target) -> dict[str, str]:
    return {f"{prefix}{n}": u for prefix, part in target.parts().items() for n, u in units(part).items()}


def _parse_value(parser: AttrParser, key: str, like: Any, unit: str) -> Any:
    """Parses the value of a number with its unit. `like`: a value of the expected type."""
    if isinstance(like, str):
        return parser.parse_str_literal()
    value = parser.parse_number()
    if unit and (written := parser.parse_optional_identifier()) != unit:
        parser.raise_error(f"target: expected {key} in {unit}, but got {written or 'no unit'}")
    return value


def _value_text(value: Any) -> str:
    """Returns the text of a value in the grammar of MLIR, which requires `1.0e-05` for `1e-05`."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, int) or 1e-3 <= value < 1e6:
        return repr(value)
    digits, _, power = f"{Decimal(repr(value)).normalize():e}".partition("e")
    return f"{digits if '.' in digits else f'{digits}.0'}e{int(power)}"


def target_of(op: Operation, name: str | None = None) -> Target:
    """Returns the target of the module that contains `op`; the record of `DEFAULT` if the module has none.

    `name`: the option of a pass that replaces the target of the module. Raises TargetError for an unknown name.
    """
    module = op.get_toplevel_object()
    assert isinstance(module, Operation)
    if name is not None:
        set_target(module, get_target(name))
    attribute = module.attributes.get(TARGET)
    if attribute is None:
        return get_target(DEFAULT)
    if not isinstance(attribute, TargetAttr):
        raise TargetError(f"expected #deplodock.target<...>, but got {attribute}", argument=TARGET)
    return attribute.data


def set_target(module: Operation, target: Target) -> None:
    module.attributes[TARGET] = TargetAttr(target)


_PREFIX = "deplodock."


def stamp(module: ModuleOp, facts: Mapping[str, str]) -> None:
    """Writes facts, such as `{"version": "0.1.0"}`, as attributes of a module. Empty texts are left out."""
    module.attributes.update({f"{_PREFIX}{name}": StringAttr(text) for name, text in facts.items() if text})


def stamp_comment(module: ModuleOp) -> str:
    """Returns the facts and the target of a module as C++ comments, one line each."""
    lines: list[str] = []
    for name, attribute in module.attributes.items():
        if name.startswith(_PREFIX) and isinstance(attribute, StringAttr | TargetAttr):
            text = attribute.text() if isinstance(attribute, TargetAttr) else attribute.data
            lines.append(f"// deplodock {name.removeprefix(_PREFIX)}: {' '.join(text.split())}\n")
    return "".join(lines)


Deplodock = Dialect("deplodock", [], [TargetAttr])
"""Attributes of whole programs."""
