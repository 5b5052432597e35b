"""Page of the Python API: the public names of the package, described by autodoc."""

from __future__ import annotations

import inspect

import deplodock

PAGE = """# Python

The public names of `deplodock`. `import deplodock` does not import PyTorch; the first use of a name does.

| name | contents |
|---|---|
{rows}

{sections}
"""

ERRORS = """## Errors

Every error that users cause is a `DeplodockError`. These are its subclasses in addition to `CompileError`.

```{{eval-rst}}
{directives}
```
"""

SECTION = """## {name}

```{{eval-rst}}
{directive}
```
"""


def pages() -> dict[str, str]:
    """Returns the page by its path."""
    names = [name for name in dir(deplodock) if not name.startswith("_")]
    objects = {name: getattr(deplodock, name) for name in names}
    rows = "\n".join(f"| [`{name}`](#{name.lower()}) | {_summary(o)} |" for name, o in objects.items())
    sections = "\n".join(
        SECTION.format(name=name, directive=_directive(f"deplodock.{name}", o)) for name, o in objects.items()
    )
    others = [cls for cls in _subclasses(deplodock.DeplodockError) if cls not in objects.values()]
    sections += "\n" + ERRORS.format(
        directives="\n\n".join(f".. autoexception:: {cls.__module__}.{cls.__qualname__}" for cls in others)
    )
    return {"python.md": PAGE.format(rows=rows, sections=sections)}


def _summary(value: object) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()).rstrip(".")


def _subclasses(cls: type) -> list[type]:
    """Returns the subclasses of a class that the package defines, by name."""
    classes = {c for child in cls.__subclasses__() for c in (child, *_subclasses(child))}
    return sorted((c for c in classes if c.__module__.startswith("deplodock.")), key=lambda c: c.__name__)


def _directive(place: str, value: object) -> str:
    if not inspect.isclass(value):
        return f".. autofunction:: {place}"
    lines = [f".. autoclass:: {place}", "   :members:", "   :exclude-members: with_traceback, add_note, advice"]
    return "\n".join([*lines, *([] if issubclass(value, BaseException) else ["   :inherited-members:"])])
