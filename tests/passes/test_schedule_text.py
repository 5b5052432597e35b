"""The text of a schedule is the same in the IR, in `--explain`, in `--schedule` and in records."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.linear import LINEAR

from deplodock.dialects import make_context
from deplodock.dialects.loop import NestOp
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.frontend.compilation import Compilation
from deplodock.frontend.tuning.building import parse_schedule
from deplodock.passes.planning.choose import explain_nest
from deplodock.passes.planning.plan_schedules import options_of
from deplodock.passes.record_file import Entry, RecordFile
from deplodock.passes.records import Record, plan_key
from deplodock.target.attribute import get_target

PROGRAM = """
func.func @main(%x: tensor<64x96xf32>, %w: tensor<96x128xf32>) -> tensor<64x128xf32> {
  %0 = tensor.index_map %x[d0, d2] : tensor<64x96xf32> -> tensor<64x128x96xf32>
  %1 = tensor.index_map %w[d2, d1] : tensor<96x128xf32> -> tensor<64x128x96xf32>
  %2 = arith.mulf %0, %1 : tensor<64x128x96xf32>
  %y = tensor.reduce add %2 over [2] : tensor<64x128x96xf32> -> tensor<64x128xf32>
  func.return %y : tensor<64x128xf32>
}
"""


def _compiled(program: str, schedule: str | None = None) -> Compilation:
    module = parse_module(make_context(), program, "program.mlir")
    return Compilation(module, "sm_90a", level="tensor", record="none", schedule=schedule)


@pytest.mark.parametrize("program", [PROGRAM, LINEAR], ids=["f32", "bf16"])
def test_a_schedule_has_one_text(program: str, tmp_path: Path) -> None:
    compilation = _compiled(program)
    module = compilation.scheduled()
    (nest,) = [op for op in module.walk() if isinstance(op, NestOp)]
    text = str(nest.attributes["schedule"])
    assert ("blocks_per_sm" in text) == (program is LINEAR)
    key, short = plan_key(nest), text.removeprefix("#tile.schedule")
    assert f"schedule = {text}" in print_module(module)
    record = Record(str(tmp_path / "record.json"))
    record.add_nest(nest, "sm_90a")
    assert record.schedules["sm_90a"][key][0] == text
    with RecordFile(tmp_path / "records.db") as file:
        file.add([Entry(key, "sm_90a", "", text, seconds=1e-6)])
        assert file.plans().schedules["sm_90a"][key][0] == text
    assert str(parse_schedule(text)) == text
    for written in (text, short, options_of(parse_schedule(text))):
        assert _compiled(program, written).text("cuda") == compilation.text("cuda")
    del nest.attributes["schedule"]
    first = explain_nest("k0", nest, get_target("sm_90a")).splitlines()[1]
    assert f"  {short}  " in first
