"""The target is an attribute of the IR with all numbers. Passes and printers do not read the local machine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.linear import LINEAR
from support.recipes import RECORD
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cuda.printer import print_cuda
from deplodock.dialects import make_context
from deplodock.dialects.loop import NestOp
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.errors import TargetError
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.planning.choose import rank
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.passes.record_file import RecordFile
from deplodock.passes.tensor.fusion import contractions
from deplodock.target import architectures, host
from deplodock.target.architectures import CPU, TARGETS
from deplodock.target.attribute import TargetAttr, get_target, set_target, target_of
from deplodock.target.model import UNKNOWN, Target, problem_of

PIPELINE = "tensor-to-loop,loop-to-tile,tile-to-kernel"


def lowered(text: str, pipeline: str = PIPELINE) -> tuple[ModuleOp, str]:
    """Returns a program at the kernel level, and its CUDA or C++."""
    ctx = make_context()
    module = parse_module(ctx, text, "program.mlir")
    run_passes(ctx, module, parse_passes(pipeline))
    return module, print_cpp(module) if target_of(module).core is not None else print_cuda(module)


@pytest.fixture
def another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that replaces the local machine: other fitted constants, measured rates and processor."""

    def change() -> None:
        monkeypatch.setattr(host, "_cpuinfo", lambda: ("Another processor", ["sse2", "avx", "avx2"]))
        monkeypatch.setattr(host, "caches", lambda: {"L1d": 1 << 16, "L2": 1 << 22, "L3": 1 << 26})
        monkeypatch.setattr(host, "cores", lambda: 24)
        (tmp_path / "cores.json").write_text(host.Measured(host.processor(), 24, 90e9, 200e9, 400e9, 4).written())
        with RecordFile(tmp_path / "records.db") as file:
            file.set_constants("sm_90a", "NVIDIA H200", {"rates.cache": 0.5, "rates.mma": 1.5}, {})
            file.set_constants("cpu", host.device_of_cores(), {"costs.pack": 0.1, "costs.step": 30.0}, {})
        monkeypatch.setenv(host.CORES, str(tmp_path / "cores.json"))
        monkeypatch.setenv(host.RECORDS, str(tmp_path / "records.db"))
        host.measured_cores.cache_clear()

    return change


@pytest.fixture(autouse=True)
def nothing_remembered() -> object:
    """Clears the cache of measured rates before and after each test."""
    host.measured_cores.cache_clear()
    yield None
    host.measured_cores.cache_clear()


