"""Language models on the cores: the tokens of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import PROMPT, greedy, tiny_config, tiny_model

from deplodock.frontend.llm.generate import Generator
from deplodock.tools.cli import main


@pytest.mark.auto
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_tokens_are_those_of_transformers(dtype: torch.dtype) -> None:
    model = tiny_model("llama").to(dtype)
    generator = Generator.from_model(model, context=32, prefill=8)
    assert {p.executor.name for p in (generator.prefill, generator.decode)} == {"cpu"}
    expected = greedy(model, 16)
    assert len(set(expected)) > 4
    assert list(generator(PROMPT, 16)) == expected


@pytest.mark.auto
def test_the_command_generates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    tiny_config("llama").to_json_file(config)
    options = ["--random-weights", "--prompt-ids", "1,2,3", "--max-new-tokens", "4", "--context", "16", "--length", "4"]
    told = []
    for executor in ([], ["--executor", "reference"]):
        assert main(["generate", str(config), *options, *executor]) == 0
        told.append(capsys.readouterr().out.splitlines()[-1])
    assert told[0] == told[1]
    assert len(told[0].split(",")) == 4
