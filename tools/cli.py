"""deplodock: compile and run PyTorch programs, and look at every level on the way. `-c` and FILE.py execute Python."""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import DeplodockError
from . import model_commands

if TYPE_CHECKING:
    from ..frontend.capture import CapturedProgram
    from ..frontend.fallback import Fallback
    from ..passes.records import RecordPlans

LEVELS = ("torch", "tensor", "loop", "tile", "kernel", "cuda")


def _program_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which program, for which target, and how much to tell."""
    for option in (
        click.argument("file", required=False, metavar="[FILE.py|MODEL|ARTEFACT]"),
        click.option(
            "-c", "--code", metavar="EXPRESSION", help="Python: a call of a module, or an expression of tensors."
        ),
        click.option("--target", default="sm_90a", show_default=True, help="The GPU to compile for."),
        click.option("--fallback", type=click.Choice(["eager"]), help="Leave what is not supported to PyTorch."),
        click.option(
            "--dynamic", multiple=True, metavar="INPUT:DIM=SIZE[:MIN[:MAX]]", help="A size that varies: x:0=n:1:9."
        ),
        click.option("--record", metavar="FILE", help="Fuse and schedule as this file says, where it has an entry."),
        click.option("--narrow", metavar="HOW", help="How tensor cores may compute products of f32: parts, tf32."),
        click.option("--tf32", "narrow", flag_value="tf32", help="The same as --narrow tf32."),
        click.option("--seed", default=0, show_default=True, help="Seed of random inputs and parameters."),
        click.option("-v", "--verbose", count=True, help="-v: the kernels and their work; -vv: every pass as a diff."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("--debug", is_flag=True, help="Print a traceback for an error."),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="deplodock")
def cli() -> None:
    """A small, hackable ML compiler: PyTorch in, readable CUDA out."""


@cli.command()
@_program_options
@click.option("--ir", type=click.Choice(LEVELS), default="cuda", show_default=True, help="The level to print.")
@click.option("--emit", type=click.Choice(["standalone"]), help="standalone: one .cu with a main() that checks itself.")
@click.option("--explain", is_flag=True, help="Print the schedules that were considered, and what limits each.")
@click.option("--write-record", metavar="FILE", help="Note there how the program was fused and scheduled.")
@click.option("--print-pipeline", is_flag=True, help="Print the passes to the level, as an argument for `dl-opt -p`.")
@click.option("-o", "--output", type=click.Path(), help="Write there instead of to stdout; of a MODEL, the artefact.")
@click.option("--phase", type=click.Choice(["prefill", "decode", "both"]), default="both", help="MODEL: which steps.")
@click.option("--length", type=click.IntRange(min=1), default=64, show_default=True, help="MODEL: tokens of a prefill.")
@click.option("--context", type=click.IntRange(min=1), help="MODEL: tokens that the cache holds.")
def compile(
    file: str | None,
    code: str | None,
    target: str,
    fallback: Fallback,
    dynamic: tuple[str, ...],
    record: str | None,
    narrow: str | None,
    seed: int,
    verbose: int,
    as_json: bool,
    debug: bool,
    ir: str,
    emit: str | None,
    explain: bool,
    write_record: str | None,
    print_pipeline: bool,
    output: str | None,
    phase: str,
    length: int,
    context: int | None,
) -> None:
    """Compile a program and print one of its levels.

    MODEL is a language model: a name on the hub, a folder or a configuration file. Its structure is compiled, without
    weights, for reading a prompt and for single tokens.
    """
    if fallback and (model_commands.is_model(file) or model_commands.is_artefact(file)):
        raise click.UsageError("--fallback is for a program, not for a MODEL or an ARTEFACT")
    if dynamic and (model_commands.is_model(file) or model_commands.is_artefact(file)):
        raise click.UsageError("--dynamic is for a program, not for a MODEL or an ARTEFACT")
    writer = None if write_record is None else _recorder(write_record)
    if model_commands.is_model(file):
        model_commands.compile_model(
            str(file),
            phase=phase,
            length=length,
            context=context,
            target=target,
            level=ir,
            output=output,
            as_json=as_json,
            record=record,
            narrow=narrow,
            writer=writer,
        )
        return None if writer is None else writer.record.save()
    from . import reports

    diffs_to, observers = sys.stdout if verbose > 1 else None, [writer] if writer is not None else []
    program = reports.load(file, code, target, seed, fallback, diffs_to, dynamic, record, narrow, observers)
    _tell_what_is_left(program.captured)
    if print_pipeline:
        text = program.compilation.pipeline(ir) + "\n"
    elif explain:
        text = reports.explain(program)
    elif emit:
        text = reports.standalone(program)
    elif as_json:
        text = json.dumps(reports.as_json(program, ir), indent=1) + "\n"
    else:
        text = program.compilation.text(ir)
    if writer is not None:
        program.compilation.at("tile")  # where every nest has a schedule
        writer.record.save()
    if verbose:
        click.echo(reports.summary(program), err=True, nl=False)
    _write(text, output)


@cli.command()
@_program_options
@click.option("--executor", default="auto", show_default=True, help="auto, cuda, emulator, simulator or reference.")
@click.option("--weights", help="ARTEFACT: a checkpoint, where it was saved without weights.")
@click.option("--bench", is_flag=True, help="Also time it against PyTorch (a prediction where there is no GPU).")
def run(
    file: str | None,
    code: str | None,
    target: str,
    fallback: Fallback,
    dynamic: tuple[str, ...],
    record: str | None,
    narrow: str | None,
    seed: int,
    verbose: int,
    as_json: bool,
    debug: bool,
    executor: str,
    bench: bool,
    weights: str | None,
) -> None:
    """Run a program and compare it with PyTorch; the exit code is 1 where they differ.

    An ARTEFACT is run on random inputs and compared with the reference.
    """
    if fallback and model_commands.is_artefact(file):
        raise click.UsageError("--fallback is for a program, not for an ARTEFACT")
    if dynamic and model_commands.is_artefact(file):
        raise click.UsageError("--dynamic is for a program, not for an ARTEFACT")
    if model_commands.is_artefact(file):
        return model_commands.run_artefact(
            str(file), weights=weights, executor=executor, seed=seed, target=None, as_json=as_json
        )
    from . import reports

    diffs_to = sys.stdout if verbose > 1 else None
    program = reports.load(file, code, target, seed, fallback, diffs_to, dynamic, record, narrow)
    _tell_what_is_left(program.captured)
    outcome = reports.run(program, executor)
    if bench:
        outcome["bench"] = reports.bench(program)
    if verbose:
        click.echo(reports.summary(program), err=True, nl=False)
    click.echo(json.dumps(outcome, indent=1) if as_json else reports.outcome_text(outcome))
    if not outcome["ok"]:
        raise SystemExit(1)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Say what is there to compile and run with."""
    from .doctor import examine

    found = examine()
    width = max(map(len, found))
    text = "\n".join(f"{name:{width}}  {value}" for name, value in found.items())
    click.echo(json.dumps(found, indent=1) if as_json else text)


