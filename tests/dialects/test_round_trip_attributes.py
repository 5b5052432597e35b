"""Every operation of our dialects keeps additional attributes when it is printed and parsed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support import TESTS
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, UnitAttr, f32, i64
from xdsl.ir import Attribute, Operation

from deplodock.dialects import OWN_DIALECTS, get_all_dialects, make_context
from deplodock.dialects.layouts import attr_of
from deplodock.dialects.layouts.linear import Linear
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.errors import CompileError
from deplodock.passes.pass_manager import verify_module

FILECHECK = TESTS / "filecheck"
FILES = sorted(f for folder in ("dialects", "passes") for f in (FILECHECK / folder).rglob("*.mlir"))
OURS = {op for name in OWN_DIALECTS for op in get_all_dialects()[name]().operations}

EXTRA: dict[str, Attribute] = {
    "flag": UnitAttr(),
    "number": IntegerAttr(-3, i64),
    "text": StringAttr('a "quoted" word\n'),
    "type": f32,
    "list_of": ArrayAttr([StringAttr("x"), UnitAttr()]),
    "dictionary": DictionaryAttr({"a": IntegerAttr(1, i64), "b": DictionaryAttr({})}),
    "test.layout": attr_of(Linear((8,), ((1,),), ((2,), (4,)), ())),
}


def _modules(path: Path) -> list[ModuleOp]:
    """Returns the modules of a lit test that are valid."""
    found: list[ModuleOp] = []
    for text in path.read_text(encoding="utf-8").split("// -----"):
        try:
            module = parse_module(make_context(), text, path.name)
            verify_module(module)
        except CompileError:
            continue
        found.append(module)
    return found


def _decorated(module: ModuleOp, seed: str) -> list[Operation]:
    """Adds random attributes to the operations of our dialects in `module`, and returns these operations."""
    draw = random.Random(seed)
    ours = [op for op in module.walk() if type(op) in OURS]
    for op in ours:
        op.attributes |= {name: EXTRA[name] for name in draw.sample(list(EXTRA), draw.randint(1, len(EXTRA)))}
    return ours


@pytest.mark.parametrize("path", FILES, ids=lambda f: f.relative_to(FILECHECK).as_posix())
def test_file(path: Path) -> None:
    for number, written in enumerate(_modules(path)):
        module = parse_module(make_context(), print_module(written), path.name)  # operands in the order of text
        ours = _decorated(module, f"{path.name} {number}")
        text = print_module(module)
        again = parse_module(make_context(), text, path.name)
        for old, new in zip(ours, (op for op in again.walk() if type(op) in OURS), strict=True):
            assert new.attributes == old.attributes, old.name
            assert new.properties == old.properties, old.name
        assert module.is_structurally_equivalent(again), text


def test_every_operation_is_covered() -> None:
    seen = {type(op) for path in FILES for module in _modules(path) for op in module.walk()}
    shared_text = {op.print for op in seen}  # the operators of PyTorch have one text
    missing = sorted(op.name for op in OURS - seen if op.print not in shared_text)
    assert not missing
