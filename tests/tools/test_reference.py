"""The reference of operations and attributes: examples, members, pages, and `dl-opt --help-op`."""

from __future__ import annotations

import re
from io import StringIO

import dialect_pages
import pytest
from support import ROOT
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, Block, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError
from xdsl.utils.mlir_lexer import MLIRTokenKind

from deplodock.dialects import OWN_DIALECTS, make_context
from deplodock.dialects.kernel import FuncOp
from deplodock.dialects.tile import DotOp
from deplodock.tools import dl_opt
from deplodock.tools.reference.definitions import describe, dialect_of, find, parts_of
from deplodock.tools.reference.uses import uses_of

DIALECTS = [name for name in OWN_DIALECTS if name != "torch"]
"""Dialects whose operations have docstrings. The operations of torch are made from schemas."""

CLASSES = [cls for name in OWN_DIALECTS for part in parts_of(name) for cls in part.members]
OPERATIONS = [cls for cls in CLASSES if issubclass(cls, Operation) and not cls.name.startswith("torch.")]
ATTRIBUTES = [cls for cls in CLASSES if not issubclass(cls, Operation)]

_UNKNOWN = re.compile(r"unknown value %(\w+)")


class ExampleParser(Parser):
    """Parser of examples, in which values without a definition are arguments.

    The type of an argument follows from the operation that uses it. If it does not, the argument is an index.
    """

    def block(self, indices: list[str]) -> Block:
        block = Block(arg_types=[IndexType()] * len(indices))
        self.ssa_values |= {name: (argument,) for name, argument in zip(indices, block.args, strict=True)}
        while self._current_token.kind != MLIRTokenKind.EOF:
            if self._current_token.kind in (MLIRTokenKind.HASH_IDENT, MLIRTokenKind.EXCLAMATION_IDENT):
                self._parse_alias_def()
            else:
                block.add_op(self.parse_operation())
        return block

    def attribute(self) -> Attribute:
        """Returns the attribute or type after the definitions of aliases."""
        while " = " in self.lexer.input.content[self._current_token.span.start :].partition("<")[0]:
            self._parse_alias_def()
        return self.parse_attribute()


def example_block(text: str) -> Block:
    """Returns the operations of an example."""
    indices: list[str] = []
    while True:
        try:
            return ExampleParser(make_context(), text).block(indices)
        except ParseError as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or unknown[1] in indices:
                raise
            indices.append(unknown[1])


@pytest.mark.parametrize("cls", OPERATIONS, ids=lambda cls: cls.name)
def test_the_example_of_an_operation_is_legal(cls: type[Operation]) -> None:
    block = example_block(describe(cls).example)
    for op in block.ops:
        op.verify(verify_nested_ops=True)
    assert any(isinstance(inner, cls) for op in block.ops for inner in op.walk())


@pytest.mark.parametrize("cls", ATTRIBUTES, ids=lambda cls: cls.name)
def test_the_example_of_an_attribute_is_legal(cls: type[Attribute]) -> None:
    attribute = ExampleParser(make_context(), describe(cls).example).attribute()
    assert isinstance(attribute, cls) or f"!{cls.name}" in str(attribute)
    stream = StringIO()
    Printer(stream).print_attribute(attribute)
    assert ExampleParser(make_context(), stream.getvalue()).attribute() == attribute


def test_an_illegal_example_is_an_error() -> None:
    with pytest.raises(ParseError):
        example_block("%s = tile.reduce add %x over [1]")
    with pytest.raises(ParseError, match="expected an index, but got %i"):
        example_block("%y = tensor.gather %t[%i, d1, d2] : tensor<4x4xf32> -> tensor<4x4xf32>")


@pytest.mark.parametrize("cls", [*OPERATIONS, *ATTRIBUTES], ids=lambda cls: cls.name)
def test_attributes_regions_and_parameters_are_described(cls: type[Operation] | type[Attribute]) -> None:
    description = describe(cls)
    assert description.summary.endswith((".", "`"))
    members = [m for group in ("attributes", "regions", "parameters") for m in description.members.get(group, ())]
    assert [m.name for m in members if not m.text] == []
    assert "<custom" not in (description.syntax or "")
    assert not re.search(r"<[A-Z]\w*>", description.syntax or ""), "add the directive to `_DIRECTIVES`"
    assert not re.search(r"^    \w+: ", re.sub(r"```.*?```", "", description.body, flags=re.S), re.M)


def test_the_pages_are_those_of_the_definitions() -> None:
    folder = ROOT / "docs" / "reference"
    pages = dialect_pages.pages()
    assert sorted(pages) == sorted(path.name for path in folder.iterdir())
    for name, text in pages.items():
        assert (folder / name).read_text(encoding="utf-8") == text, f"{name}: run `make docs`"
    assert pages["how_to_read.md"].count("[2, 0]") >= 4
    assert all(len(line) <= 120 for line in pages["how_to_read.md"].splitlines() if not line.startswith("|"))


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert dl_opt.main(["--help-op", name]) == 0
    return capsys.readouterr().out


def test_help_of_an_operation_and_of_a_type(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("tile.dot", capsys)
    assert "Syntax: tile.dot %lhs, %rhs, %acc (atom <atom>)? : type(%lhs), " in text
    assert "atom  string, optional; tensor-core instruction." in text
    assert "Created by: convert-loop-to-tile, tile-select-mma." in text
    assert "Defined in dialects/tile/kernel.py." in text
    both = help_of("tile.ring", capsys)
    assert both.startswith("tile.ring\n")
    assert "\n!tile.ring\n" in both
    assert help_of("!tile.ring", capsys) == both[both.index("!tile.ring\n\nType") :]
    layout = help_of("tile.layout", capsys)
    assert "lane  list of lists of integers; `lane[i]` is the basis" in layout
    assert "copy                  one of sync, cp_async, tma, default sync; how" in help_of("#tile.schedule", capsys)


def test_help_of_a_dialect_and_of_other_packages(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("kernel", capsys)
    assert [cls.name for cls in dialect_of("kernel").operations if f"\n{cls.name} " not in text] == []  # pyright: ignore
    assert text.index("dialects/kernel/memory.py:") < text.index("dialects/kernel/barriers.py:")
    addf = help_of("arith.addf", capsys)
    assert "lhs  float or vector of float or tensor of float T" in addf
    assert "Created by" not in addf
    add = help_of("torch.add.Tensor", capsys)
    assert "alpha  Scalar, default 1" in add


def test_inherited_texts_and_uses() -> None:
    members = describe(find("kernel.ldmatrix")[0]).members
    assert {m.name: m.text for m in members["attributes"]}["trans"] == "transpose each matrix."
    assert "lane 8 * m + r supplies the address" in describe(find("kernel.ldmatrix")[0]).body
    uses = uses_of(DotOp)
    assert "tile-delay-dots" in uses.matched
    assert "convert-loop-to-tile" not in uses.matched
    assert uses_of(FuncOp).created == ("convert-tile-to-kernel", "host-horizontal-fusion")