cli.add_command(model_commands.generate)


def _tell_what_is_left(captured: CapturedProgram) -> None:
    """Say on stderr what of a program is left to PyTorch."""
    for call in captured.eager.values():
        click.echo(f"deplodock: note: {call}", err=True)


def _recorder(path: str) -> RecordPlans:
    """What notes the plans of a program in a file, among those that are there."""
    from ..passes.records import Record, RecordPlans, read_record

    return RecordPlans(read_record(path) if Path(path).exists() else Record(path))


def _write(text: str, output: str | None) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DeplodockError(f"{output}: {error.strerror}") from None


def main(argv: list[str] | None = None) -> int:
    """The entry point of the `deplodock` command. Exit codes: 0 done, 1 refused or wrong, 2 bad usage."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None:  # in a process of our own, in which torch makes millions of objects that stay
        gc.set_threshold(50_000, 20, 20)
        atexit.register(gc.freeze)  # and nothing has to be looked for among them at the end
    try:
        code = cli.main(arguments, prog_name="deplodock", standalone_mode=False)
        sys.stdout.flush()
        return code or 0
    except SystemExit as stop:
        return int(stop.code or 0)
    except click.ClickException as error:
        click.echo(f"deplodock: error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        click.echo("deplodock: interrupted", err=True)
        return 130
    except BrokenPipeError:  # `deplodock ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        click.echo(_message(error, arguments), err=True)
        return 1


def _message(error: Exception, arguments: list[str]) -> str:
    """One line for an error, with source and caret where its place is known."""
    from ..errors import CompileError
    from .diagnostics import render_error

    if isinstance(error, CompileError):
        code = next((arguments[i + 1] for i, a in enumerate(arguments[:-1]) if a in ("-c", "--code")), "")
        return render_error(error, {"<expression>": code}, "deplodock")
    if isinstance(error, DeplodockError):
        return f"deplodock: error: {error}"
    lines = str(error).strip().splitlines() or [""]
    return f"deplodock: internal error: {type(error).__name__}: {lines[0][:300]} (--debug shows where)"


if __name__ == "__main__":
    sys.exit(main())
