"""Answers that harm, or never end, are ended by their limits, and change nothing outside of their folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deplodock.extras.learn import confinement
from deplodock.extras.learn.course import Exercise
from deplodock.extras.learn.judging import Judges
from deplodock.extras.learn.verdicts import Verdict

Judged = Callable[[str], Verdict]

HOST = """
from deplodock.extras.learn.host import serve
from deplodock.extras.learn.course import Exercise
from deplodock.extras.learn.judging import Judges
serve(lambda number: Exercise("any", "", ".py", lambda a: str(a.namespace()["__name__"]), (), (), 1, 1 << 30, number))
"""
"""Host whose only exercise executes the answer as Python."""

EXERCISE = Exercise("any", "Any Python", ".py", lambda answer: "", (), number="0.0")


@pytest.fixture(scope="module")
def judges() -> Iterator[Judges]:
    """Yields a connection to one host process for all answers."""
    with Judges((sys.executable, "-c", HOST)) as connection:
        yield connection


@pytest.fixture
def judged(judges: Judges, tmp_path: Path) -> Callable[[str], Verdict]:
    """Returns a function that judges an answer."""

    def judge(code: str) -> Verdict:
        file = tmp_path / "answer.py"
        file.write_text(code, encoding="utf-8")
        return judges.judge(EXERCISE, file)

    return judge


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """Yields a file that must stay as it is."""
    file = tmp_path / "precious.txt"
    file.write_text("precious", encoding="utf-8")
    yield file
    assert file.read_text(encoding="utf-8") == "precious"
    assert [f.name for f in tmp_path.iterdir() if f.name != "answer.py"] == ["precious.txt"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("while True: pass", "more than 1 s"),
        ("import time; time.sleep(60)", "more than 1 s"),
        ("x = bytearray(10 << 30)", "more than 1024 MB"),
        ("import numpy\nx = numpy.ones(10 << 27)", "more than 1024 MB"),
        ("open('big', 'wb').write(bytes(1 << 27))", "line 1: OSError: [Errno 27] File too large"),
        ("import os; os._exit(0)", "ended its process before it was judged"),
        ("raise SystemExit", "line 1: the answer ends its process"),
        ("import ctypes; ctypes.string_at(0)", "ended by SIGSEGV"),
        ("x = 1\ny = x / 0", "line 2: ZeroDivisionError"),
        ("def f(:", "line 1: invalid syntax"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "may not call socket.connect"),
    ],
)
def test_an_answer_ends(code: str, text: str, precious: Path, judged: Judged) -> None:
    verdict = judged(code)
    assert not verdict.solved
    assert text in verdict.text


@pytest.mark.parametrize(
    "call",
    ["os.remove({})", "open({}, 'w')", "os.rename({}, 'here')", "os.truncate({}, 0)", "os.chmod({}, 0)",
     "shutil.rmtree(os.path.dirname({}))", "os.symlink('x', {} + '.link')", "os.mkdir({} + '.folder')"],
)  # fmt: skip
def test_python_may_not_change_other_files(call: str, precious: Path, judged: Judged) -> None:
    verdict = judged(f"import os, shutil\n{call.format(repr(str(precious)))}")
    assert not verdict.solved
    assert "in its own folder" in verdict.text
    assert precious.name in verdict.text or "rmtree" in call


needs_landlock = pytest.mark.skipif(not confinement.landlock_version(), reason="the kernel has no Landlock")


@needs_landlock
@pytest.mark.parametrize(
    "code",
    [
        "import ctypes\nassert ctypes.CDLL(None).unlink({!r}.encode()) == -1",
        "import subprocess\nassert subprocess.run(['rm', {!r}]).returncode",
        "import subprocess\nassert subprocess.run('echo >' + {!r}, shell=True).returncode",
    ],
)
def test_other_code_may_not_change_other_files(code: str, precious: Path, judged: Judged) -> None:
    verdict = judged(code.format(str(precious)))
    assert verdict.solved, verdict.text


def test_an_answer_may_write_in_its_folder(precious: Path, judged: Judged) -> None:
    code = "open('here', 'w').write('x'); import tempfile; tempfile.TemporaryFile(); print(open('here').read())"
    verdict = judged(code)
    assert (verdict.solved, verdict.output) == (True, "x")


def test_processes_of_an_answer_end_with_it(judged: Judged) -> None:
    code = (
        "import os, time\nfor i in range(3):\n  if not os.fork():\n    os.setsid(); time.sleep(60)\n"
        "print(*open(f'/proc/self/task/{os.getpid()}/children').read().split(), flush=True)"
    )
    start = time.monotonic()
    verdict = judged(code)
    assert verdict.solved
    assert time.monotonic() - start < 30
    assert len(verdict.output.split()) == 3
    assert not [pid for pid in verdict.output.split() if Path(f"/proc/{pid}").exists()]
