"""Random legal schedules: 0 wrong. `python -m fuzz --schedules --count 1000` runs more of them than there is time for
here; of seeds 2000 to 2999, 999 were right and one did not fit into shared memory, which was said."""

from __future__ import annotations

import pytest
from fuzz.schedules import corpus, draw, judge

from deplodock.passes.tiling.reductions import Reducer


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_schedules(first: int) -> None:
    wrong: list[str] = []
    for seed in range(first, first + 10):
        case = draw(seed)
        text = str(case)
        kind, why = judge(case)
        if kind not in ("right", "refused"):
            wrong.append(f"{text}: {kind}: {why}")
    assert wrong == []


def test_the_corpus() -> None:
    assert len(corpus()) >= 20
    assert len({str(draw(s)) for s in range(40)}) == 40


def test_a_wrong_schedule_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the masks of tails left out, some of the same schedules are wrong."""
    monkeypatch.setattr(Reducer, "_masked", lambda self, value, tails, op: self.emitter.tile_of(value))  # type: ignore[reportUnknownLambdaType]
    assert "wrong" in {judge(draw(s))[0] for s in range(8, 24)}
