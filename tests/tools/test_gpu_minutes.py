"""`benchmarks/first_gpu_hour.sh`: its limits and how it goes on, and with `--rehearsal` all of it on a stubbed GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "first_gpu_hour.sh"
STUB = ROOT / "tests" / "stub_cuda"


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules `running`, `steps` and `summary` of the script."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu_hour"))
    names = ("running", "steps", "summary")
    yield tuple(import_module(name) for name in names)
    for name in names:
        sys.modules.pop(name)


def shell(steps: Any, name: str, text: str, limit: float = 20, **more: Any) -> Any:
    return steps.Step(name, ("sh", "-c", text), limit, **more)


def test_every_step_is_recorded_and_none_stops_the_next(hour: Any, tmp_path: Path) -> None:
    running, steps, _ = hour
    runner = running.Runner(ROOT, tmp_path, time.monotonic() + 60)
    todo = [
        shell(steps, "good", "echo hello"),
        shell(steps, "bad", "echo no >&2; exit 4"),
        shell(steps, "slow", "sleep 30 & wait", limit=0.5),
        steps.Step("absent", ("no-such-tool",), 5),
        shell(steps, "left out", "exit 1", skipped="is not installed"),
        shell(steps, "last", "true"),
    ]
    for step in todo:
        runner.run(step)
    states = json.loads((tmp_path / "state.json").read_text())
    assert {name: s["status"] for name, s in states.items()} == {
        "good": "done",
        "bad": "failed",
        "slow": "over its limit",
        "absent": "failed",
        "left out": "skipped",
        "last": "done",
    }
    assert (tmp_path / "good.log").read_text().endswith("hello\n")
    assert states["bad"]["code"] == 4
    assert "cannot be started" in (tmp_path / "absent.log").read_text()
    again = running.Runner(ROOT, tmp_path, time.monotonic() + 60)
    for step in todo:
        again.run(step)
    assert again.states == states


def test_a_step_goes_on_in_the_next_call(hour: Any, tmp_path: Path) -> None:
    """One line a call until there are three; the budget of the first call ends in between, and one call is killed."""
    running, steps, _ = hour
    lines = tmp_path / "lines"
    text = f'while [ $(cat "{lines}" 2>/dev/null | wc -l) -lt 3 ]; do echo x >> "{lines}"; sleep 0.4; done'
    step = shell(steps, "long", text, on=True, results=lines)
    first = running.Runner(ROOT, tmp_path, time.monotonic() + 0.6)
    first.run(step)
    assert first.states["long"]["status"] == "unfinished"
    assert not first.is_done(step)
    first._save(first.states["long"], status="running", tries=1)  # what is left of a call that was killed
    second = running.Runner(ROOT, tmp_path, time.monotonic() + 60)
    second.run(step)
    assert second.states["long"]["status"] == "done"
    assert lines.read_text() == "x\n" * 3


def test_a_lost_device_is_no_end(hour: Any, tmp_path: Path) -> None:
    """A process that ended after a case goes on with the next one; one that gets nowhere fails."""
    running, steps, _ = hour
    lines = tmp_path / "lines"
    text = f'echo x >> "{lines}"; [ $(cat "{lines}" | wc -l) -ge 3 ] || exit 70'
    runner = running.Runner(ROOT, tmp_path, time.monotonic() + 60)
    runner.run(shell(steps, "loses it", text, on=True, results=lines))
    runner.run(shell(steps, "stays where it is", "exit 70", on=True, results=tmp_path / "none"))
    assert [s["status"] for s in runner.states.values()] == ["done", "failed"]


def test_a_command_ends_with_a_script_that_is_killed(hour: Any, tmp_path: Path) -> None:
    """Or it would share the device with the next call's."""
    code = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import running, steps\n"
        "command = ('sh', '-c', f'echo $$ > {sys.argv[2]}/number; exec sleep 60')\n"
        "runner = running.Runner(Path('/'), Path(sys.argv[2]), time.monotonic() + 60)\n"
        "runner.run(steps.Step('long', command, 50))"
    )
    script = subprocess.Popen([sys.executable, "-c", code, str(ROOT / "benchmarks" / "gpu_hour"), str(tmp_path)])
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


