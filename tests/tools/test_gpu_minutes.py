"""`benchmarks/gpu_minutes.sh`: its limits, and how it continues. `--rehearsal` runs all steps on a stub of a GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu_minutes.sh"
STUB = ROOT / "tests" / "stub_cuda"


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the modules `running`, `steps` and `summary` of the script."""
    monkeypatch.syspath_prepend(str(ROOT))
    return tuple(import_module(f"benchmarks.gpu_minutes.{name}") for name in ("running", "steps", "summary"))


def shell(steps: Any, name: str, text: str, limit: float = 20, **more: Any) -> Any:
    return steps.Step(name, ("sh", "-c", text), limit, **more)


def states_of(folder: Path) -> dict[str, Any]:
    """Returns the last state of each step."""
    return {e.pop("step"): e for e in map(json.loads, (folder / "state.jsonl").read_text().splitlines())}


def test_every_step_is_recorded_and_none_stops_the_next(minutes: Any, tmp_path: Path) -> None:
    running, steps, _ = minutes
    runner = running.Runner(ROOT, tmp_path, time.monotonic() + 60)
    todo = [
        shell(steps, "good", "echo hello"),
        shell(steps, "bad", "echo no >&2; exit 4"),
        shell(steps, "slow", "echo begins; sleep 30 & wait", limit=0.5),
        steps.Step("absent", ("no-such-tool",), 5),
        shell(steps, "left out", "exit 1", skipped="is not installed"),
        shell(steps, "last", "true"),
    ]
    for step in todo:
        runner.run(step)
    states = states_of(tmp_path)
    assert {name: (s["status"], s.get("says", "")) for name, s in states.items()} == {
        "good": ("done", "hello"),
        "bad": ("failed", "no"),
        "slow": ("over its limit", "begins"),
        "absent": ("failed", "cannot be started: [Errno 2] No such file or directory: 'no-such-tool'"),
        "left out": ("skipped", "is not installed"),
        "last": ("done", ""),
    }
    assert states["bad"]["code"] == 4
    assert (tmp_path / "log.txt").read_text().startswith("\n$ sh -c echo hello\nhello\n\n$ sh -c echo no")
    again = running.Runner(ROOT, tmp_path, time.monotonic() + 60)
    for step in todo:
        again.run(step)
    assert again.states == states


def test_a_step_goes_on_in_the_next_call(minutes: Any, tmp_path: Path) -> None:
    """A step writes three lines over several calls: one ends with its budget, and one is killed."""
    running, steps, _ = minutes
    lines = tmp_path / "lines"
    text = f'while [ $(cat "{lines}" 2>/dev/null | wc -l) -lt 3 ]; do echo x >> "{lines}"; sleep 0.4; done'
    step = shell(steps, "long", text, resumable=True, results=lines)
    first = running.Runner(ROOT, tmp_path, time.monotonic() + 0.6)
    first.run(step)
    assert first.states["long"]["status"] == "unfinished"
    assert not first.is_done(step)
    first._save(step, status="running", tries=1)  # what is left of a call that was killed
    second = running.Runner(ROOT, tmp_path, time.monotonic() + 60)
    second.run(step)
    assert second.states["long"]["status"] == "done"
    assert lines.read_text() == "x\n" * 3


def test_a_lost_device_is_no_end(minutes: Any, tmp_path: Path) -> None:
    """A process that ends after a new result is started again; one without new results fails."""
    running, steps, _ = minutes
    lines = tmp_path / "lines"
    text = f'echo x >> "{lines}"; [ $(cat "{lines}" | wc -l) -ge 3 ] || exit 70'
    runner = running.Runner(ROOT, tmp_path, time.monotonic() + 60)
    runner.run(shell(steps, "loses it", text, resumable=True, results=lines))
    runner.run(shell(steps, "stays where it is", "exit 70", resumable=True, results=tmp_path / "none"))
    assert [s["status"] for s in runner.states.values()] == ["done", "failed"]


def test_a_command_ends_with_a_script_that_is_killed(minutes: Any, tmp_path: Path) -> None:
    """A command that survived its script would share the GPU with the next call."""
    code = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from benchmarks.gpu_minutes import running, steps\n"
        "command = ('sh', '-c', f'echo $$ > {sys.argv[2]}/number; exec sleep 60')\n"
        "runner = running.Runner(Path('/'), Path(sys.argv[2]), time.monotonic() + 60)\n"
        "runner.run(steps.Step('long', command, 50))"
    )
    script = subprocess.Popen([sys.executable, "-c", code, str(ROOT), str(tmp_path)])
    while not _text(tmp_path / "number").endswith("\n"):
        assert script.poll() is None
        time.sleep(0.05)
    script.kill()
    script.wait()
    status = Path(f"/proc/{_text(tmp_path / 'number').strip()}/status")
    for _ in range(100):
        if not status.exists() or "State:\tZ" in _text(status):
            return
        time.sleep(0.05)
    raise AssertionError("the command runs on")


