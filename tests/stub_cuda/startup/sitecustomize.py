"""With this folder in PYTHONPATH every Python process sees the stub: it is put in place right after `torch`."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from pathlib import Path
from typing import Any


class _After(importlib.abc.MetaPathFinder):
    """Runs `then` when the module `name` has been imported."""

    def __init__(self, name: str, then: Any) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                self.then()

            spec.loader.exec_module = exec_module  # pyright: ignore
        return spec


def _install() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
    import stub_cuda

    stub_cuda.install(setattr).__enter__()
    run = threading.Thread.run

    def run_on_device(self: threading.Thread) -> None:
        with stub_cuda.OnDevice():
            run(self)

    threading.Thread.run = run_on_device


sys.meta_path.insert(0, _After("torch", _install))