@pytest.mark.parametrize("target", ["sm_90a", "cpu", "cpu{isa=avx2 cores=4}", ""])
def test_passes_do_not_see_the_machine(target: str, another_machine: Callable[[], None]) -> None:
    option = f'{{target="{target}"}}' if target else ""
    pipeline = f"tensor-to-loop{option},loop-to-tile{option},tile-to-kernel{option}"
    before = lowered(LINEAR, pipeline)
    another_machine()
    after = lowered(LINEAR, pipeline)
    assert print_module(before[0]) == print_module(after[0])
    assert before[1] == after[1]


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
def test_the_text_of_a_program_reproduces(
    target: str, another_machine: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of the local machine are in the text, which gives the same kernels on another machine."""
    module = parse_module(make_context(), LINEAR, "program.mlir")
    plain = Compilation(module.clone(), target, level="tensor")
    printed = plain.text("cuda")
    another_machine()
    there = Compilation(module.clone(), target, level="tensor")
    text, kernels = there.text("loop", with_locations=True), there.text("cuda")
    known = "rates.mma = 6.147e14 op_per_s" if target == "sm_90a" else "costs.pack = 2.0 vector_ops"
    assert known in text
    assert known in kernels
    assert kernels != printed
    monkeypatch.undo()
    monkeypatch.setenv(host.CORES, host.NONE)
    host.measured_cores.cache_clear()
    assert kernels.endswith(lowered(text, "loop-to-tile,tile-to-kernel")[1])
    assert printed.endswith(lowered(plain.text("loop", with_locations=True), "loop-to-tile,tile-to-kernel")[1])


def test_no_record_means_none(another_machine: Callable[[], None]) -> None:
    another_machine()
    module = parse_module(make_context(), LINEAR, "program.mlir")
    text = Compilation(module, "sm_90a", level="tensor", record=host.NONE).text("loop")
    assert "deplodock.target = #deplodock.target<sm_90a>" in text


GUARDED = """
import os, sys
allowed = tuple(map(os.path.realpath, [sys.prefix, sys.base_prefix, ROOT, *sys.path[1:]]))
def guard(event, args):
    outside = event in ("open", "os.listdir", "os.scandir") and not os.path.realpath(str(args[0])).startswith(allowed)
    if active and (outside or event.startswith(("sqlite3.", "subprocess.", "socket.", "os.system"))):
        raise RuntimeError(f"the compiler touches the machine: {event} {args[0]}")
active = False
sys.addaudithook(guard)
from deplodock.passes.pipelines import get_all_passes
from deplodock.dialects import get_all_dialects
for load in [*get_all_passes().values(), *get_all_dialects().values()]:
    load()
from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cuda.printer import print_cuda
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
passes = [parse_passes("tensor-to-loop{target=%s},loop-to-tile,tile-to-kernel" % t) for t in ("sm_90a", "cpu")]
class NoEnvironment(dict):
    def __getitem__(self, name):
        raise RuntimeError("the compiler reads the environment: " + name)
    def get(self, name, default=None):
        return self[name]
os.environ = NoEnvironment()
for name in ("sched_getaffinity", "cpu_count", "uname"):
    setattr(os, name, lambda *args: 1 / 0)
active = True
for some, text in zip(passes, (print_cuda, print_cpp)):
    ctx = make_context()
    module = parse_module(ctx, LINEAR, "program.mlir")
    run_passes(ctx, module, some)
    text(module)
print("done", len(sys.modules))
"""


def test_passes_and_printers_touch_nothing_of_the_machine() -> None:
    """All levels run in a process that cannot read files, databases and the environment."""
    code = f"ROOT = {str(ROOT)!r}\nLINEAR = {LINEAR!r}\n{GUARDED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("done"), done.stderr


BELOW = sorted(
    path
    for pattern in (
        "passes/**/*.py",
        "dialects/**/*.py",
        "target/*.py",
        "backend/cuda/*.py",
        "backend/cpp/*.py",
    )
    for path in ROOT.glob(pattern)
    if path.suffix == ".py" and path != ROOT / "target" / "host.py"
) + [
    ROOT / "backend" / "cpu" / f"{name}.py"
    for name in ("printer", "groups", "writer", "panels", "ordering", "ends", "folds")
]

MAY_READ = {
    "passes/record_file.py": "the database that an option names",
    "passes/records.py": "the file that an option names",
    "dialects/torch/__init__.py": "a table of the package",
    "target/architectures.py": "a table of the package",
    "backend/cpp/device.py": "a header of the package",
    "backend/cpu/printer.py": "headers of the package",
}
"""Files below the driver that open files, each with the reason."""

MACHINE = {"os", "sqlite3", "pathlib", "platform", "subprocess", "socket", "tempfile", "shutil", "glob"}


def reads_of(text: str) -> list[str]:
    """Returns the modules about the local machine that a source text imports, and its calls of `open`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in MACHINE]
        elif isinstance(node, ast.ImportFrom) and (node.level == 0 or "target" in f"{node.module}.".split(".")):
            names = {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
            found += [n for n in names if n.split(".")[0] in MACHINE or n.endswith("target.host")]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            found.append("open")
    return found


def test_files_below_the_driver_read_nothing() -> None:
    found = {p.relative_to(ROOT).as_posix(): reads for p in BELOW if (reads := reads_of(p.read_text(encoding="utf-8")))}
    assert {name: reads for name, reads in found.items() if name not in MAY_READ} == {}
    assert MAY_READ.keys() == found.keys()
    assert not [
        name for name, reads in found.items() if {"os", "sqlite3"} & {*reads} and name != "passes/record_file.py"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from pathlib import Path",
        "from ..target.host import cores",
        "from ...target import host",
        "open('x')",
        "import os.path as p",
        "def f():\n    import sqlite3",
    ],
)
def test_reads_are_found(text: str) -> None:
    assert reads_of(text)


def test_an_option_of_a_pass_sets_the_target() -> None:
    """The option `target` of a pass sets the target for later passes too."""
    module, text = lowered(LINEAR, f'tensor-to-loop{{target="cpu{{isa=neon cores=3}}"}},{PIPELINE.partition(",")[2]}')
    assert target_of(module).name == "cpu{isa=neon cores=3}"
    assert "__global__" not in text
    set_target(module, get_target("sm_80"))
    assert target_of(module) == get_target("sm_80")
    module.attributes.clear()
    assert target_of(module) == get_target(architectures.DEFAULT)


SM_100: Target = eval(RECORD.strip().removesuffix(","), vars(architectures))
"""An architecture that does not exist."""


