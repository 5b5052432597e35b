"""Artifacts: what is saved comes back the same; what is damaged, old, or for something else is refused in one line."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import ROOT
from support.tiny_models import PROMPT, greedy, tiny_config, tiny_model
from torch import nn

import deplodock
from deplodock.errors import CompileError, ExecutionError, ShapeError, TargetError
from deplodock.extras.artifact.programs import MANIFEST, ArtifactError, canonical, digest, load
from deplodock.extras.artifact.safetensors import Checkpoint, WeightError, names_of_tensors
from deplodock.extras.llm.generate import Generator
from deplodock.extras.llm.models import build_model
from deplodock.extras.llm.steps import compile_model
from deplodock.frontend import executors
from deplodock.tools.cli import main


class Pair(nn.Module):
    """Nested arguments and results, a constant among them, a parameter used twice, a buffer, an in-place update."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, inputs: dict[str, torch.Tensor], power: int, *, twice: bool = False) -> dict[str, Any]:
        self.count += 1
        y = (inputs["a"] @ self.weight + inputs["b"]) ** power * self.scale
        return {"y": y @ self.weight.T if twice else y, "rest": (y.sum(-1), power, inputs["a"])}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("artifact") / "saved"
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    deplodock.compile(module, (torch.randn(3, 8),), executor="reference").save(path)
    return path


def test_the_page_explains_every_key_of_the_manifest(saved: Path) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    page = (ROOT / "docs" / "artifact.md").read_text(encoding="utf-8")
    named = {key for row in re.findall(r"^\| (`.*?) \|", page, re.M) for key in re.findall(r"`(\w+)`", row)}
    assert {*manifest, *manifest["programs"]["main"]} == named


def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_a_program_comes_back_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    args = ({"a": torch.randn(3, 4), "b": torch.randn(4)}, 2)
    compiled = deplodock.compile(Pair(), args, {"twice": True}, executor="reference")
    compiled.save(tmp_path / "pair")
    expected = compiled(*args, twice=True)
    for executor in ("reference", "simulator"):
        program = deplodock.load(tmp_path / "pair", executor=executor)
        found = program(*args, twice=True)
        torch.testing.assert_close(found, expected)
        assert found["rest"][2] is args[0]["a"]
        assert program.programs["main"].ir("cuda") == compiled.ir("cuda")
    state = {b.name: b.tensor for b in program.programs["main"].captured.bindings}
    assert state["count"].item() == 1  # the update reached the loaded buffer
    with pytest.raises(ShapeError):
        program(*args, twice=False)


