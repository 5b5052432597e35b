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

from .. import __version__
from ..dialects import LEVELS
from ..dialects.support.printing import stamp
from ..errors import REMEDIES, CompileError, DeplodockError, missing_package, one_line, raised_at
from ..garbage import RARE
from ..progress import steps
from . import ir_commands, model_commands, records_command, terminal, tune
from .modes import Given, given_options, mode_of_file, refuse_ignored

if TYPE_CHECKING:
    from ..frontend.capture.captured_program import CapturedProgram
    from ..passes.pass_manager import Observer
    from ..passes.records import RecordPlans
    from .reports import Loaded


_PLANS = (
    click.option(
        "--record",
        metavar="FILE",
        help="Fuse and schedule as it says, where it has an entry; left out, as the user's own records say,"
        " which `tune` writes. none: as the planner's model says.",
    ),
    click.option(
        "--schedule",
        metavar="OPTIONS",
        help="Decide in the planner's place, for every kernel that it fits: 'block=64,128 warps=4'"
        " (`dl-opt --help-pass plan-schedules`).",
    ),
)
"""The options that decide in the planner's place."""


def _program_options(
    what: str, target: str, planned: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that say which program, for which target, and how much to tell; `what` a file may be, and whether
    it is to be `planned` by others than a search."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.argument("file", required=False, metavar=f"[{what}]"),
            click.option(
                "-c", "--code", metavar="EXPRESSION", help="Python: a call of a module, or an expression of tensors."
            ),
            click.option(
                "--target",
                default=target,
                show_default=True,
                help="The GPU to compile for, cpu (or cpu{isa=avx2 cores=4}), or auto: what is here.",
            ),
            click.option("--fallback", type=click.Choice(["eager"]), help="Leave what is not supported to PyTorch."),
            click.option(
                "--dynamic", multiple=True, metavar="INPUT:DIM=SIZE[:MIN[:MAX]]", help="A size that varies: x:0=n:1:9."
            ),
            *(_PLANS if planned else ()),
            click.option(
                "-p",
                "--pipeline",
                metavar="PASSES",
                help="The passes to run in place of the default ones, plugins among them, with"
                " verify-level{level=...} where a level is reached.",
            ),
            click.option(
                "--insert",
                multiple=True,
                metavar="PASS:after=NAME",
                help="Add a pass, a plugin's say, to the default ones, after (or before=) the pass NAME.",
            ),
            click.option(
                "--strategy",
                type=click.Choice(["model", "simple"]),
                default="model",
                show_default=True,
                help="simple: fuse and schedule by short rules in place of the model's search.",
            ),
            click.option("--f32-matmul-precision", metavar="HOW", help="Of f32 on tensor cores: ieee, tf32 or bf16x3."),
            model_commands.PREPACK_WEIGHTS,
            click.option("--checked", is_flag=True, help="Stop at an index that PyTorch would not take."),
            click.option("--seed", default=0, show_default=True, help="Seed of random inputs and parameters."),
            click.option(
                "-v", "--verbose", count=True, help="-v: the kernels and their work; -vv: every pass as a diff."
            ),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object, errors too."),
            click.option("--debug", is_flag=True, help="Print a traceback for an error."),
        ):
            command = option(command)
        return command

    return add