def test_what_has_no_time_waits_for_the_next_call(minutes: Any, tmp_path: Path) -> None:
    running, steps, _ = minutes
    runner = running.Runner(ROOT, tmp_path, time.monotonic() + 10)
    runner.run(shell(steps, "first", "true"))
    step = shell(steps, "whole", "true", limit=100)
    runner.run(step)
    assert not runner.is_done(step)
    again = running.Runner(ROOT, tmp_path, time.monotonic() + 10)
    again.run(step)
    assert again.is_done(step)


def test_journal_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished cases are not run again, errors are rows, and a case that ended its process twice is given up."""
    monkeypatch.syspath_prepend(str(ROOT))
    Journal: Any = import_module("benchmarks.common.journal").Journal
    path, runs = tmp_path / "cases.jsonl", list[str]()

    def case(name: str) -> Any:
        def measure() -> dict[str, Any]:
            runs.append(name)
            if name == "bad":
                raise ValueError("no good")
            return {"right": True}

        return measure

    first = Journal(path)
    assert first.run("good", case("good")) == {"right": True}
    assert first.run("bad", case("bad")) == {"right": False, "error": "ValueError: no good"}
    with path.open("a") as file:
        file.write('{"begun": "hangs"}\n{"begun": "hangs"}\n{"begun": "was kil')
    second = Journal(path)
    assert [second.run(n, case(n))["right"] for n in ("good", "bad", "hangs")] == [True, False, False]
    assert runs == ["good", "bad"]
    assert "did not end" in second.rows["hangs"]["error"]


def test_a_case_that_a_person_stopped_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    Journal: Any = import_module("benchmarks.common.journal").Journal

    def interrupted() -> dict[str, Any]:
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            Journal(tmp_path / "cases.jsonl").run("case", interrupted)
    assert Journal(tmp_path / "cases.jsonl").run("case", lambda: {"right": True}) == {"right": True}


def environment(**more: str) -> dict[str, str]:
    """Returns the environment of a process that sees the stubbed GPU and its tools."""
    path = f"{STUB / 'bin'}{os.pathsep}{os.environ['PATH']}"
    more = {"PYTHONPATH": str(STUB / "startup"), "PYTHON": sys.executable, **more}
    return {**{k: v for k, v in os.environ.items() if k != "OUT"}, "PATH": path, **more}


def call(folder: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Calls the script for one small case."""
    command = [str(SCRIPT), "--small", "--cases", "rmsnorm.tinyllama.s32", "--out", str(folder), *options]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, check=False)


def test_packages_come_from_the_bundle_or_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel is unpacked only for a module that the machine lacks."""
    monkeypatch.syspath_prepend(str(ROOT))
    machine: Any = import_module("benchmarks.gpu_minutes.machine")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(machine, "NEEDED", {"json": "json", "not_there": "not-there==1.0", "nowhere": "nowhere"})
    monkeypatch.setattr(machine, "BUNDLED", ("json", "not_there"))
    (tmp_path / "wheels").mkdir()
    for name in ("json", "not_there"):
        with zipfile.ZipFile(tmp_path / "wheels" / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "")
    missing = machine.provide(tmp_path / "wheels", tmp_path / "site")
    assert [m for m in missing if m != "nvidia-cuda-nvrtc"] == ["nowhere"]
    assert sorted(p.name for p in (tmp_path / "site").iterdir()) == ["deplodock", "not_there"]


def test_missing_packages_are_named_at_once(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import sys\nsys.modules['cupy'] = sys.modules['click'] = None\n")
    done = call(tmp_path / "out", "--bundle", str(tmp_path / "none"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 3
    assert "Python packages are missing, here and in" in done.stdout
    assert "none: cupy-cuda13x, click\n" in done.stdout
    assert not (tmp_path / "out").exists()


def test_limits_are_nine_minutes_and_results_eight_files(minutes: Any, tmp_path: Path) -> None:
    _, steps, _ = minutes
    made = steps.steps(steps.Settings(tmp_path, tmp_path, tmp_path), {})
    assert sum(step.limit for step in made) == 540
    assert {step.results.name for step in made if step.results is not None} <= set(steps.FILES)
    assert len(steps.FILES) == 8


def test_the_first_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    suite: Any = import_module("benchmarks.suite.run")
    monkeypatch.setattr(suite, "predict", lambda case, target: {"right": None, "error": ""})
    command = ["seed84", "--predict", "--only", "rmsnorm.tinyllama", "--dtype", "f32", "--journal", os.devnull]
    done = CliRunner().invoke(suite.main, [*command, "--first", ".s512", "--first", ".s128"])
    assert re.findall(r"\.s(\d+) f32", done.output) == ["512", "128", "32"], done.output


TESTS = """
import os, pytest

