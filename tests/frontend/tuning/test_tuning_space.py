"""The space of a nest's schedules: the planner's candidates and their legal neighbours, and policies that search it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deplodock.dialects.loop import NestOp
from deplodock.errors import ScheduleError
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.frontend.tuning.building import parse_schedule
from deplodock.frontend.tuning.policies import POLICIES, make_policy
from deplodock.frontend.tuning.space import NestSpace
from deplodock.frontend.tuning.trial import Candidate, Trial
from deplodock.passes.planning.plan_schedules import check_schedule, plan, with_residency
from deplodock.target.attribute import get_target


class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


PROGRAMS = {
    "linear": lambda: (nn.Linear(512, 1024), (torch.randn(256, 512),)),
    "linear_bf16": lambda: (nn.Linear(512, 256).bfloat16(), (torch.randn(128, 512).bfloat16(),)),
    "rms_norm": lambda: (nn.RMSNorm(2048), (torch.randn(64, 2048),)),
    "attention": lambda: (Attention(), (torch.randn(1, 2, 128, 64),) * 3),
    "relu": lambda: (nn.ReLU(), (torch.randn(64, 256),)),
}


def first_nest(program: str, target: str) -> NestOp:
    module, args = PROGRAMS[program]()
    compilation = compile_captured(capture(module, args), target)
    return next(op for op in compilation.at("loop").walk() if isinstance(op, NestOp))


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_candidates_start_with_the_planners_and_can_be_carried_out(program: str, target: str) -> None:
    nest, where = first_nest(program, target), get_target(target)
    space = NestSpace(nest, where)
    ranked = space.ranked()
    assert ranked[0].schedule == str(with_residency(nest, plan(nest, where), where))
    neighbours = space.neighbours(ranked[0])
    assert len(neighbours) == len({*neighbours}) > 0
    for candidate in [*ranked[:20], *neighbours]:
        assert space.candidates([space.values(candidate)]) == [candidate]  # what it decides is all that it is
        nest.attributes["schedule"] = parse_schedule(candidate.schedule)
        check_schedule(nest, where)
        assert candidate.predicted > 0


def test_neighbours_go_beyond_the_planners_candidates() -> None:
    space = NestSpace(first_nest("linear", "cpu"), get_target("cpu"))
    beyond = [c for c in space.neighbours(space.ranked()[0]) if c not in space.ranked()]
    assert beyond
    extents = [v for n, v in zip(space.names, space.values(beyond[0]), strict=True) if n.startswith("block.")]
    assert len(extents) == 2


def test_a_point_that_is_not_legal_gives_no_candidate() -> None:
    space = NestSpace(first_nest("linear", "cpu"), get_target("cpu"))
    here = dict(zip(space.names, space.values(space.ranked()[0]), strict=True))
    huge = here | {n: 1 << 16 for n in here if n.startswith("block.")}
    assert space.candidates([tuple(here.values()), tuple(huge.values())]) == [space.ranked()[0]]


def test_a_schedule_of_another_nest_is_refused() -> None:
    space = NestSpace(first_nest("linear", "cpu"), get_target("cpu"))
    with pytest.raises(ScheduleError, match="of another nest"):
        space.values(Candidate("#tile.schedule<block = [1, 2, 4], warps = 1>"))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_asks_for_the_planners_pick_and_for_nothing_twice(policy: str) -> None:
    space = NestSpace(first_nest("linear_bf16", "sm_90a"), get_target("sm_90a"))
    search, asked = make_policy(policy, space, seed=3), []
    while len(asked) < 20 and (found := search.ask(3)):
        asked += found
        for i, candidate in enumerate(found):
            search.tell(Trial(candidate, None, failure="refused") if i else Trial(candidate, candidate.predicted))
    assert asked[0] == space.ranked()[0]
    assert len(asked) == len({*asked}) == (1 if policy == "model" else 21)


def test_a_policy_that_there_is_not() -> None:
    space = NestSpace(first_nest("relu", "cpu"), get_target("cpu"))
    with pytest.raises(ScheduleError, match="there is no policy 'genius'; there are"):
        make_policy("genius", space)
