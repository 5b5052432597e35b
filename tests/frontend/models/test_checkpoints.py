"""Generation from a folder with weights: read late, each once, found under any of their names, refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import PROMPT, greedy, tiny_model

from deplodock.extras.artifact.safetensors import Checkpoint, WeightError
from deplodock.extras.llm.generate import Generator
from deplodock.extras.llm.models import load_config, stored_as_used
from deplodock.tools.cli import main


def saved(family: str, path: Path, shard: str = "16KB", **changes: int) -> object:
    """A tiny model, and a folder with its configuration and weights in several files."""
    model = tiny_model(family, **changes)
    model.save_pretrained(path, max_shard_size=shard)
    return model


@pytest.mark.parametrize("family", ["llama-tied", "gpt2"])
def test_weights_of_a_folder_are_read_late_and_once(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(family, tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    read: list[str] = []
    monkeypatch.setattr(
        Checkpoint, "tensor", lambda self, name, real=Checkpoint.tensor: read.append(name) or real(self, name)
    )
    generator = Generator.from_checkpoint(str(tmp_path), context=40, prefill=8, executor="reference")
    assert len(set(read)) == len(read)
    assert list(generator(PROMPT, 8)) == greedy(model, 8)


def test_a_checkpoint_without_the_head_has_shorter_names(tmp_path: Path) -> None:
    model = saved("gpt2", tmp_path, "1GB")
    state = load_file(tmp_path / "model.safetensors")
    short = {k.removeprefix("transformer."): v for k, v in state.items() if k != "lm_head.weight"}
    save_file(short, tmp_path / "model.safetensors")
    generator = Generator.from_checkpoint(str(tmp_path), context=40, prefill=8, executor="reference")
    assert list(generator(PROMPT, 4)) == greedy(model, 4)


def test_models_whose_weights_are_stored_otherwise_are_loaded_by_transformers(tmp_path: Path) -> None:
    model = saved("mixtral", tmp_path, num_hidden_layers=1)
    assert not stored_as_used(load_config(str(tmp_path)))
    generator = Generator.from_checkpoint(str(tmp_path), context=40, prefill=8, executor="reference")
    assert list(generator(PROMPT, 4)) == greedy(model, 4)


def test_missing_and_wrong_tensors_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("llama", tmp_path, "1GB")
    state, file = load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors"
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({k: v for k, v in state.items() if k != name}, file)
    with pytest.raises(WeightError, match=f"has no tensor '{name}'"):
        Generator.from_checkpoint(str(tmp_path), executor="reference")
    save_file({**state, name: torch.zeros(3, 4)}, file)
    with pytest.raises(WeightError, match=rf"{name}: is of shape \[3, 4\], the program needs \[48, 32\]"):
        Generator.from_checkpoint(str(tmp_path), executor="reference")
    file.unlink()
    assert main(["generate", str(tmp_path), "--prompt-ids", "1"]) == 1
    assert "there are no weights in safetensors files" in capsys.readouterr().err
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: "gone.safetensors"}}))
    with pytest.raises(WeightError, match=r"gone\.safetensors"):
        Generator.from_checkpoint(str(tmp_path), executor="reference")


def test_drawing_on_the_command_line_is_repeatable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("llama", tmp_path, num_hidden_layers=1)

    def drawn(*options: str) -> str:
        command = ["generate", str(tmp_path), "--prompt-ids", "5,17,42", "--max-new-tokens", "12", "--length", "4"]
        assert main([*command, "--context", "24", "--executor", "reference", *options]) == 0
        out, err = capsys.readouterr()
        assert "tokens/s" in err
        assert len(out.strip().split(",")) == 12
        return out

    first = drawn("--temperature", "3", "--top-p", "0.95", "--seed", "1")
    assert drawn("--temperature", "3", "--top-p", "0.95", "--seed", "1") == first
    assert drawn("--temperature", "3", "--top-p", "0.95", "--seed", "2") != first
    assert drawn("--temperature", "3", "--top-p", "0.0001", "--seed", "2") == drawn("--greedy")