def test_a_program_for_the_cpu_is_built_where_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its artifact holds no text and no object that could be compiled or loaded."""
    args = ({"a": torch.randn(3, 4), "b": torch.randn(4)}, 2)
    compiled = deplodock.compile(Pair(), args, {"twice": True}, target="cpu")
    path = tmp_path / "pair"
    compiled.save(path)
    names = {"main_tensor.mlir", "main_kernel.mlir", "weights.safetensors", MANIFEST}
    assert {p.name for p in path.iterdir()} == names
    (path / "main.cpp").write_text("#error never read")
    expected = compiled(*args, twice=True)
    program = deplodock.load(path)
    torch.testing.assert_close(program(*args, twice=True), expected)
    assert program.programs["main"].executor.name == "cpu"
    assert program.programs["main"].ir("cuda") == compiled.ir("cuda")
    assert main(["run", str(path)]) == 0
    assert "executor: cpu" in capsys.readouterr().out
    with pytest.raises(TargetError, match="was compiled for cpu"):
        deplodock.load(path, target="sm_90a")
    monkeypatch.setattr(executors, "compiler_missing", lambda: "no C++ compiler")
    program = deplodock.load(path)
    torch.testing.assert_close(program(*args, twice=True), expected)
    assert program.programs["main"].executor.name == "reference"


def test_a_program_for_many_sizes_comes_back(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("rows", min=1, max=100)},)
    compiled = deplodock.compile(rows_softmax, (torch.randn(5, 3),), dynamic_shapes=shapes, executor="reference")
    compiled.save(tmp_path / "rows")
    for executor in ("reference", "simulator"):
        program = deplodock.load(tmp_path / "rows", executor=executor)
        for n in (1, 7, 100):
            x = torch.randn(n, 3)
            torch.testing.assert_close(program(x), rows_softmax(x))
        with pytest.raises(ShapeError, match="the size rows is 101, outside of 1 to 100"):
            program(torch.randn(101, 3))


def rows_softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(0) * x.shape[0]


def test_saving_again_replaces_only_artifacts(saved: Path, tmp_path: Path) -> None:
    program = deplodock.compile(torch.relu, (torch.randn(4),), executor="reference")
    program.save(tmp_path / "a")
    program.save(tmp_path / "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="is no artifact"):
        program.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_every_truncated_changed_or_missing_file_is_refused(saved: Path, tmp_path: Path) -> None:
    for name in sorted(os.listdir(saved)):
        data = (saved / name).read_bytes()
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        for broken in (data[:-1], data[: len(data) // 2], b"", bytes(changed), data + b"x", None):
            path = copied(saved, tmp_path)
            if broken is None:
                (path / name).unlink()
            else:
                (path / name).write_bytes(broken)
            with pytest.raises(ArtifactError) as caught:
                load(path)
            assert "\n" not in str(caught.value)
            shutil.rmtree(path)


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """The manifest changed by `edit`, with a digest that fits."""
    manifest = json.loads((path / MANIFEST).read_text())
    edit(manifest)
    del manifest["digest"]
    manifest["digest"] = digest(canonical(manifest))
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


def test_another_version_or_target_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="was compiled for sm_90a, not for sm_80"):
        load(saved, target="sm_80")
    path = edited(copied(saved, tmp_path), lambda m: m.update(version=8))
    with pytest.raises(ArtifactError, match="is of version 8 of the format"):
        load(path)


def _example(manifest: dict[str, Any]) -> list[Any]:
    """The data type and shape of the first example."""
    return manifest["programs"]["main"]["examples"]["tuple"][0]["tensor"]


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": lambda m: m.update(format="pickle"),
    "no files": lambda m: m.pop("files"),
    "files are a list": lambda m: m.update(files=[1, 2]),
    "a file outside": lambda m: m["files"].update({"../../etc/passwd": {"bytes": 1, "sha256": ""}}),
    "an absolute file": lambda m: m["files"].update({"/etc/passwd": {"bytes": 1, "sha256": ""}}),
    "no programs": lambda m: m.pop("programs"),
    "a program without files": lambda m: m["programs"].update(other=m["programs"]["main"]),
    "a strange structure": lambda m: m["programs"]["main"].update(arguments={"__reduce__": ["os.system", "true"]}),
    "a missing tensor": lambda m: m["programs"]["main"]["bindings"][0].update(tensor="tensor_99"),
    "a strange data type": lambda m: _example(m).__setitem__(0, "__class__"),
    "a negative shape": lambda m: _example(m).__setitem__(1, [-1, 10**30]),
    "an unknown target": lambda m: m.update(target="sm_1; rm -rf /"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_that_makes_no_sense_is_refused(name: str, saved: Path, tmp_path: Path) -> None:
    path = edited(copied(saved, tmp_path), HOSTILE[name])
    with pytest.raises(CompileError) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_links_are_not_followed(saved: Path, tmp_path: Path) -> None:
    path = copied(saved, tmp_path)
    (path / "main.cu").unlink()
    (path / "main.cu").symlink_to(saved / "main.cu")
    with pytest.raises(ArtifactError, match=r"main\.cu"):
        load(path)


def test_autocast_around_a_loaded_program(tmp_path: Path) -> None:
    """It is refused where eager PyTorch would compute with other types than when it was compiled."""
    layer, x = nn.Linear(4, 4).requires_grad_(False), torch.randn(4, 4)
    deplodock.compile(layer, (x,), executor="reference").save(tmp_path / "plain")
    with torch.autocast("cpu"):
        deplodock.compile(layer, (x,), executor="reference").save(tmp_path / "cast")
    plain, cast = (load(tmp_path / name, executor="reference") for name in ("plain", "cast"))
    assert plain(x).dtype == torch.float32
    with pytest.raises(ExecutionError, match="called without autocast and compiled under"):
        cast(x)
    with torch.autocast("cpu"):
        assert cast(x).dtype == layer(x).dtype == torch.bfloat16
        with pytest.raises(ExecutionError, match=r"under torch.autocast\('cpu', torch.bfloat16\) and compiled without"):
            plain(x)
    with torch.autocast("cpu", torch.half), pytest.raises(ExecutionError, match="float16.* and compiled .*bfloat16"):
        cast(x)
    path = edited(copied(tmp_path / "plain", tmp_path), lambda m: m["programs"]["main"].pop("autocast"))
    with pytest.raises(ArtifactError, match="lacks something.*'autocast'"):
        load(path)


def test_what_cannot_be_written_down_is_refused(tmp_path: Path) -> None:
    program = deplodock.compile(lambda x: torch.max(x, 0), (torch.randn(3, 4),), executor="reference")
    with pytest.raises(CompileError, match="cannot be saved"):
        program.save(tmp_path / "max")  # its result is a type of PyTorch's
    assert not (tmp_path / "max").exists()


def test_the_command_line_runs_artifacts(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(saved), "--executor", "emulator"]) == 0
    assert "emulator" in capsys.readouterr().out
    path = copied(saved, tmp_path)
    (path / "main.cu").write_text("")
    assert main(["run", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "main.cu is damaged" in error


def test_a_model_is_compiled_without_weights_and_run_with_them(tmp_path: Path) -> None:
    model = tiny_model("llama-tied")
    state = {k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    folder = tmp_path / "weights"
    folder.mkdir()
    half = len(state) // 2
    save_file(dict(list(state.items())[:half]), folder / "model-1.safetensors")
    save_file(dict(list(state.items())[half:]), folder / "model-2.safetensors")
    structure = build_model(tiny_config("llama-tied"))
    assert all(p.device.type == "meta" for p in structure.parameters())
    compile_model(structure, context=40, prefill=8).save(tmp_path / "saved")
    with pytest.raises(ArtifactError, match="was saved without the weights"):
        load(tmp_path / "saved")
    artifact = load(tmp_path / "saved", weights=folder, executor="reference")
    assert list(Generator.from_artifact(artifact)(PROMPT, 8)) == greedy(model, 8)
    with torch.autocast("cpu"), pytest.raises(ExecutionError, match="compiled without autocast"):
        list(Generator.from_artifact(artifact)(PROMPT, 8))
    steps = [{b.name: b.tensor for b in p.captured.bindings} for p in artifact.programs.values()]
    shared = [n for n in steps[0] if steps[0][n] is not None]
    assert all(steps[0][n] is steps[1][n] for n in shared if steps[0][n].is_floating_point() and "weight" in n)


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "a.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.names == ("a",)
    assert checkpoint.find(["b", "a"], (2, 3), torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(WeightError, match="no tensor 'b'"):
        checkpoint.find(["b"], (2, 3), torch.float32)
    with pytest.raises(WeightError, match=r"is of shape \[2, 3\], the program needs \[3, 2\]"):
        checkpoint.find(["a"], (3, 2), torch.float32)
    (tmp_path / "a.safetensors").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(WeightError, match="cannot be read"):
        Checkpoint(tmp_path)
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(WeightError, match="no weights"):
        Checkpoint(tmp_path)
    index = {"weight_map": {"a": "../a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightError, match="outside of the folder"):
        Checkpoint(tmp_path)


def test_tied_weights_have_all_their_names() -> None:
    names = names_of_tensors(tiny_model("llama-tied"))
    assert set(names["lm_head.weight"]) == {"lm_head.weight", "model.embed_tokens.weight"}
    assert names["model.norm.weight"] == ("model.norm.weight",)