class _Group(click.Group):
    """The commands. Whoever reads their output may go (`deplodock ... | head`); click would call that a failure."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            terminal.leave_quietly()
            return 0


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="deplodock")
def cli() -> None:
    """A small, hackable ML compiler: PyTorch in, readable CUDA out."""


@cli.command()
@_program_options("FILE.py|MODEL|PROGRAM.mlir", "sm_90a")
@click.option(
    "--ir",
    type=click.Choice([*LEVELS, "cpp"]),
    default="cuda",
    help="The level to print. By default the text: cuda, or cpp for a CPU.",
)
@click.option(
    "--helpers/--no-helpers",
    default=None,
    help="Print the helper functions of a text, too: by default where the output is not a terminal.",
)
@click.option(
    "--emit", type=click.Choice(["standalone"]), help="standalone: one .cu (.cpp for a CPU) whose main() checks itself."
)
@click.option("--explain", is_flag=True, help="Print the schedules that were considered, and what limits each.")
@click.option("--write-record", metavar="FILE", help="Note there how the program was fused and scheduled.")
@click.option("--print-pipeline", is_flag=True, help="Print the passes to the level, as an argument for `dl-opt -p`.")
@click.option("-o", "--output", type=click.Path(), help="Write there instead of to stdout; of a MODEL, the artifact.")
@click.option("--phase", type=click.Choice(["prefill", "decode", "both"]), default="both", help="MODEL: which steps.")
@click.option("--length", type=click.IntRange(min=1), default=64, show_default=True, help="MODEL: tokens of a prefill.")
@click.option("--context", type=click.IntRange(min=1), help="MODEL: tokens that the cache holds.")
@model_commands.QUANTIZE
def compile(**options: Any) -> None:
    """Compile a program and print one of its levels.

    MODEL is a language model: a name on the hub, a folder or a configuration file. Its structure is compiled, without
    weights, for reading a prompt and for single tokens.
    """
    context, given = click.get_current_context(), Given(**options)
    mode = mode_of_file("compile", given.file)
    if mode == "a program":
        mode = next((f"--{n.replace('_', '-')}" for n in ("emit", "explain", "print_pipeline") if options[n]), mode)
    elif given.output is not None:
        mode = "a MODEL and -o"
    refuse_ignored(context, mode)
    _check(given)
    if mode == "a program of IR":
        return ir_commands.compile_ir(context, given)
    _choose_target(given)
    writer = None if given.write_record is None else _recorder(given.write_record)
    facts = _facts(context, given)
    if mode.startswith("a MODEL"):
        model_commands.compile_model(given, writer, facts)
        return None if writer is None else writer.record.save()
    with terminal.progress(quiet=given.verbose > 1):
        program = _load(given, [] if writer is None else [writer], facts)
        text, kind = _asked_for(program, given)
        if writer is not None:
            program.compilation.at("tile")  # where every nest has a schedule
            writer.record.save()
        summary = _summary(program, given)
    _tell(program.captured, summary)
    terminal.write_out(text, kind, given.output)


def _asked_for(program: Loaded, given: Given) -> tuple[str, str]:
    """The text that `compile` is to print, and what kind of text it is."""
    from . import reports

    compilation = program.compilation
    if given.print_pipeline:
        line = compilation.pipeline(given.ir)
        return (_json({"pipeline": line}) if given.as_json else f"{line}\n"), ""
    if given.explain:
        width = terminal.width_of(sys.stdout) if given.output is None else None
        if given.as_json:
            return _json(reports.explained(program)), ""
        return terminal.fitted(reports.explain(program), width), ""
    if given.emit:
        text = reports.standalone(program)
        return (_json({"target": given.target, "text": text}) if given.as_json else text), "cuda"
    if given.as_json:
        return _json(reports.as_json(program, given.ir, terminal.is_kept(given.output))), ""
    return reports.level_text(compilation, given.ir, given.output, given.helpers)


@cli.command()
@_program_options("FILE.py|ARTIFACT|PROGRAM.mlir", "auto")
@click.option(
    "--executor", default="auto", show_default=True, help="auto, cuda, cpu, emulator, simulator or reference."
)
@click.option("--weights", help="ARTIFACT: a checkpoint, where it was saved without weights.")
@click.option("--bench", is_flag=True, help="Time it beside eager PyTorch and torch.compile; compare their errors.")
@click.option("--profile", is_flag=True, help="Time each kernel: measured here, or predicted where it cannot run.")
@click.option("--predict", is_flag=True, help="Tell what the planning model expects of each kernel on a GPU.")
@click.option("--plot", metavar="FILE.svg", help="With --bench: the times as bars.")
@click.option("--trace", metavar="FILE", help="Passes and kernels as a timeline for Perfetto or chrome://tracing.")
def run(**options: Any) -> None:
    """Run a program, compare it with PyTorch and, on the CPU, time both; the exit code is 1 where they differ.

    An ARTIFACT, which holds nothing of PyTorch, is run on random inputs and compared with the reference, by default on
    the GPU or else in the emulator. A PROGRAM.mlir, which is IR at any level, is compared with what is written.
    """
    context, given = click.get_current_context(), Given(**options)
    mode = mode_of_file("run", given.file)
    refuse_ignored(context, mode)
    _check(given)
    if mode == "an ARTIFACT":
        return model_commands.run_artifact(given)
    if mode == "a program of IR":
        return ir_commands.run_ir(context, given)
    with terminal.progress(quiet=given.verbose > 1):
        with steps("loading PyTorch"):
            from ..frontend.executors import check_executor
            from . import measuring, reports
        check_executor(given.executor)
        _choose_target(given, given.executor)
        if given.bench:
            measuring.check_timing(given.target, given.executor)
        program = _load(given, [], _facts(context, given))
        outcome = reports.run(program, given.executor)
        width = terminal.width_of(sys.stdout)
        text = terminal.fitted(reports.outcome_text(outcome) + "\n", width)
        text += measuring.measure_more(program, given, context.obj, outcome, width)
        summary = _summary(program, given)
    _tell(program.captured, summary)
    if given.as_json:
        click.echo(_json(outcome), nl=False)
    else:
        terminal.write(text, "outcome", sys.stdout)
    if outcome["ok"] is False or outcome.get("bench", {}).get("right") is False:
        raise SystemExit(1)


@cli.command("tune")
@_program_options("FILE.py|MODEL", "auto", planned=False)
@tune.tune_options
def tune_command(**options: Any) -> None:
    """Search for faster schedules, measured here, and keep them for compilations to come.

    Every candidate is checked against float64 before it is timed. Ctrl-C ends the search and keeps the best.
    """
    given = Given(**options)
    _check(given)
    tune.tune(click.get_current_context(), given)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--measure", is_flag=True, help="Measure the cores first; the planner of the target cpu uses the numbers."
)
def doctor(as_json: bool, measure: bool) -> None:
    """Say what is there to compile and run with."""
    from .doctor import examine, measure_cores

    with terminal.progress():
        if measure:
            measure_cores()
        found = examine()
    text = terminal.table(list(found.items()), terminal.width_of(sys.stdout))
    click.echo(_json(found) if as_json else text, nl=False)


cli.add_command(model_commands.generate)
cli.add_command(records_command.records)


def _check(given: Given) -> None:
    """Refuse options that speak of the same."""
    for first, second, both in (
        ("-c", "FILE", given.code is not None and given.file is not None),
        ("--schedule", "--pipeline", None not in (given.options["schedule"], given.pipeline)),
        ("-vv", "--json", given.verbose > 1 and given.as_json),
    ):
        if both:
            raise click.UsageError(f"{first} and {second} exclude each other")
    if getattr(given, "plot", None) and not getattr(given, "bench", True):
        raise click.UsageError("--plot draws what --bench measures: give both")
    if given.code is None and given.file is None:
        raise click.UsageError("give either -c EXPRESSION or a FILE.py")


def _choose_target(given: Given, executor: str = "auto") -> None:
    """Say which target is meant, where that is what is here."""
    if given.target == "auto":
        from ..frontend.executors import choose_target

        given.target = choose_target(given.target, executor)


def _facts(context: click.Context, given: Given) -> dict[str, str]:
    """What is noted in what is printed: whose text it is."""
    file = given.file or ""
    source = given.code or (Path(file).name if Path(file).exists() else file)
    about = {"version": __version__, "source": source}
    return about | {"options": given_options(context)}


def _load(given: Given, observers: list[Observer], facts: dict[str, str]) -> Loaded:
    """The program that was named, captured."""
    with steps("loading PyTorch"):
        from . import reports

    diffs_to = terminal.Colored("diff", sys.stdout).write if given.verbose > 1 else None
    how = {"fallback": given.fallback, "dynamic": given.dynamic, "diffs_to": diffs_to, "observers": observers}
    program = reports.load(given.file, given.code, seed=given.seed, **how, **given.options)
    stamp(program.captured.module, facts)
    return program


def _summary(program: Loaded, given: Given) -> str:
    """What `-v` tells."""
    from . import reports

    return reports.summary(program, given.verbose > 1) if given.verbose else ""


def _tell(captured: CapturedProgram, summary: str) -> None:
    """Say on stderr what of a program is left to PyTorch, and what `-v` tells."""
    text = "".join(f"deplodock: note: {call}\n" for call in captured.eager.values()) + summary
    terminal.tell(text)


def _json(found: Any) -> str:
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


def _recorder(path: str) -> RecordPlans:
    """What notes the plans of a program in a file, among those that are there."""
    from ..passes.record_file import read_record
    from ..passes.records import Record, RecordPlans

    return RecordPlans(read_record(path) if Path(path).exists() else Record(path))


def main(argv: list[str] | None = None) -> int:
    """The entry point of the `deplodock` command. Exit codes: 0 done, 1 refused or wrong, 2 bad usage."""
    arguments = sys.argv[1:] if argv is None else argv
    if "--debug" in arguments:
        os.environ["DEPLODOCK_DEBUG"] = "1"
    if argv is None:  # in a process of our own, in which torch makes millions of objects that stay
        gc.set_threshold(*RARE)
        atexit.register(gc.freeze)  # and nothing has to be looked for among them at the end
    try:
        code = cli.main(arguments, prog_name="deplodock", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
        return code or 0
    except SystemExit as stop:
        return int(stop.code or 0)
    except click.Abort:
        terminal.tell("deplodock: interrupted")
        return 130
    except BrokenPipeError:  # `deplodock ... | head`
        terminal.leave_quietly()
        return 0
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        if "--json" in arguments:
            click.echo(_json({"error": _described(error)}), nl=False)
        else:
            terminal.tell(_message(error, arguments))
        return error.exit_code if isinstance(error, click.ClickException) else 1


def _described(error: Exception) -> dict[str, str | None]:
    """An error for programs to read."""
    if isinstance(error, CompileError):
        facts = {"operator": error.operator, "argument": error.argument, "location": error.location}
        facts |= {"call": error.call, "remedy": error.remedy or REMEDIES.get(error.kind or ""), "section": error.kind}
        return {"kind": type(error).__name__, "message": error.reason, **facts}
    message = (
        error.format_message() if isinstance(error, click.ClickException) else missing_package(error) or str(error)
    )
    return {"kind": type(error).__name__, "message": message}


def _message(error: Exception, arguments: list[str]) -> str:
    """One line for an error, with source and caret where its place is known."""
    from .terminal import render_error

    if isinstance(error, CompileError):
        code = next((arguments[i + 1] for i, a in enumerate(arguments[:-1]) if a in ("-c", "--code")), "")
        return render_error(error, {"<expression>": code}, "deplodock")
    if isinstance(error, click.ClickException):
        return f"deplodock: error: {error.format_message()}"
    if isinstance(error, DeplodockError):
        return f"deplodock: error: {error}"
    if (advice := missing_package(error)) is not None:
        return f"deplodock: error: {advice} (dl-opt and deplodock doctor work without it)"
    return f"deplodock: internal error: {one_line(error)} at {raised_at(error)} (--debug shows the way there)"


if __name__ == "__main__":
    sys.exit(main())
