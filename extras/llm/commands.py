"""Commands for language models: `compile MODEL`, `tune MODEL`, `generate`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ...errors import DeplodockError
from ...progress import steps
from ...tools import modes, terminal, tune
from ...tools.modes import COMPILER, FILE, SEARCHING, WRITING, Params, Source
from ..artifact.commands import is_artifact

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_STEPS = {"phase", "length", "context", "quantize"}
_GENERATION = set("model prompt prompt_ids max_new_tokens greedy temperature top_p seed executor debug".split())

PHASES = click.Choice(["prefill", "decode", "both"])
LENGTH = {"type": click.IntRange(min=1), "default": 64, "show_default": True}
QUANTIZE = {"type": click.Choice(["int8"]), "help": "MODEL: weights of linear layers as bytes, with scales."}


class ModelSource(Source):
    """Command-line source MODEL: a folder or file with a configuration, or a name on the Hugging Face hub."""

    metavar = "MODEL"
    marker = "config.json"
    about = {
        "compile": "MODEL is a language model: a name on the hub, a folder or a configuration file. Its structure is"
        " compiled, without weights, for reading a prompt and for single tokens; with -o it becomes an artifact."
    }
    options = {
        "compile": [
            click.Option(
                ["--phase"],
                type=click.Choice(["prefill", "decode", "both"]),
                default="both",
                help="MODEL: which steps.",
            ),
            click.Option(["--length"], **LENGTH, help="MODEL: tokens of a prefill."),
            click.Option(["--context"], type=click.IntRange(min=1), help="MODEL: tokens that the cache holds."),
            click.Option(["--quantize"], **QUANTIZE),
        ]
    }
    modes = {
        "compile": {
            "a MODEL": FILE | COMPILER | WRITING | _STEPS | {"ir"},
            "a MODEL and -o": FILE | COMPILER | WRITING | _STEPS,
        },
        "tune": {"a MODEL": (FILE | COMPILER | SEARCHING | {"seed", "verbose"}) - {"record", "schedule"}},
        "generate": {
            "an ARTIFACT": _GENERATION | {"weights"},
            "a MODEL": _GENERATION | {"context", "length", "random_weights", "quantize", "target", "prepack_weights"},
        },
    }
    refusals = {
        "run": "{file} is a model: `deplodock generate {file}` continues a prompt; `deplodock compile {file} -o FOLDER`"
        " writes an artifact, which `deplodock run FOLDER` runs"
    }

    def matches(self, file: str) -> bool:
        path = Path(file)
        if path.exists():
            return path.suffix == ".json" or (path / "config.json").is_file()
        return _HUB_NAME.fullmatch(file) is not None

    def compile(self, context: click.Context, params: Params) -> None:
        """Compiles a model without its weights. Writes an artifact to `output`, or prints a level of its steps.

        An artifact with quantized weights contains these weights, computed from the model's weights.

        Args:
            context: context of the command.
            params: its parameters.
        """
        modes.refuse_ignored(context, "a MODEL" if params.output is None else "a MODEL and -o")
        modes.choose_target(params)
        start, name = time.perf_counter(), str(params.file)
        writer = None if params.write_record is None else modes.recorder(params.write_record)
        with terminal.progress():
            with steps("loading PyTorch and transformers"):
                from ...backend.cuda.runtime.nvrtc import nvrtc_version
                from ...target.architectures import TARGETS
                from .models import build_model, load_config, load_model, to_int8
                from .steps import compile_model, describe
            if params.output is not None and params.target in TARGETS:
                nvrtc_version()  # fails early: an artifact needs machine code
            with steps("building the model"):
                weighed = params.quantize and params.output is not None
                model = load_model(name) if weighed else build_model(load_config(name))
                model = to_int8(model) if params.quantize else model
            compiled = compile_model(
                model,
                context=params.context,
                prefill=params.length,
                phases=("prefill", "decode") if params.phase == "both" else (params.phase,),
                observers=[] if writer is None else [writer],
                **{**params.options, "prepack_weights": params.prepack_weights is not False},
                facts=modes.facts(context, params),
            )
            about = describe(compiled)
            if params.output is not None:
                compiled.save(params.output)
        if params.as_json:
            click.echo(json.dumps({"model": name, "target": params.target, "steps": about}, indent=1))
        elif params.output is None:
            for phase, compilation in compiled.compilations.items():
                text = compilation.text(params.ir, not terminal.is_terminal(sys.stdout))
                terminal.write(f"// {phase}\n{text}", "cuda" if params.ir in ("cuda", "cpp") else "mlir", sys.stdout)
        _tell(about, time.perf_counter() - start, params.output)
        if writer is not None:
            writer.record.save()

    def tune(self, context: click.Context, params: Params) -> None:
        """Searches for faster schedules of the steps of a model."""
        modes.refuse_ignored(context, "a MODEL")

        def compiled(options: dict[str, Any]) -> list[Any]:
            from .models import build_model, load_config
            from .steps import compile_model

            model = build_model(load_config(str(params.file)))
            return [*compile_model(model, **options).compilations.values()]

        tune.tune(context, params, compiled)


def _tell(descriptions: Sequence[dict[str, Any]], seconds: float, output: str | None) -> None:
    """Prints the numbers of kernels, launches and bytes of the steps of a model to stderr."""
    text = ""
    for f in descriptions:
        layers = ", ".join(map(str, f["launches_per_layer"])) or "none"
        text += (
            f"{f['phase']} of {f['tokens']} with a context of {f['context']}: {f['kernels']} distinct kernels,"
            f" {f['launches']} launches (of a layer: {layers}),"
            f" {f['moved_bytes'] / f['tokens'] / 1e6:.1f} MB moved a token,"
            f" {f['arena_bytes'] / 1e6:.1f} MB between arguments and results"
            + (f", {f['constant_bytes'] / 1e6:.1f} MB computed once from weights\n" if f["constant_bytes"] else "\n")
        )
    text += f"{seconds:.1f} s" + (f", written to {output}" if output else "") + "\n"
    terminal.tell(text)


@click.command()
@click.argument("model", metavar="MODEL|ARTIFACT")
@click.option("--prompt", help="Text to continue; the model's tokenizer reads it.")
@click.option("--prompt-ids", help="Numbers of tokens to continue, with commas.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--greedy", is_flag=True, help="Take the likeliest token (the default).")
@click.option("--temperature", type=click.FloatRange(min=0), help="Draw tokens; 1 draws as the model says.")
@click.option("--top-p", type=click.FloatRange(min=0, max=1, min_open=True), default=1.0, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Seed of drawing, and of random weights.")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of prompt and continuation that fit.")
@click.option("--length", **LENGTH, help="Tokens read in one step.")
@click.option("--random-weights", is_flag=True, help="Don't load weights: make some up.")
@click.option("--quantize", **QUANTIZE)
@modes.PREPACK_WEIGHTS
@click.option("--weights", help="Checkpoint for an artifact that was saved without weights.")
@click.option("--target", default="auto", show_default=True, help="A GPU, cpu, or auto: what is here.")
@click.option("--executor", default="auto", show_default=True)
@click.option("--debug", is_flag=True, help="Print a traceback for an error.")
def generate(model: str, **options: Any) -> None:
    """Continue a prompt with a language model."""
    context = click.get_current_context()
    modes.refuse_ignored(context, "an ARTIFACT" if is_artifact(model) else "a MODEL")
    if (options["prompt"] is None) == (options["prompt_ids"] is None):
        raise click.UsageError("give either --prompt or --prompt-ids")
    if options["greedy"] and options["temperature"]:
        raise click.UsageError("--greedy and --temperature exclude each other")
    if not options["temperature"] and context.get_parameter_source("top_p") == ParameterSource.COMMANDLINE:
        raise click.UsageError("--top-p has no effect without --temperature")
    with terminal.progress():
        with steps("loading PyTorch and transformers"):
            from ...frontend.executors import check_executor
            from .generate import Sampling
        check_executor(options["executor"], is_artifact(model))
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
    from ..artifact.programs import load
    from .generate import Generator
    from .models import build_model, load_config, load_model, to_int8

    if is_artifact(name):
        return Generator.from_artifact(load(name, weights=options["weights"], executor=options["executor"]))
    common = {"context": options["context"], "prefill": options["length"], "target": options["target"]}
    common |= {"executor": options["executor"], "prepack_weights": options["prepack_weights"] is not False}
    if not options["random_weights"] and not options["quantize"]:
        return Generator.from_checkpoint(name, **common)
    model = build_model(load_config(name), seed=options["seed"]) if options["random_weights"] else load_model(name)
    return Generator.from_model(to_int8(model) if options["quantize"] else model, **common)


def _tokenizer(name: str) -> Any:
    import transformers

    from .models import building, source_options

    with building(name, "no tokenizer there, use --prompt-ids: "):
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False, **source_options(name))


def _prompt(tokenizer: Any, options: dict[str, Any]) -> list[int]:
    if tokenizer is not None:
        return [int(t) for t in tokenizer(options["prompt"])["input_ids"]]
    try:
        return [int(t) for t in options["prompt_ids"].split(",")]
    except ValueError:
        raise DeplodockError("--prompt-ids: numbers with commas are needed, as in 1,15,7") from None


def _stream(tokens: Iterator[int], tokenizer: Any) -> None:
    """Prints each token as soon as it is generated: as text, or as a number without a tokenizer.

    A character that consists of several tokens is printed after the last of them.
    """
    generated: list[int] = []
    shown = ""
    for token in tokens:
        generated.append(token)
        text = (
            ",".join(map(str, generated))
            if tokenizer is None
            else tokenizer.decode(generated, skip_special_tokens=True)
        )
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            click.echo(text[len(shown) :], nl=False)
            shown = text
        sys.stdout.flush()
    click.echo()
