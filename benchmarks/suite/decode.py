"""Measures tokens per second of language models on the CPU: deplodock, eager transformers, and the limit of memory.

    python -m benchmarks.suite.decode  # TinyLlama and Qwen2.5-0.5B, bf16
    python -m benchmarks.suite.decode tests/data/models/tinyllama-1.1b.json --dtype f32 --layers 2 --tokens 16

Weights are random. A token reads every weight once, except the embedding. So the token rate is at most the machine's
read bandwidth divided by the bytes of these weights; `share` is the reached part of this limit. On a shared machine the
bandwidth varies, so it is measured before and after each round of generation. `share` is the median over the rounds
with a steady bandwidth, or over all rounds if none is steady.
"""

from __future__ import annotations

import copy
import statistics
import time
from pathlib import Path
from typing import Any

import click
import torch

from deplodock.backend.cpu.measure import read_rate
from deplodock.backend.host.timing import Timing
from deplodock.extras.llm.generate import Generator
from deplodock.extras.llm.models import build_model, load_config, to_int8
from deplodock.frontend.bench import OURS, environment

from ..common.cases import DTYPES
from ..common.results import FOLDER, commit_here, file_name, merge

ROOT = Path(__file__).resolve().parents[2]
MODELS = [str(ROOT / "tests" / "data" / "models" / f"{name}.json") for name in ("tinyllama-1.1b", "qwen2.5-0.5b")]
TOKENS, CONTEXT, ROUNDS = 24, 256, 5
"""Generated tokens, capacity of the key-value cache in tokens, and number of rounds in which each arm generates."""

STEADY_RATIO = 1.1
"""Largest ratio of the bandwidths before and after a round with a steady bandwidth."""


def bytes_read(model: torch.nn.Module) -> int:
    """Returns the bytes of weights that one token reads: all, without an embedding that is not also the output head."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight  # pyright: ignore
    weights = {id(p): p for p in (*model.parameters(), *model.buffers())}
    if head is not embedding:
        weights.pop(id(embedding), None)
    return sum(p.numel() * p.element_size() for p in weights.values())


def eager(model: Any, prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
    """Generates by greedy decoding with transformers' model and its cache.

    Args:
        model: the model.
        prompt: token numbers.
        tokens: number of tokens to generate.

    Returns:
        The generated tokens, and the seconds of each token after the first.
    """
    generated, seconds, cache, step = list[int](), list[float](), None, torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(tokens):
            start = time.perf_counter()
            out = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, token = out.past_key_values, int(out.logits[0, -1].float().argmax())
            seconds.append(time.perf_counter() - start)
            generated.append(token)
            step = torch.tensor([[token]])
    return generated, seconds[1:]


def measure(
    name: str,
    dtype: str = "bf16",
    tokens: int = TOKENS,
    context: int = CONTEXT,
    layers: int | None = None,
    quantize: bool = False,
) -> dict[str, Any]:
    """Compiles one model, lets deplodock and eager generate in turns, and returns the row of the results.

    Args:
        name: model name, folder or configuration file.
        dtype: data type of the weights, a key of `DTYPES`.
        tokens: number of tokens per round.
        context: capacity of the key-value cache in tokens.
        layers: number of layers, if fewer than the model has.
        quantize: whether deplodock runs the model with 8-bit weights; eager runs the original model.
    """
    config = load_config(name)
    config.num_hidden_layers = layers or config.num_hidden_layers
    if layers and getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    model = build_model(config, DTYPES[dtype], seed=0)
    reference = model
    if quantize:
        reference, model = model, to_int8(copy.deepcopy(model))
    start = time.perf_counter()
    generator = Generator.from_model(model, context=context, prefill=16, target="cpu")
    prompt = [(7 * i) % config.vocab_size for i in range(16)]
    list(generator(prompt, 2))
    compiled = time.perf_counter() - start
    our_seconds, eager_seconds, same, read = list[float](), list[float](), 0, bytes_read(model)
    rates, shares = [read_rate(threads=torch.get_num_threads())], list[float]()
    for _ in range(ROUNDS):
        generated = list(generator(prompt, tokens))
        our_seconds += generator.timing.seconds
        rates.append(read_rate(threads=torch.get_num_threads()))
        shares.append(read / statistics.median(generator.timing.seconds) / statistics.mean(rates[-2:]))
        expected, seconds = eager(reference, prompt, tokens)
        eager_seconds += seconds
        same = sum(a == b for a, b in zip(generated, expected, strict=True))
    times = {"eager": Timing.of(eager_seconds), OURS: Timing.of(our_seconds)}
    case = f"{Path(name).stem}, {config.num_hidden_layers} layers{', int8' if quantize else ''}"
    row = {"suite": "decode", "group": "", "case": case, "dtype": dtype, "threads": torch.get_num_threads()}
    row |= {"commit": commit_here(), "right": None, "same_tokens": same, "tokens": tokens, "bytes_read": read}
    row |= {"compile_seconds": compiled, "prompt_seconds": generator.timing.prompt_seconds}
    steady = [s for s, a, b in zip(shares, rates, rates[1:], strict=False) if max(a, b) < STEADY_RATIO * min(a, b)]
    row |= {"read_rates": rates, "shares": shares, "share": statistics.median(steady or shares)}
    return row | {"times": {"call": {arm: t.as_dict() for arm, t in times.items()}}}


@click.command()
@click.argument("models", nargs=-1)
@click.option("--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, default=["bf16"])
@click.option("--tokens", default=TOKENS)
@click.option("--context", default=CONTEXT)
@click.option("--layers", type=int, help="Number of layers, if fewer than the model has.")
@click.option("--quantize", is_flag=True, help="deplodock with 8-bit weights; eager with the original ones.")
@click.option("--threads", type=int, help="Threads of PyTorch and of deplodock.")
@click.option("--out", type=click.Path(path_type=Path), help="File of results; benchmarks/results/DEVICE-DATE.json.")
def main(
    models: tuple[str, ...],
    dtypes: tuple[str, ...],
    tokens: int,
    context: int,
    layers: int | None,
    quantize: bool,
    threads: int | None,
    out: Path | None,
) -> None:
    """Measures the models, prints the speeds, and writes the result file."""
    torch.set_num_threads(threads or torch.get_num_threads())
    rows = list[dict[str, Any]]()
    for name in models or MODELS:
        for dtype in dtypes:
            rows.append(row := measure(name, dtype, tokens, context, layers, quantize))
            speeds = {arm: 1 / t["median"] for arm, t in row["times"]["call"].items()}
            click.echo(
                f"{row['case']} {dtype}: {speeds[OURS]:.2f} tokens/s, eager {speeds['eager']:.2f}; "
                f"{row['share']:.0%} of the read bandwidth; {row['same_tokens']} of {tokens} tokens the same; "
                f"compiled in {row['compile_seconds']:.0f} s"
            )
    merge(out or FOLDER / f"{file_name(environment())}.json", environment(), rows)


if __name__ == "__main__":
    main()
