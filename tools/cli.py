"""The command `deplodock`: compiles, runs and tunes PyTorch programs, and prints the IR of each level.

Its options `-c` and FILE.py execute Python code of the user.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..dialects import LEVELS, MACHINE_CODE
from ..errors import REMEDIES, CompileError, DeplodockError, missing_package, one_line, raised_at
from ..frontend import RARE_COLLECTIONS
from ..plugins import plugin, plugins
from ..progress import steps
from ..target.attribute import stamp
from . import records_command, terminal, tune
from .modes import (
    PREPACK_WEIGHTS,
    FileCommand,
    OptionalValue,
    Params,
    choose_target,
    extended,
    facts,
    recorder,
    refuse_ignored,
)

if TYPE_CHECKING:
    from ..passes.pass_manager import Observer
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
"""Options that replace decisions of the planner."""


_PRINT = click.option(
    "--print",
    "print_values",
    multiple=True,
    metavar="[tile:|kernel:][KERNEL:]VALUE[INDEX]",
    help="Print a value of a kernel when it runs, by its name in `--ir tile` (or kernel): '%7', 'k0:%7[3,*]'.",
)
"""Option that inserts operations that print."""


def _program_options(target: str, planned: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds the options of all commands on programs.

    Args:
        target: default of `--target`.
        planned: whether the command has `--record` and `--schedule`. `tune` has not, because it searches schedules.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.argument("file", required=False),
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
            *((_PRINT,) if planned else ()),
            click.option(
                "--strategy",
                type=click.Choice(["model", "simple"]),
                default="model",
                show_default=True,
                help="simple: fuse and schedule by short rules in place of the model's search.",
            ),
            click.option("--f32-matmul-precision", metavar="HOW", help="Of f32 on tensor cores: ieee, tf32 or bf16x3."),
            PREPACK_WEIGHTS,
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
    """Group of the commands, including commands of plug-ins.

    A closed output pipe (`deplodock ... | head`) ends a command without an error.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.commands, *plugins("deplodock.commands", self.commands, "command")])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in self.list_commands(ctx):
            return super().get_command(ctx, cmd_name)
        return plugin("deplodock.commands", cmd_name, "command")

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


@cli.command(cls=FileCommand)
@_program_options("sm_90a")
@click.option(
    "--ir",
    type=click.Choice([*LEVELS, "cpp", *MACHINE_CODE]),
    default="cuda",
    help="The level to print. By default the text: cuda, or cpp for a CPU. ptx and sass: machine code of a GPU, by"
    " NVRTC; asm: that of a CPU.",
)
@click.option(
    "--helpers/--no-helpers",
    default=None,
    help="Print the helper functions of a text, too: by default where the output is not a terminal.",
)
@click.option(
    "--explain",
    cls=OptionalValue,
    values=("schedules", "fusion"),
    help="Print the schedules that were considered, and what limits each. fusion: print the values that are kept in"
    " memory, and what the model predicts with each of them kept or computed again.",
)
@click.option("--write-record", metavar="FILE", help="Note there how the program was fused and scheduled.")
@click.option("--print-pipeline", is_flag=True, help="Print the passes to the level, as an argument for `dl-opt -p`.")
@click.option("-o", "--output", type=click.Path(), help="Write there instead of to stdout.")
def compile(context: click.Context, params: Params) -> None:
    """Compile a program and print one of its levels."""
    asked = (f"--{n.replace('_', '-')}" for n in ("emit", "explain", "print_pipeline") if getattr(params, n, None))
    mode = next(asked, "a program")
    refuse_ignored(context, f"{mode} fusion" if mode == "--explain" and params.explain == "fusion" else mode)
    choose_target(params)
    writer = None if params.write_record is None else recorder(params.write_record)
    with terminal.progress(quiet=params.verbose > 1):
        program = _load(params, [] if writer is None else [writer], facts(context, params))
        with extended(context, params, [program.compilation], loaded=program):
            text, kind = _asked_for(program, params)
            if writer is not None:
                program.compilation.at("tile")  # At this level every nest has a schedule.
                writer.record.save()
            notes = _notes(program, params)
    terminal.tell(notes)
    terminal.write_out(text, kind, params.output)


