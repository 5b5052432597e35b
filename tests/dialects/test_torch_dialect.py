"""The torch dialect against PyTorch's operator schemas, and the decompositions against the dialect."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from support.aten import overload
from xdsl.dialects import test
from xdsl.dialects.builtin import TensorType, f32
from xdsl.utils.exceptions import VerifyException

from deplodock.dialects import torch as dialect
from deplodock.dialects.torch import OPS, SCHEMAS
from deplodock.errors import PluginError
from deplodock.passes.convert.torch_to_tensor.conversion import STORAGE_ARGUMENTS, get_decompositions


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_pytorchs_own(name: str) -> None:
    schema = str(overload(name)._schema).removeprefix("aten::").replace("::", ".", 1)
    assert SCHEMAS[name].text == re.sub(r"\([a-z]( -> \*)?\)", "", schema).replace("SymInt", "int")
    assert not overload(name)._schema.is_mutable


def test_defaults_are_pytorchs_own() -> None:
    for name, schema in SCHEMAS.items():
        theirs = {a.name: a for a in overload(name)._schema.arguments}
        for argument in schema.arguments:
            if argument.name == "generator" and "generator" not in theirs:
                assert schema.random
                continue
            assert argument.has_default == theirs[argument.name].has_default_value(), (name, argument)
            if argument.has_default and argument.base not in ("MemoryFormat", "ScalarType", "Layout"):
                ours, want = argument.default, theirs[argument.name].default_value
                lone = argument.is_list and isinstance(ours, int)
                assert ([ours] * argument.length if lone else ours) == want, (name, argument)


def test_every_operator_has_a_decomposition_that_reads_all_its_arguments() -> None:
    table = get_decompositions()
    assert sorted(table) == sorted(SCHEMAS)
    for name, function in table.items():
        parameters = list(inspect.signature(function).parameters.values())[1:]
        parameters = [p for p in parameters if p.kind != p.KEYWORD_ONLY]  # those are bound
        assert all(p.kind == p.POSITIONAL_OR_KEYWORD for p in parameters), name
        needed = {p.name for p in parameters if p.default is p.empty}
        arguments = set(SCHEMAS[name].names) - STORAGE_ARGUMENTS
        assert arguments <= {p.name for p in parameters}, (name, "ignores an argument")
        assert needed <= arguments, (name, "wants an argument that ATen does not have")


def test_an_operator_of_a_script_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCHEMAS", "OPS", "_CLASSES"):
        monkeypatch.setattr(dialect, name, getattr(dialect, name).copy())
    for _ in range(2):
        dialect.add_operators("mine.twice(Tensor x) -> Tensor")
    assert [op.name for op in dialect._CLASSES if "mine" in op.name] == ["torch.mine.twice"]
    assert dialect.OPS["mine.twice"].SCHEMA is dialect.SCHEMAS["mine.twice"]
    with pytest.raises(PluginError, match=r"'mine.twice' exists already: mine.twice\(Tensor x\) -> Tensor"):
        dialect.add_operators("mine.twice(Tensor self) -> Tensor")


def test_building_an_op_checks_its_arguments() -> None:
    t = TensorType(f32, [4])
    x = test.TestOp(result_types=[t]).results[0]
    op = OPS["add.Tensor"]({"self": x, "other": x, "alpha": 2}, [t])
    assert op.values == {"self": x, "other": x, "alpha": 2}
    assert OPS["sum.dim_IntList"]({"self": x, "dim": 0}, [t]).values["dim"] == [0]
    with pytest.raises(VerifyException, match="expected one of the arguments .*, but got 'scale'"):
        OPS["relu"]({"self": x, "scale": 1}, [t])
    with pytest.raises(VerifyException, match="expected a Scalar as argument 'alpha', but got none"):
        OPS["add.Tensor"]({"self": x, "other": x, "alpha": None}, [t])
    with pytest.raises(VerifyException, match="expected a bool as argument 'keepdim', but got 1"):
        OPS["amax"]({"self": x, "keepdim": 1}, [t])


def test_scalars_keep_their_kind() -> None:
    t = TensorType(f32, [4])
    x = test.TestOp(result_types=[t]).results[0]
    kinds = [type(OPS["add.Scalar"]({"self": x, "other": v}, [t]).values["other"]) for v in (True, 1, 1.0)]
    assert kinds == [bool, int, float]


def test_uint8_is_computed_on_as_i32_and_stored_unsigned() -> None:
    x = torch.tensor([250, 3], dtype=torch.uint8)
    from support.aten import evaluate

    (ours,), (theirs,) = evaluate("add.Scalar", x, 10)
    assert torch.equal(ours, theirs)
