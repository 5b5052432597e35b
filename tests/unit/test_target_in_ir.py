"""The target is in the IR: passes and printers do not read the machine, and the text of a program has the numbers."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cuda.printer import print_cuda
from deplodock.dialects.support.parsing import make_context, parse_module
from deplodock.dialects.support.printing import print_module
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.record_file import RecordFile
from deplodock.target import architectures, host
from deplodock.target.architectures import TARGETS, UNFITTED, arch_of, get_target
from deplodock.target.attribute import TargetAttr, set_target, target_of
from deplodock.target.model import Target

ROOT = Path(__file__).resolve().parent.parent.parent

LINEAR = """
func.func @main(%x: tensor<128x1024xbf16>, %w: tensor<1024x512xbf16>) -> tensor<128x512xbf16> {
  %0 = payload.cast %x : tensor<128x1024xbf16> -> tensor<128x1024xf32>
  %1 = tensor.index_map %0[d0, d2] : tensor<128x1024xf32> -> tensor<128x512x1024xf32>
  %2 = payload.cast %w : tensor<1024x512xbf16> -> tensor<1024x512xf32>
  %3 = tensor.index_map %2[d2, d1] : tensor<1024x512xf32> -> tensor<128x512x1024xf32>
  %4 = arith.mulf %1, %3 : tensor<128x512x1024xf32>
  %5 = tensor.reduce add %4 over [2] : tensor<128x512x1024xf32> -> tensor<128x512xf32>
  %y = payload.cast %5 : tensor<128x512xf32> -> tensor<128x512xbf16>
  func.return %y : tensor<128x512xbf16>
}
"""

PIPELINE = "tensor-to-loop,loop-to-tile,tile-to-kernel"


def lowered(text: str, pipeline: str = PIPELINE) -> tuple[ModuleOp, str]:
    """A program at the kernel level, and its CUDA or C++."""
    ctx = make_context()
    module = parse_module(ctx, text, "program.mlir")
    run_passes(ctx, module, parse_passes(pipeline))
    return module, print_cpp(module) if target_of(module).core is not None else print_cuda(module)


@pytest.fixture
def another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which the machine is another one: a fitted model, measured cores, and a foreign /proc."""

    def change() -> None:
        monkeypatch.setattr(host, "_told", lambda: ("Another processor", ["sse2", "avx", "avx2"]))
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
    """The machine is looked at anew before and after each test."""
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
    """What the driver knows of a machine is in the text, and gives the same kernels elsewhere."""
    module = parse_module(make_context(), LINEAR, "program.mlir")
    plain = Compilation(module.clone(), target, level="tensor")
    printed = plain.text("cuda")
    another_machine()
    there = Compilation(module.clone(), target, level="tensor")
    text, kernels = there.text("loop", places=True), there.text("cuda")
    known = "rates.mma = 6.147e14 op_per_s" if target == "sm_90a" else "costs.pack = 2.0 vector_ops"
    assert known in text
    assert known in kernels
    assert kernels != printed
    monkeypatch.undo()
    monkeypatch.setenv(host.CORES, host.NONE)
    host.measured_cores.cache_clear()
    assert kernels.endswith(lowered(text, "loop-to-tile,tile-to-kernel")[1])
    assert printed.endswith(lowered(plain.text("loop", places=True), "loop-to-tile,tile-to-kernel")[1])


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
from deplodock.passes import get_all_passes
from deplodock.dialects import get_all_dialects
for load in [*get_all_passes().values(), *get_all_dialects().values()]:
    load()
from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cuda.printer import print_cuda
from deplodock.dialects.support.parsing import make_context, parse_module
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
    """A run of all levels in a process in which files, databases and the environment cannot be read."""
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
    "passes/convert/torch_to_tensor/registry.py": "the modules of its folder",
    "dialects/torch/__init__.py": "a table of the package",
    "target/architectures.py": "a table of the package",
    "backend/cpp/device.py": "a header of the package",
    "backend/cpu/printer.py": "headers of the package",
}
"""Files below the driver that open files, each with the reason."""

MACHINE = {"os", "sqlite3", "pathlib", "platform", "subprocess", "socket", "tempfile", "shutil", "glob"}


def reads_of(text: str) -> list[str]:
    """The modules of the machine that a source file imports, and its calls of `open`."""
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
    """What a pass was told, the passes after it read, too."""
    module, text = lowered(LINEAR, f'tensor-to-loop{{target="cpu{{isa=neon cores=3}}"}},{PIPELINE.partition(",")[2]}')
    assert target_of(module).name == "cpu{isa=neon cores=3}"
    assert "__global__" not in text
    set_target(module, get_target("sm_80"))
    assert target_of(module) == get_target("sm_80")
    module.attributes.clear()
    assert target_of(module) == get_target(architectures.DEFAULT)


def test_an_architecture_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, capabilities, features and numbers: then programs are planned and printed for it, and devices found."""
    like = UNFITTED["sm_90a"]
    record = Target(**{**vars(like), "name": "sm_100a", "card": "B200", "capabilities": ((10, 0),), "sms": 148})
    monkeypatch.setitem(UNFITTED, record.name, record)
    monkeypatch.setitem(TARGETS, record.name, record)
    module, text = lowered(LINEAR, f"tensor-to-loop{{target=sm_100a}},{PIPELINE.partition(',')[2]}")
    assert "#deplodock.target<sm_100a>" in print_module(module)
    assert "__global__" in text
    assert arch_of((10, 0)) == "sm_100a"
    assert str(TargetAttr(get_target("sm_100a:140"))) == '#deplodock.target<"sm_100a:140">'
    get_target.cache_clear()