def _asked_for(program: Loaded, params: Params) -> tuple[str, str]:
    """Returns the text that `compile` prints, and its kind for the colours of `terminal.write`."""
    from . import reports

    compilation = program.compilation
    if params.print_pipeline:
        line = compilation.pipeline(params.ir)
        return (_json({"pipeline": line}) if params.as_json else f"{line}\n"), ""
    if params.explain:
        width = terminal.width_of(sys.stdout) if params.output is None else None
        fusion = params.explain == "fusion"
        if params.as_json:
            return _json((reports.fusion_explained if fusion else reports.explained)(program)), ""
        if fusion:
            return reports.fusion_text(program, width), ""
        from ..frontend.explanation import explain

        return terminal.fitted(explain(compilation), width), ""
    if emitter := getattr(params, "emit", None):
        text = plugin("deplodock.emitters", emitter, "emitter")(compilation)
        return (_json({"target": params.target, "text": text}) if params.as_json else text), "cuda"
    if params.as_json:
        machine = params.verbose > 0 or params.ir in MACHINE_CODE
        return _json(reports.as_json(program, params.ir, terminal.is_kept(params.output), machine)), ""
    return reports.level_text(compilation, params.ir, params.output, params.helpers)


@cli.command(cls=FileCommand)
@_program_options("auto")
@click.option(
    "--executor", default="auto", show_default=True, help="auto, cuda, cpu, emulator, simulator or reference."
)
@click.option("--bench", is_flag=True, help="Time it beside eager PyTorch and torch.compile; compare their errors.")
@click.option("--profile", is_flag=True, help="Time each kernel: measured here, or predicted where it cannot run.")
@click.option("--predict", is_flag=True, help="Tell what the planning model expects of each kernel on a GPU.")
@click.option("--bisect", is_flag=True, help="Name the first pass, or operator, whose values differ from PyTorch's.")
@click.option(
    "--kernel-text",
    metavar="FILE.cu|FILE.cpp",
    help="Run kernels of this file, an edited output of `compile`, in place of the printed ones; time both.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="OPTIONS",
    help="With --bench or --profile: time another schedule beside the chosen one: 'block=8,64'.",
)
@click.option("--plot", metavar="FILE.svg", help="With --bench: the times as bars.")
@click.option("--trace", metavar="FILE", help="Passes and kernels as a timeline for Perfetto or chrome://tracing.")
def run(context: click.Context, params: Params) -> None:
    """Run a program, compare it with PyTorch and, on the CPU, time both; the exit code is 1 where they differ."""
    if getattr(params, "bisect", False):
        return _bisect(context, params)
    refuse_ignored(context, "a program")
    with terminal.progress(quiet=params.verbose > 1):
        with steps("loading PyTorch"):
            from ..frontend.executors import check_executor
            from . import measuring, reports
            from .versions import executor_of_kernels, executor_of_text, judge_edited, versions_of
        check_executor(params.executor)
        choose_target(params, params.executor)
        executor = params.executor
        if params.kernel_text is not None:
            executor = executor_of_text(params.target, executor)
        elif params.print_values:
            executor = executor_of_kernels(params.target, executor)
        if params.bench:
            measuring.check_timing(params.target, params.executor)
        program = _load(params, [], facts(context, params))
        with extended(context, params, [program.compilation], loaded=program) as facts_of_run:
            versions = versions_of(program, params)
            outcome = facts_of_run["outcome"] = reports.run(versions.main, executor)
            if versions.text is not None:
                printed, facts_of_run["loaded"] = program.compilation, versions.main
                judge_edited(versions.text, printed, outcome, lambda c: reports.run(program.of(c), executor)["ok"])
            width = terminal.width_of(sys.stdout)
            text = terminal.fitted(reports.outcome_text(outcome) + "\n", width)
            text += measuring.measure_more(versions, params, context.obj, outcome, width)
            notes = _notes(program, params)
    terminal.tell(notes)
    if params.as_json:
        click.echo(_json(outcome), nl=False)
    else:
        terminal.write(text, "outcome", sys.stdout)
    if outcome["ok"] is False or outcome.get("bench", {}).get("right") is False:
        raise SystemExit(1)


