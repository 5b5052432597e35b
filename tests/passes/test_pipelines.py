"""Pipeline text: additions to the default pipeline, values without quotes, and error messages."""

from __future__ import annotations

import re

import pytest

from deplodock.frontend.pipeline_steps import default_steps
from deplodock.passes.pipelines import PipelineError, parse_passes, pipeline_text


def names(text: str, *insert: str) -> list[str]:
    return [p.name for p in parse_passes(text, insert=insert)]


def test_insertions_extend_named_pipelines() -> None:
    before, after = "cse:before=tile-select-mma", "canonicalize,cse:after=convert-loop-to-tile"
    plain, extended = names("loop-to-tile"), names("loop-to-tile", before, after)
    at = extended.index("tile-select-mma")
    assert extended[at - 1] == "cse"
    at = extended.index("convert-loop-to-tile")
    assert extended[at + 1 : at + 3] == ["canonicalize", "cse"]
    assert len(extended) == len(plain) + 3
    assert names("default", after).count("canonicalize") == 1
    assert names("convert-loop-to-tile", after) == ["convert-loop-to-tile"], "the user wrote the whole pipeline"


def test_inserted_passes_take_the_options_of_a_compilation() -> None:
    insert = ["tensor-plan-fusion{strategy=none}:before=convert-tensor-to-loop"]
    text = pipeline_text(default_steps(["loop"], {"target": ("sm_80",)}, insert)["loop"])
    assert re.search(r"tensor-plan-fusion\{strategy=none target=sm_80\},convert-tensor-to-loop", text), text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cse", "expected PASSES:after=NAME or PASSES:before=NAME, but got 'cse'"),
        (":after=cse", "expected PASSES:after=NAME"),
        ("cse:beside=tile-select-mma", "expected PASSES:after=NAME"),
        ("cse:after=tile-select-nma", "is no pass of the default pipeline, did you mean 'tile-select-mma'?"),
        ("canonicalize:after=cse", "'cse' occurs 7 times in the default pipeline; name a pass that occurs once"),
        ("csee:after=tile-select-mma", "unknown pass 'csee', did you mean 'cse'?"),
    ],
)
def test_refused_insertions(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)):
        parse_passes("default", insert=[text])


@pytest.mark.parametrize("value", ["patterns.mlir", "/a/b-c/patterns.mlir", "../p.mlir", "12.mlir", '"a b.mlir"'])
def test_file_names_need_no_quotes(value: str) -> None:
    (module_pass,) = parse_passes(f"apply-pdl{{pdl_file={value}}}")
    assert module_pass.spec().parameters == {"pdl_file": (value.strip('"'),)}
    assert parse_passes(pipeline_text([module_pass])) == (module_pass,)


def test_a_message_shows_where_reading_stopped() -> None:
    with pytest.raises(PipelineError, match=re.escape("cannot read the pipeline 'cse,dce{a=1' at '': Malformed")):
        parse_passes("cse,dce{a=1")
    with pytest.raises(PipelineError, match=re.escape("at ' dce': Expected a comma")):
        parse_passes("cse dce")
