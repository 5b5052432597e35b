"""Where a printed program comes from: the version, the target, the source and the options of the compiler.

They are attributes of the module, so that they survive reading, passes and printing; in CUDA they are a comment. There
is no date and no absolute path among them: the same program gives the same text everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp, StringAttr

_PREFIX = "deplodock."


def stamp(module: ModuleOp, facts: Mapping[str, str]) -> None:
    """Note `facts` (`{"version": "0.1.0"}`) on a module."""
    module.attributes.update({f"{_PREFIX}{name}": StringAttr(text) for name, text in facts.items() if text})


def stamp_of(module: ModuleOp) -> dict[str, str]:
    """What is noted on a module, in the order in which it was."""
    found = {n.removeprefix(_PREFIX): a for n, a in module.attributes.items() if n.startswith(_PREFIX)}
    return {name: a.data for name, a in found.items() if isinstance(a, StringAttr)}


def stamp_comment(module: ModuleOp) -> str:
    """What is noted on a module as a comment of C++, a line for each fact; empty where nothing is."""
    return "".join(f"// deplodock {name}: {' '.join(text.split())}\n" for name, text in stamp_of(module).items())