def _bisect(context: click.Context, params: Params) -> None:
    """Prints the part of the compiler after which the values of a program differ from PyTorch's (`run --bisect`)."""
    refuse_ignored(context, "--bisect")
    with terminal.progress(quiet=params.verbose > 1):
        with steps("loading PyTorch"):
            from ..frontend.executors import check_executor
            from . import bisection
        check_executor(params.executor)
        choose_target(params, params.executor)
        outcome = bisection.bisect_loaded(_load(params, [], facts(context, params)), params.executor)
    text = _json(bisection.as_dict(outcome)) if params.as_json else bisection.outcome_text(outcome, params.verbose > 0)
    terminal.write(terminal.fitted(text, terminal.width_of(sys.stdout)), "diff", sys.stdout)
    if outcome.culprit is not None:
        raise SystemExit(1)


@cli.command("tune", cls=FileCommand)
@_program_options("auto", planned=False)
@tune.tune_options
def tune_command(context: click.Context, params: Params) -> None:
    """Search for faster schedules, measured here, and record them for later compilations.

    Every candidate is checked against float64 before it is timed. Ctrl-C ends the search and records the best.
    """
    refuse_ignored(context, "a program")
    tune.tune(context, params)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--measure", is_flag=True, help="Measure the cores first; the planner of the target cpu uses the numbers."
)
def doctor(as_json: bool, measure: bool) -> None:
    """List the installed tools and devices."""
    from .doctor import examine, measure_cores

    with terminal.progress():
        if measure:
            measure_cores()
        findings = examine()
    text = terminal.table(list(findings.items()), terminal.width_of(sys.stdout))
    click.echo(_json(findings) if as_json else text, nl=False)


cli.add_command(records_command.records)


def _load(params: Params, observers: list[Observer], notes: dict[str, str]) -> Loaded:
    """Captures the program of a command. Its printed texts name the entries of `notes`: version, source and options."""
    with steps("loading PyTorch"):
        from . import reports

    diffs_to = terminal.Colored("diff", sys.stdout).write if params.verbose > 1 else None
    how = {"fallback": params.fallback, "dynamic": params.dynamic, "diffs_to": diffs_to, "observers": observers}
    program = reports.load(params.file, params.code, seed=params.seed, **how, **params.options)
    stamp(program.captured.module, notes)
    return program


def _notes(program: Loaded, params: Params) -> str:
    """Returns a note for each call that PyTorch executes, and with `-v` the summary of a program."""
    from . import reports

    text = "".join(f"deplodock: note: {call}\n" for call in program.captured.eager.values())
    return text + (reports.summary(program, params.verbose > 1) if params.verbose else "")


def _json(data: Any) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def main(argv: list[str] | None = None) -> int:
    """The entry point of the `deplodock` command. Exit codes: 0 done, 1 refused or wrong, 2 bad usage."""
    arguments = sys.argv[1:] if argv is None else argv
    if "--debug" in arguments:
        os.environ["DEPLODOCK_DEBUG"] = "1"
    if argv is None:
        # This process runs one command, and torch creates millions of objects that live until its end.
        gc.set_threshold(*RARE_COLLECTIONS)
        atexit.register(gc.freeze)
    try:
        code = cli.main(arguments, prog_name="deplodock", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
        return code or 0
    except SystemExit as stop:
        return int(stop.code or 0)
    except click.Abort:
        terminal.tell("deplodock: interrupted")
        return 130
    except BrokenPipeError:  # For example `deplodock ... | head`.
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
    """Returns the facts of an error, for `--json`."""
    if isinstance(error, CompileError):
        facts = {"operator": error.operator, "argument": error.argument, "location": error.location}
        facts |= {"call": error.call, "remedy": error.remedy or REMEDIES.get(error.kind or ""), "section": error.kind}
        return {"kind": type(error).__name__, "message": error.reason, **facts}
    message = (
        error.format_message() if isinstance(error, click.ClickException) else missing_package(error) or str(error)
    )
    return {"kind": type(error).__name__, "message": message}


def _message(error: Exception, arguments: list[str]) -> str:
    """Returns an error as one line, followed by the source line and a caret if its location is known."""
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
