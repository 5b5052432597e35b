# pyright: basic
"""A lit test format that runs `dl-opt`, `deplodock`, `filecheck` and `not` inside the process that reads the test.

Most of the time of a lit test is the start of a Python process for each command. A RUN line runs in this process if it
has only the commands of `COMMANDS`, joined by `|`, `&&` and `;` with plain redirections. lit's shell runs any other
line. `lit -DSUBPROCESS` does not use this format.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import lit.formats
import lit.ShCommands
import lit.ShUtil
import lit.Test
import lit.TestRunner

from deplodock.tools.calls import call

Main = Callable[[list[str]], int]


class NotInProcess(Exception):
    """A RUN line that cannot run in this process and needs a shell."""


def _dl_opt(args: list[str]) -> int:
    from deplodock.tools.dl_opt import main

    return main(args)


def _deplodock(args: list[str]) -> int:
    from deplodock.tools.cli import main

    return main(args)  # pyright: ignore


def _filecheck(args: list[str]) -> int:
    from filecheck.main import main

    main(["filecheck", *args])
    return 0


COMMANDS: dict[str, Main] = {"dl-opt": _dl_opt, "deplodock": _deplodock, "filecheck": _filecheck}


class InProcess(lit.formats.ShTest):
    """The lit test format: each file is a test with RUN lines."""

    def execute(self, test, litConfig):  # noqa: N803
        parsed = lit.TestRunner.parseIntegratedTestScript(test)
        if isinstance(parsed, lit.Test.Result):
            return parsed
        tmp_dir, tmp_base = lit.TestRunner.getTempPaths(test)
        substitutions = lit.TestRunner.getDefaultSubstitutions(test, tmp_dir, tmp_base)
        conditions = {feature: True for feature in test.config.available_features}
        lines = lit.TestRunner.applySubstitutions(parsed, substitutions, conditions)
        scripts = [re.sub(r"^%dbg\([^)]*\)\s*", "", line) for line in lines]
        os.makedirs(tmp_dir, exist_ok=True)
        try:
            trees = [_check(lit.ShUtil.ShParser(script, False, True).parse()) for script in scripts]
        except (NotInProcess, ValueError):
            return super().execute(test, litConfig)
        log: list[str] = []
        failed = False
        for script, tree in zip(scripts, trees, strict=True):
            log.append(f"$ {script}")
            if _run(tree, Path(test.getSourcePath()).parent, log) != 0:
                failed = True
                break
        expected = test.isExpectedToFail()
        code = (
            (lit.Test.XFAIL if expected else lit.Test.FAIL) if failed else lit.Test.XPASS if expected else lit.Test.PASS
        )
        return lit.Test.Result(code, "\n".join(log))


def _check(tree):
    """Returns `tree`, a parsed RUN line, if its commands can run in this process. Raises NotInProcess otherwise."""
    if isinstance(tree, lit.ShCommands.Seq):
        if tree.op not in ("&&", ";"):
            raise NotInProcess
        _check(tree.lhs)
        _check(tree.rhs)
        return tree
    for command in tree.commands:
        args = command.args[1:] if command.args[0] == "not" else command.args
        if not all(isinstance(arg, str) for arg in args) or not args or args[0] not in COMMANDS:
            raise NotInProcess
        for (kind, *descriptor), _file in command.redirects:
            if (kind, tuple(descriptor)) not in {(">", ()), ("<", ()), (">&", (2,)), (">", (2,))}:
                raise NotInProcess
    return tree


def _run(tree, folder: Path, log: list[str]) -> int:
    if isinstance(tree, lit.ShCommands.Seq):
        code = _run(tree.lhs, folder, log)
        return _run(tree.rhs, folder, log) if tree.op == ";" or code == 0 else code
    data, result = b"", 0
    for command in tree.commands:
        data, code = _run_command(command, data, folder, log)
        result = result or code
    if data:
        log.append(data.decode("utf-8", "replace"))
    return (0 if result else 1) if tree.negate else result


def _run_command(command, stdin: bytes, folder: Path, log: list[str]) -> tuple[bytes, int]:
    args: Sequence[str] = command.args
    negate = args[0] == "not"
    if negate:
        args = args[1:]
    redirects = {(kind, *descriptor): file for (kind, *descriptor), file in command.redirects}
    if ("<",) in redirects:
        stdin = (folder / redirects["<",]).read_bytes()
    code, out, err = call(COMMANDS[args[0]], list(args[1:]), stdin, merge=(">&", 2) in redirects)
    if (">", 2) in redirects:
        (folder / redirects[">", 2]).write_bytes(err)
    elif err:
        log.append(err.decode("utf-8", "replace"))
    if (">",) in redirects:
        (folder / redirects[">",]).write_bytes(out)
        out = b""
    if negate:
        code = 0 if code else 1
    if code:
        log.append(f"-> {args[0]} failed with {code}")
    return out, code