@pytest.mark.parametrize("record", [SM_100, replace(SM_100, rates=UNKNOWN)], ids=["rates", "no rates"])
def test_a_program_of_a_new_architecture_runs(record: Target, stub_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new architecture needs one record: programs are planned, printed and run for it.

    Without rates, the strategies that need no planning model decide.
    """
    import torch

    import deplodock

    monkeypatch.setitem(TARGETS, record.name, record)
    get_target.cache_clear()
    stub_cuda.capability, stub_cuda.multiprocessors = (10, 0), record.sms

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w + b).softmax(-1)

    args = [torch.randn(shape) for shape in ((48, 32), (32, 80), (80,))]
    compiled = deplodock.compile(function, args, target=record.name, executor="cuda")
    loops = compiled.ir("loop")
    assert "#deplodock.target<sm_100>" in loops
    simple = deplodock.compile(function, args, target=record.name, executor="cuda", strategy="simple").ir("loop")
    assert (loops == simple) == (not record.rates.known)
    result = compiled(*(t.to("cuda") for t in args))
    torch.testing.assert_close(result.cpu(), function(*args), rtol=1e-4, atol=1e-5)
    assert stub_cuda.launches
    assert str(TargetAttr(get_target("sm_100:38"))) == '#deplodock.target<"sm_100:38">'
    get_target.cache_clear()


def test_records_have_the_numbers_of_machines() -> None:
    """All records of targets are valid, since an attribute that names a record is not verified again."""
    for record in (*TARGETS.values(), CPU):
        assert problem_of(record) is None
    assert problem_of(replace(SM_100, sms=0)) == "sms is 0"


def test_a_target_without_rates_has_no_times() -> None:
    module = parse_module(make_context(), LINEAR, "program.mlir")
    scheduled = Compilation(module, "sm_90a", level="tensor", record=host.NONE).scheduled()
    nest = next(op for op in scheduled.walk() if isinstance(op, NestOp))
    with pytest.raises(TargetError, match="sm_100 has no rates, so no time can be predicted; use strategy=simple"):
        rank(NestInfo(nest), replace(SM_100, rates=UNKNOWN))


SUMS = """
func.func @main(%x: tensor<1024x1024xf32>) -> (tensor<1024xf32>, tensor<1024xf32>) {
  %e = math.exp %x : tensor<1024x1024xf32>
  %a = tensor.reduce add %e over [0] : tensor<1024x1024xf32> -> tensor<1024xf32>
  %b = tensor.reduce add %e over [1] : tensor<1024x1024xf32> -> tensor<1024xf32>
  func.return %a, %b : tensor<1024xf32>, tensor<1024xf32>
}
"""


@pytest.mark.parametrize(("special", "nests"), [("4.0e12", 2), ("1.0e9", 3)])
def test_fusion_reads_the_target_of_the_module(special: str, nests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusion duplicates exponentials if the module's target says that they are cheap, whatever the tables say."""
    for name, record in TARGETS.items():
        slow = replace(record.rates, special=1.0)
        monkeypatch.setitem(TARGETS, name, replace(record, rates=slow, fusion=replace(record, rates=slow)))
    attribute = f"#deplodock.target<sm_90a, fusion.rates.special = {special} op_per_s>"
    text = f"builtin.module attributes {{deplodock.target = {attribute}}} {{{SUMS}}}"
    module = parse_module(make_context(), text, "program.mlir")
    run_passes(make_context(), module, parse_passes("tensor-to-loop"))
    assert len([op for op in module.walk() if isinstance(op, NestOp)]) == nests


def test_fusion_predicts_with_the_precision_that_schedules_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option `f32_matmul_precision` is passed to the planning model that fusion uses."""
    asked = list[str]()
    monkeypatch.setattr(
        contractions, "rank", lambda info, target, precision: asked.append(precision) or rank(info, target)
    )
    module = parse_module(make_context(), NORMED, "program.mlir")
    run_passes(make_context(), module, parse_passes("tensor-to-loop{f32_matmul_precision=tf32}"))
    assert {*asked} == {"tf32"}


NORMED = """
func.func @main(%x: tensor<512x1024xf32>, %w: tensor<1024x1024xf32>) -> tensor<512x1024xf32> {
  %0 = arith.mulf %x, %x : tensor<512x1024xf32>
  %1 = tensor.reduce add %0 over [1] : tensor<512x1024xf32> -> tensor<512xf32>
  %2 = math.rsqrt %1 : tensor<512xf32>
  %3 = tensor.index_map %2[d0] : tensor<512xf32> -> tensor<512x1024xf32>
  %4 = arith.mulf %x, %3 : tensor<512x1024xf32>
  %5 = tensor.index_map %4[d0, d2] : tensor<512x1024xf32> -> tensor<512x1024x1024xf32>
  %6 = tensor.index_map %w[d2, d1] : tensor<1024x1024xf32> -> tensor<512x1024x1024xf32>
  %7 = arith.mulf %5, %6 : tensor<512x1024x1024xf32>
  %y = tensor.reduce add %7 over [2] : tensor<512x1024x1024xf32> -> tensor<512x1024xf32>
  func.return %y : tensor<512x1024xf32>
}
"""