def test_passes(): pass
def test_fails(): assert 1 + 1 == 3
def test_emulates(): exec(compile("raise ValueError('no g++')", "/x/backend/emulator/program.py", "exec"))
def test_dies(): os._exit(6)
"""


def test_outcomes_of_tests_have_an_origin(tmp_path: Path, minutes: Any) -> None:
    """Outcomes are written one by one, and a second call runs the remaining tests."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    journal = tmp_path / "tests.jsonl"
    gpu_tests: Any = import_module("benchmarks.gpu_minutes.gpu_tests")
    how = (sys.executable, "-m", "pytest", "-q", "-p", "gpu_tests", "-p", "no:cacheprovider", "-n", "1", "test_some.py")
    path = str(ROOT / "benchmarks" / "gpu_minutes")
    for expected in (4, 0):
        known = str(journal.stat().st_size if journal.exists() else 0)
        variables = {"PYTHONPATH": path, gpu_tests.JOURNAL: str(journal), gpu_tests.KNOWN: known}
        outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(how, env={**outer, **variables}, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == (1 if expected else 5), done.stdout
    found = {
        name.partition("::")[2]: (e["outcome"], e.get("origin")) for name, e in gpu_tests.outcomes(journal).items()
    }
    assert found == {
        "test_passes": ("passed", None),
        "test_fails": ("failed", "device"),
        "test_emulates": ("failed", "emulator"),
        "test_dies": ("failed", "process"),
    }
    assert "says" in gpu_tests.outcomes(journal)["test_some.py::test_fails"]


def test_rehearsal(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Runs all steps: the bundle is made, and the script is killed during a step and called again with its files.

    A sanitizer reports an error, and a step exceeds its limit.
    """
    if not request.config.getoption("--rehearsal"):
        pytest.skip("takes minutes: --rehearsal")
    bundle, first, out = tmp_path / "bundle", tmp_path / "first", tmp_path / "out"
    make = [sys.executable, "-m", "benchmarks.gpu_minutes.bundle", str(bundle), "--small"]
    subprocess.run([*make, "--only", "rmsnorm.tinyllama.s32"], cwd=ROOT, check=True)
    options = ("--bundle", str(bundle), "--limit", "smoke=200", "--limit", "uses=300")
    command = [str(SCRIPT), "--small", "--cases", "rmsnorm.tinyllama.s32", "--out", str(first), *options]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True)
    while '"step": "uses", "status": "running"' not in _text(first / "state.jsonl"):
        assert process.poll() is None, _text(first / "log.txt")
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    options = (*options, "--resume", str(first), "--limit", "seed84=0.5")
    for _ in range(5):
        done = call(out, *options, STUB_SANITIZER_FINDS="racecheck")
        if done.returncode != 75:
            break
    assert done.returncode == 1, done.stdout + done.stderr
    assert "programs are compiled here" not in done.stdout
    assert {name: s["status"] for name, s in states_of(out).items()} == {
        **dict.fromkeys(("smoke", "uses", "gpu-tests", "right", "memcheck"), "done"),
        "racecheck": "failed",
        "seed84": "over its limit",
        "ncu": "failed",
    }, _text(out / "log.txt")
    assert _text(out / "smoke.jsonl").startswith(_text(first / "smoke.jsonl").rpartition("\n")[0])
    assert "racecheck  failed" in done.stdout
    assert "ERROR SUMMARY: 1 error" in done.stdout
    assert "right: 2 of 2 right" in done.stdout
    assert {f.name for f in out.iterdir()} <= set(Path(f).name for f in FILES)


FILES = "state.jsonl smoke.jsonl gpu-tests.jsonl right.jsonl seed84.jsonl ncu.txt log.txt summary.txt".split()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
