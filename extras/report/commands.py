"""Option `--report` of the commands."""

from __future__ import annotations

import sys
from shlex import join

import click

from ...tools.modes import Extension, Finished, Params


class ReportExtension(Extension):
    """Writes a page about the program of a command."""

    options = {
        command: [
            click.Option(
                ["--report"], metavar="FILE.html", help="Write a page about the program: levels, passes, times."
            ),
            click.Option(
                ["--check-each"],
                is_flag=True,
                help="With --report: execute the program after every pass, for a verdict.",
            ),
            click.Option(
                ["--report-against"],
                metavar="OTHER",
                help="With --report: compare with the run of another page, or of `compile --json`.",
            ),
        ]
        for command in ("compile", "run", "tune")
    }
    modes = {
        "compile": {"a program", "--explain", "a program of IR"},
        "run": {"a program", "a program of IR"},
        "tune": {"a program", "a MODEL", "a PROGRAM.stablehlo"},
    }

    def check(self, params: Params) -> None:
        """Refuses options that need a page, and a run for comparison that cannot be read."""
        if not params.report:
            adds = "--check-each adds verdicts" if params.check_each else "--report-against adds a comparison"
            raise click.UsageError(f"{adds} to the page of --report: give both")
        if params.report_against:
            from .against import read_run

            read_run(params.report_against)

    def finish(self, context: click.Context, params: Params, finished: Finished) -> None:
        """Writes the page.

        Args:
            context: context of the command.
            params: its parameters.
            finished: the program and the results of the command.

        Raises:
            CompileError: the file cannot be written.
        """
        from .program import ReportedProgram
        from .write import write_page

        arguments = context.obj if isinstance(context.obj, list) else sys.argv[1:]
        program = ReportedProgram(
            finished.compilations[0],
            command=join(["deplodock", *map(str, arguments)]),
            check_each=params.check_each,
            loaded=finished.loaded,
            outcome=finished.outcome,
            searches=finished.searches,
            error=finished.error,
            against=params.report_against or "",
        )
        write_page(program, params.report)
