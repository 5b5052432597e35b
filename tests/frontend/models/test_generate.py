"""Generation with a cache gives, token by token, what transformers' own gives."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import FAMILIES, PROMPT, greedy, tiny_model

from deplodock.errors import CompileError, ExecutionError
from deplodock.extras.llm.generate import Generator, Sampler, Sampling


def make(family: str, executor: str = "reference", prefill: int = 8, context: int = 48) -> tuple[object, Generator]:
    model = tiny_model(family)
    return model, Generator.from_model(model, context=context, prefill=prefill, executor=executor)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family: str) -> None:
    model, generator = make(family)
    expected = greedy(model, 32)
    assert len(set(expected)) > 4  # not one token again and again, which anything would get right
    assert list(generator(PROMPT, 32)) == expected


def test_a_prompt_in_pieces_gives_the_same_tokens() -> None:
    model, generator = make("mistral", prefill=3)
    assert list(generator(PROMPT, 12)) == greedy(model, 12)


def test_the_last_piece_need_not_fit_the_cache() -> None:
    model, generator = make("llama", prefill=4, context=10)  # 4 + 3 of a piece of 4 that would end at 8, then to 10
    assert list(generator([*PROMPT], 4)) == greedy(model, 4)
    model, generator = make("llama", prefill=5, context=8)  # the second piece of 5 would end at 10
    assert list(generator([*PROMPT], 2)) == greedy(model, 2)


def test_a_generator_starts_afresh_every_time() -> None:
    _, generator = make("qwen2")
    assert list(generator(PROMPT, 5)) == list(generator(PROMPT, 5))
    assert generator.timing.prompt_tokens == len(PROMPT)
    assert len(generator.timing.seconds) == 4
    assert generator.timing.tokens_per_second > 0


@pytest.mark.parametrize("executor", ["simulator", "emulator"])
def test_kernels_generate_the_same_tokens(executor: str) -> None:
    model, generator = make("llama", executor, prefill=8, context=16)
    assert list(generator(PROMPT, 4)) == greedy(model, 4)


def test_what_cannot_be_generated_is_refused() -> None:
    _, generator = make("llama")
    for prompt, tokens, reason in (
        ([], 1, "the prompt is empty"),
        ([1], 0, "at least one token"),
        ([1] * 40, 20, r"40 \+ 20 tokens do not fit"),
        ([67], 1, "outside of the 67"),
    ):
        with pytest.raises(ExecutionError, match=reason):
            list(generator(prompt, tokens))
    with pytest.raises(CompileError, match="temperature"):
        Sampling(temperature=-1)


def test_generation_stops_at_a_stop_token() -> None:
    model, generator = make("llama")
    expected = greedy(model, 12)
    stop = expected[5]
    assert list(generator(PROMPT, 12, stop=[stop])) == expected[: expected.index(stop) + 1]


def test_drawing_follows_the_probabilities_and_the_seed() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, -5.0])
    sampler = Sampler(Sampling(temperature=1.0, seed=1))
    counts = torch.bincount(torch.tensor([sampler(logits) for _ in range(4000)]), minlength=4) / 4000
    torch.testing.assert_close(counts, logits.softmax(-1), atol=0.03, rtol=0)
    few = Sampler(Sampling(temperature=1.0, top_p=0.8, seed=1))
    assert {few(logits) for _ in range(200)} == {1, 2}  # 0.66 and 0.24 make up 0.8, the third is not needed
    one = Sampler(Sampling(temperature=1.0, top_p=0.5, seed=1))
    assert {one(logits) for _ in range(50)} == {1}
    again = [Sampler(Sampling(temperature=1.0, seed=7)) for _ in range(2)]
    assert [again[0](logits) for _ in range(20)] == [again[1](logits) for _ in range(20)]
