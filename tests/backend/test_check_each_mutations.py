"""How many bugs the check after each pass detects: small changes of a kernel, one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from xdsl.utils.exceptions import VerifyException

from deplodock.backend.check_each import Checker
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

SOURCE = """
func.func @main(%x: tensor<16x64xf32>, %b: tensor<64xf32>, %w: tensor<64x16xf32>) -> tensor<16x16xf32> {
  %c = tensor.index_map %b[d1] : tensor<64xf32> -> tensor<16x64xf32>
  %s = arith.addf %x, %c : tensor<16x64xf32>
  %l = tensor.index_map %s[d0, d2] : tensor<16x64xf32> -> tensor<16x16x64xf32>
  %r = tensor.index_map %w[d2, d1] : tensor<64x16xf32> -> tensor<16x16x64xf32>
  %p = arith.mulf %l, %r : tensor<16x16x64xf32>
  %m = tensor.reduce add %p over [2] : tensor<16x16x64xf32> -> tensor<16x16xf32>
  %z = payload.constant 0.0 : tensor<16x16xf32>
  %y = arith.maximumf %m, %z : tensor<16x16xf32>
  func.return %y : tensor<16x16xf32>
}
"""
SWAPS = (("arith.addf", "arith.subf"), ("arith.maximumf", "arith.minimumf"), ("arith.addi", "arith.subi"))
NUMBER = re.compile(r"(?<![%\w.])\d+(?![\w.])")


def parse(text: str):
    return parse_module(make_context(), text, "test.mlir")


@pytest.fixture(scope="module")
def compiled() -> list[str]:
    module = parse(SOURCE)
    run_passes(make_context(), module, parse_passes("tensor-to-loop,loop-to-tile,tile-to-kernel"))
    return str(module).splitlines()


def changes(line: str) -> Iterator[str]:
    """Yields the line with one number or one operation replaced, or an empty line for a barrier."""
    if "kernel.barrier" in line:
        yield ""
    for old, new in SWAPS:
        if old in line:
            yield line.replace(old, new)
    head, colon, types = line.partition(" : ")
    for found in NUMBER.finditer(head):
        yield f"{head[: found.start()]}{int(found.group()) + 1}{head[found.end() :]}{colon}{types}"


def verdict(checker: Checker, text: str) -> str:
    """Returns `caught` by the check, `refused` by the parser or a verifier, or `missed`."""
    try:
        module = parse(text)
        module.verify()
    except (CompileError, VerifyException, ValueError):
        return "refused"
    try:
        checker.after("kernel-insert-barriers", module)
    except CompileError:
        return "caught"
    return "missed"


def test_planted_changes_are_caught(compiled: list[str]):
    checker = Checker(parse(SOURCE))
    checker.after("kernel-insert-barriers", parse("\n".join(compiled)))
    verdicts: list[str] = []
    for number, line in enumerate(compiled):
        if any(word in line for word in ("func", "launch", "return", "module")):
            continue
        for changed in changes(line):
            text = "\n".join([*compiled[:number], changed, *compiled[number + 1 :]])
            verdicts.append(verdict(checker, text))
            assert verdicts[-1] == "caught" or "kernel.barrier" not in line, f"line {number}: {line}"
    caught, missed = verdicts.count("caught"), verdicts.count("missed")
    assert caught >= 30
    assert missed <= caught / 6, f"{missed} missed, {caught} caught"  # some changes mean the same
