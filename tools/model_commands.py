"""Commands about whole models and artefacts: `compile MODEL`, `run ARTEFACT`, `generate`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import CompileError, DeplodockError

if TYPE_CHECKING:
    from ..passes.records import RecordPlans

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_artefact(path: str | None) -> bool:
    """Whether `path` is a folder that says it is an artefact."""
    return path is not None and (Path(path) / "manifest.json").is_file()


def is_model(name: str | None) -> bool:
    """Whether `name` means a model: a folder or file with a configuration, or a name on the hub."""
    if name is None or name.endswith(".py"):
        return False
    path = Path(name)
    if path.exists():
        return path.suffix == ".json" or (path / "config.json").is_file()
    return _HUB_NAME.fullmatch(name) is not None


def compile_model(
    name: str,
    *,
    phase: str,
    length: int,
    context: int | None,
    target: str,
    level: str,
    output: str | None,
    as_json: bool,
    record: str | None,
    narrow: str | None,
    writer: RecordPlans | None,
) -> None:
    """Compile a model without its weights; write an artefact to `output`, or print a level of its steps."""
    from ..frontend.compile_model import PHASES, compile_model, describe
    from ..frontend.models import build_model, load_config

    phases = PHASES if phase == "both" else (phase,)
    start = time.perf_counter()
    with _bar(len(phases)) as bar:
        model = build_model(load_config(name))
        observers = [bar] if writer is None else [bar, writer]
        compiled = compile_model(
            model,
            context=context,
            prefill=length,
            phases=phases,
            target=target,
            observers=observers,
            record=record,
            narrow=narrow,
        )
    facts = describe(compiled)
    if output is not None:
        compiled.save(output)
    if as_json:
        click.echo(json.dumps({"model": name, "target": target, "steps": facts}, indent=1))
    elif output is None:
        for p, compilation in compiled.compilations.items():
            click.echo(f"// {p}")
            click.echo(compilation.text(level), nl=False)
    for f in facts:
        layers = ", ".join(map(str, f["launches_per_layer"])) or "none"
        click.echo(
            f"{f['phase']} of {f['tokens']} with a context of {f['context']}: {f['kernels']} distinct kernels,"
            f" {f['launches']} launches (of a layer: {layers})",
            err=True,
        )
    click.echo(f"{time.perf_counter() - start:.1f} s" + (f", written to {output}" if output else ""), err=True)


@contextmanager
def _bar(steps: int) -> Iterator[Any]:
    """A progress bar on stderr, if that is a terminal, that moves with every pass."""
    from ..passes.pipelines import parse_passes
    from ..passes.running import Observer

    length = steps * len(parse_passes("default"))
    with click.progressbar(length=length, label="compiling", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:

        class Bar(Observer):
            def after(self, module_pass: Any, module: Any) -> None:
                bar.update(1)

        yield Bar()


def run_artefact(
    path: str, *, weights: str | None, executor: str, seed: int, target: str | None, as_json: bool
) -> None:
    """Run every program of an artefact on random inputs and compare it with the reference."""
    from ..frontend.saved import load
    from . import reports

    artefact = load(path, weights=weights, executor=executor, target=target)
    outcomes = {name: reports.run_saved(p, seed) for name, p in artefact.programs.items()}
    if as_json:
        click.echo(json.dumps(outcomes, indent=1))
    else:
        for name, outcome in outcomes.items():
            click.echo(f"{name}: {reports.outcome_text(outcome)}")
    if not all(o["ok"] for o in outcomes.values()):
        raise SystemExit(1)


@click.command()
@click.argument("model", metavar="MODEL|ARTEFACT")
@click.option("--prompt", help="Text to continue; the model's tokenizer reads it.")
@click.option("--prompt-ids", help="Numbers of tokens to continue, with commas.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--greedy", is_flag=True, help="Take the likeliest token (the default).")
@click.option("--temperature", type=click.FloatRange(min=0), help="Draw tokens; 1 draws as the model says.")
@click.option("--top-p", type=click.FloatRange(min=0, max=1, min_open=True), default=1.0, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Seed of drawing, and of random weights.")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of prompt and continuation that fit.")
@click.option("--length", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens read in one step.")
@click.option("--random-weights", is_flag=True, help="Don't load weights: make some up.")
@click.option("--weights", help="Checkpoint for an artefact that was saved without weights.")
@click.option("--target", default="sm_90a", show_default=True)
@click.option("--executor", default="auto", show_default=True)
@click.option("--debug", is_flag=True, help="Print a traceback for an error.")
def generate(model: str, **options: Any) -> None:
    """Continue a prompt with a language model."""
    from ..frontend.generate import Sampling

    if (options["prompt"] is None) == (options["prompt_ids"] is None):
        raise click.UsageError("give either --prompt or --prompt-ids")
    if options["greedy"] and options["temperature"]:
        raise click.UsageError("--greedy and --temperature exclude each other")
    tokenizer = _tokenizer(model) if options["prompt"] is not None else None
    prompt = _prompt(tokenizer, options)
    generator = _generator(model, options)
    sampling = Sampling(options["temperature"] or 0.0, options["top_p"], options["seed"])
    stop = [] if tokenizer is None or tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    _stream(generator(prompt, options["max_new_tokens"], sampling, stop), tokenizer)
    timing = generator.timing
    click.echo(
        f"{timing.prompt_tokens} tokens read in {timing.prompt_seconds:.2f} s,"
        f" {len(timing.seconds) + 1} written, {timing.tokens_per_second:.2f} tokens/s",
        err=True,
    )


def _generator(name: str, options: dict[str, Any]) -> Any:
    from ..frontend.generate import Generator
    from ..frontend.models import load_config, random_model
    from ..frontend.saved import load

    if is_artefact(name):
        return Generator.from_artefact(load(name, weights=options["weights"], executor=options["executor"]))
    common = {"context": options["context"], "prefill": options["length"], "target": options["target"]}
    if options["random_weights"]:
        model = random_model(load_config(name), seed=options["seed"])
        return Generator.from_model(model, executor=options["executor"], **common)
    return Generator.from_checkpoint(name, executor=options["executor"], **common)


def _tokenizer(name: str) -> Any:
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise CompileError(f"has no tokenizer ({reason}); use --prompt-ids", operator=name) from None


def _prompt(tokenizer: Any, options: dict[str, Any]) -> list[int]:
    if tokenizer is not None:
        return [int(t) for t in tokenizer(options["prompt"])["input_ids"]]
    try:
        return [int(t) for t in options["prompt_ids"].split(",")]
    except ValueError:
        raise DeplodockError("--prompt-ids: numbers with commas are needed, as in 1,15,7") from None


def _stream(tokens: Iterator[int], tokenizer: Any) -> None:
    """Print tokens as they come: as text, or as numbers."""
    found: list[int] = []
    shown = ""
    for token in tokens:
        found.append(token)
        if tokenizer is None:
            click.echo(f"{',' if len(found) > 1 else ''}{token}", nl=False)
        else:
            shown = _more(tokenizer, found, shown)
        sys.stdout.flush()
    click.echo()


def _more(tokenizer: Any, tokens: Sequence[int], shown: str) -> str:
    """Print what `tokens` add to the text `shown`; a character whose bytes are not all there waits."""
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    if text.endswith("\N{REPLACEMENT CHARACTER}"):
        return shown
    click.echo(text[len(shown) :], nl=False)
    return text
