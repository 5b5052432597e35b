"""Options of passes that a search may change: declared where the option is, found by whoever tunes.

```python
@dataclass(frozen=True)
class UnrollPass(ModulePass):
    name = "unroll"
    factor: int = searched(4, 1, 2, 8)
```

That is all a pass has to do, also one of somebody else's: `deplodock tune` then tries the other values of `factor` for
every pass `unroll` below `plan-schedules` whose option was left at its default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from xdsl.passes import ModulePass

from .pipelines import PipelineError, parse_passes, value_text

T = TypeVar("T", int, float, bool, str)

_KEY = "searched"


def searched(default: T, *others: T) -> T:
    """An option of a pass with its default, and what else is worth a try. The order says nothing but which value comes
    first."""
    return dataclasses.field(default=default, metadata={_KEY: (default, *others)})


Options = Sequence[tuple[str, str, str]]
"""(pass, option, value as text) of options that are not at their default."""


def searched_options(passes: Iterable[ModulePass]) -> dict[tuple[str, str], tuple[str, ...]]:
    """The options of `passes` that may be searched: (pass, option) -> values as text, the default first. Of a pass
    with an option that was given none is searched: somebody decided."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    decided: set[tuple[str, str]] = set()
    for p in passes:
        for field in dataclasses.fields(p):
            values: tuple[Any, ...] = field.metadata.get(_KEY, ())
            if len(values) > 1:
                found[p.name, field.name] = tuple(map(value_text, values))
                if getattr(p, field.name) != values[0]:
                    decided.add((p.name, field.name))
    return {key: values for key, values in found.items() if key not in decided}


def with_options(passes: Iterable[ModulePass], options: Options) -> tuple[ModulePass, ...]:
    """`passes` with other values of options. Raises PipelineError for a pass that is none of them, an option that it
    has not, or a value of another type."""
    given = list(passes)
    for name, option, value in options:
        places = [i for i, p in enumerate(given) if p.name == name]
        if not places:
            raise PipelineError("is no pass of this pipeline", operator=name, argument=option)
        for i in places:
            (found,) = parse_passes(f"{name}{{{option}={value}}}")
            given[i] = dataclasses.replace(given[i], **{option: getattr(found, option)})
    return tuple(given)