def test_what_has_no_time_waits_for_the_next_call(hour: Any, tmp_path: Path) -> None:
    running, steps, _ = hour
    runner = running.Runner(ROOT, tmp_path, time.monotonic() + 10)
    runner.run(shell(steps, "first", "true"))
    step = shell(steps, "whole", "true", limit=100)
    runner.run(step)
    assert not runner.is_done(step)
    again = running.Runner(ROOT, tmp_path, time.monotonic() + 10)
    again.run(step)
    assert again.is_done(step)


def test_journal_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that are done are not run again; errors are rows; what was begun twice and did not end is given up."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    Journal: Any = import_module("journal").Journal
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
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    Journal: Any = import_module("journal").Journal

    def interrupted() -> dict[str, Any]:
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            Journal(tmp_path / "cases.jsonl").run("case", interrupted)
    assert Journal(tmp_path / "cases.jsonl").run("case", lambda: {"right": True}) == {"right": True}


def environment(**more: str) -> dict[str, str]:
    """That of a process that sees the stubbed GPU and its tools."""
    path = f"{STUB / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(STUB / "startup"), "PYTHON": sys.executable, **more}


def call(folder: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), "--small", "--cases", "rmsnorm.tinyllama.s32", "--out", str(folder), *options]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, check=False)


def test_versions(tmp_path: Path) -> None:
    done = call(tmp_path, "--only", "versions")
    assert (done.returncode, done.stderr) == (0, "")
    assert "NVIDIA H200: driver 13.0, nvrtc " in done.stdout
    found = json.loads((tmp_path / "versions.json").read_text())
    assert found["card"]["clocks.max.sm"] == "1980 MHz"
    assert found["device of torch"]["multi_processor_count"] == 132
    assert [k for k, v in found.items() if str(v).startswith("not known")] in ([], ["triton"])


def test_missing_packages_are_said_at_once(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text("import sys\nsys.modules['cupy'] = sys.modules['xdsl'] = None\n")
    done = call(tmp_path / "out", PYTHONPATH=str(tmp_path))
    assert done.returncode == 3
    assert "Python packages are missing: cupy-cuda13x, xdsl==0.74.0" in done.stdout
    assert not (tmp_path / "out").exists()


def test_rehearsal(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """All steps: killed in the midst of one, gone on with, one over its limit, one that fails."""
    if not request.config.getoption("--rehearsal"):
        pytest.skip("takes minutes: --rehearsal")
    command = [str(SCRIPT), "--small", "--cases", "rmsnorm.tinyllama.s32", "--out", str(tmp_path)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True)
    while '"right": {\n  "status": "running"' not in _text(tmp_path / "state.json"):
        assert process.poll() is None, _text(tmp_path / "summary.txt")
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(5):
        done = call(tmp_path, "--limit", "targets=0.5", STUB_SANITIZER_FINDS="racecheck")
        if done.returncode != 75:
            break
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tmp_path / "summary.json").read_text())
    assert {name: s["status"] for name, s in found["steps"].items()} == {
        **dict.fromkeys(("versions", "compile-ahead", "gpu-tests", "right", "memcheck"), "done"),
        "racecheck": "failed",
        "synccheck": "done",
        "targets": "over its limit",
        "seed84": "done",
        "ncu": "done",
    }
    assert found["right"]["right"] == found["right"]["cases"] == 2
    assert found["seed84"]["geomean"] > 0
    assert found["seed84"]["without graphs"] == []
    assert found["sanitizers"]["racecheck"] == "ERROR SUMMARY: 1 error"
    assert len(list((tmp_path / "ncu").glob("*.txt"))) == 2


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
