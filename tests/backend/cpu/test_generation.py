"""Language models on the CPU generate the same tokens as transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.tiny_models import PROMPT, greedy, tiny_config, tiny_model
from torch import nn

import deplodock
from deplodock.extras.llm.generate import Generator
from deplodock.extras.llm.models import to_int8
from deplodock.tools.cli import main


@pytest.mark.auto
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_tokens_are_those_of_transformers(dtype: torch.dtype) -> None:
    model = tiny_model("llama").to(dtype)
    generator = Generator.from_model(model, context=32, prefill=8)
    assert {p.executor.name for p in (generator.prefill, generator.decode)} == {"cpu"}
    tokens = list(generator(PROMPT, 16))
    assert len(set(tokens)) > 4
    if dtype == torch.float32:
        assert tokens == greedy(model, 16)
    with torch.no_grad():  # in bf16 processors round sums in other orders, and two tokens may be as likely
        logits = model.float()(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    assert (logits.amax(-1) - chosen <= 0.01 * logits.abs().amax(-1)).all()


def test_weights_of_8_bits_stand_for_those_that_were_there() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(320, 24)
    with torch.no_grad():
        linear.weight[:, :64] *= 100  # a group of large weights takes nothing from the others
        linear.weight[3] = 0
    model = to_int8(nn.Sequential(linear))
    found = model[0]
    assert (found.weight.dtype, found.scale.shape) == (torch.int8, (24, 5))
    stands_for = found.weight.unflatten(1, (5, 64)) * found.scale.unsqueeze(-1)
    error = (stands_for - linear.weight.unflatten(1, (5, 64))).abs().amax(-1)
    assert (error <= 0.501 * found.scale).all()
    x = torch.randn(3, 320)
    expected = F.linear(x, stands_for.flatten(1), linear.bias)
    for found in (model(x), deplodock.compile(model, (x,), target="cpu")(x)):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.auto
@pytest.mark.parametrize("weights", [[], ["--quantize", "int8"]])
def test_the_command_generates(weights: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    tiny_config("llama").to_json_file(config)
    options = ["--random-weights", "--prompt-ids", "1,2,3", "--max-new-tokens", "4", "--context", "16", "--length", "4"]
    options += weights
    told = []
    for executor in ([], ["--executor", "reference"]):
        assert main(["generate", str(config), *options, *executor]) == 0
        told.append(capsys.readouterr().out.splitlines()[-1])
    assert told[0] == told[1]
    assert len(told[0].split(",")) == 4


def test_a_quantized_model_is_saved_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`compile MODEL --quantize int8 -o` writes an artifact with its weights, which generates as the model does."""
    tiny_model("llama").save_pretrained(folder := tmp_path / "model")
    steps = ["--context", "16", "--length", "4", "--target", "cpu"]
    artifact = str(tmp_path / "artifact")
    assert main(["compile", str(folder), "--quantize", "int8", "-o", artifact, *steps]) == 0
    prompt, told = ["--prompt-ids", "1,2,3", "--max-new-tokens", "4"], []
    capsys.readouterr()
    for source in ([artifact], [str(folder), "--quantize", "int8", *steps]):
        assert main(["generate", *source, *prompt]) == 0
        told.append(capsys.readouterr().out.splitlines()[-1])
    assert told[0] == told[1]
    assert main(["compile", str(folder), "--quantize", "int8", "--ir", "torch", "--phase", "decode", *steps]) == 0
    assert "xi8>" in capsys.readouterr().out
    assert main(["generate", artifact, "--quantize", "int8", *prompt]) == 2
