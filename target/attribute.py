"""Targets by their names, and `deplodock.*`, the attributes of a module: its target, and facts about the program.

The driver resolves the target once and writes it, and passes read it only there. A record of `architectures.py` is its
name alone. Numbers that differ from the record (a calibrated rate, the caches of the local machine) follow as keywords
with their units. So the text of a program gives the same kernels on every machine.
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
    """Returns true if the target called `name` is the cores of a CPU."""
    return _CPU_NAME.fullmatch(name) is not None


@cache
def get_target(name: str) -> Target:
    """Returns the record of a target, which is the same on every machine: of a GPU with its number of multiprocessors
    (`sm_90a`, `sm_90a:114`), or of a CPU with its instruction set and cores (`cpu{isa=avx2 cores=4}`). Raises
    TargetError for an unknown name."""
    if name in TARGETS:
        return TARGETS[name]
    if on_cores(name):
        return with_options(CPU, name)
    if (counted := _GPU_NAME.fullmatch(name)) is not None:
        return get_target(counted[1]).with_multiprocessors(int(counted[2]))
    close = get_close_matches(name, TARGETS, 1)
    hint = f", did you mean {close[0]}?" if close else ""
    raise TargetError(f"unknown target {name!r}{hint} (known: {', '.join(TARGETS)}, {CPU.name})", argument="target")


def with_options(cores: Target, name: str) -> Target:
    """Returns `cores` with the instruction set and the number of cores that a name like `cpu{isa=avx2 cores=4}` has;
    the rates are in proportion to both. Raises TargetError."""
    assert cores.core is not None
    if name == cores.name:
        return cores
    match = _CPU_NAME.fullmatch(name)
    pairs = [word.partition("=") for word in (match[1] or "").split()] if match else []
    options = {key: value for key, _, value in pairs}
    known = match and len(options) == len(pairs) and {*options} <= {"isa", "cores"}
    isa, count = options.get("isa", "native"), options.get("cores", str(cores.sms))
    if not known or isa not in {"native", *ISAS} or not count.isdecimal() or int(count) < 1:
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
    """Returns the target whose code runs on a device of that compute capability. Raises TargetError."""
    for record in TARGETS.values():
        if capability in record.capabilities:
            return record.name
    raise TargetError(f"no code for a device of compute capability {capability[0]}.{capability[1]}")


TARGET = "deplodock.target"
"""Name of the attribute of a module that holds its target."""


@irdl_attr_definition
class TargetAttr(Data[Target]):
    """`#deplodock.target<sm_90a>`, `#deplodock.target<"sm_90a:114", rates.memory = 3.9e12 B_per_s>`

    First the name of the target, as `--target` takes it, with quotes where it is not one word. Then each number that
    differs from the record of that name, with its unit: `sms`, `l2` of the target itself, `rates.*`, and of a CPU
    `core.*` and `costs.*` (`model.py`). `card` is a text.
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
            known, numbers = _units(record), dict[str, Any]()
            while parser.parse_optional_punctuation(",") is not None:
                key = parser.parse_identifier(" after ',': a number of the target")
                if key in numbers or key not in known:
                    parser.raise_error(f"target: unknown or repeated number '{key}'")
                parser.parse_punctuation("=")
                numbers[key] = _parse_value(parser, key, record.numbers()[key], known[key])
        return record.changed(numbers)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(self.text())

    def text(self) -> str:
        """Returns the target as the attribute prints it, without brackets."""
        name = self.data.name if self.data.name.isidentifier() else f'"{self.data.name}"'
        return name if self.is_record else ", ".join((name, *self._differences()))

    @property
    def is_record(self) -> bool:
        """True if the target is a record of `architectures.py`."""
        return self.data == get_target(self.data.name)

    def _differences(self) -> Iterator[str]:
        """Yields the numbers that differ from the record, with their units."""
        numbers, known = get_target(self.data.name).numbers(), _units(self.data)
        changed = {key: value for key, value in self.data.numbers().items() if value != numbers[key]}
        yield from (f"{key} = {_value_text(value)} {known[key]}".rstrip() for key, value in changed.items())


def _units(target: Target) -> dict[str, str]:
    return {f"{prefix}{n}": u for prefix, part in target.parts().items() for n, u in units(part).items()}


def _parse_value(parser: AttrParser, key: str, like: Any, unit: str) -> Any:
    """Parses the value of `key` with its unit; `like` is a value of its type."""
    if isinstance(like, str):
        return parser.parse_str_literal()
    value = parser.parse_number()
    if unit and (written := parser.parse_optional_identifier()) != unit:
        parser.raise_error(f"target: expected {key} in {unit}, but got {written or 'no unit'}")
    return value


def _value_text(value: Any) -> str:
    """Returns a text in the grammar of MLIR, where `1e-05` has to be `1.0e-05`."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, int) or 1e-3 <= value < 1e6:
        return repr(value)
    digits, _, power = f"{Decimal(repr(value)).normalize():e}".partition("e")
    return f"{digits if '.' in digits else f'{digits}.0'}e{int(power)}"


def target_of(op: Operation, name: str | None = None) -> Target:
    """Returns the target of the module that `op` is in, by default the record of `DEFAULT`. A module gets the record
    called `name` as its target, if that is the option of a pass. Raises TargetError for an unknown name."""
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
    """Writes facts (`{"version": "0.1.0"}`) to the attributes of a module."""
    module.attributes.update({f"{_PREFIX}{name}": StringAttr(text) for name, text in facts.items() if text})


def stamp_comment(module: ModuleOp) -> str:
    """Returns the facts and the target of a module as a comment of C++, a line for each."""
    lines: list[str] = []
    for name, attribute in module.attributes.items():
        if name.startswith(_PREFIX) and isinstance(attribute, StringAttr | TargetAttr):
            text = attribute.text() if isinstance(attribute, TargetAttr) else attribute.data
            lines.append(f"// deplodock {name.removeprefix(_PREFIX)}: {' '.join(text.split())}\n")
    return "".join(lines)


Deplodock = Dialect("deplodock", [], [TargetAttr])
"""Attributes of whole programs."""
