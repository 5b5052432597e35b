"""The command `deplodock learn`: lists chapters, makes the files of exercises, and judges answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from .course import Chapter, CourseError, Exercise, all_chapters, chapter, exercises
from .judging import Judges
from .verdicts import Verdict

FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("learn"),
    show_default=True,
    help="Folder of the answers.",
)


@dataclass
class Progress:
    """Solved exercises and shown hints of a folder of answers, in its file `progress.json`.

    Attributes:
        file: the file.
        solved: numbers of solved exercises.
        hints: number of the exercise -> number of hints that were shown.
    """

    file: Path
    solved: list[str] = field(default_factory=list)
    hints: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(folder: Path) -> Progress:
        """Reads the progress of a folder; empty if there is none. Raises CourseError for a file that is damaged."""
        progress = Progress(folder / "progress.json")
        if not progress.file.exists():
            return progress
        try:
            data = json.loads(progress.file.read_text(encoding="utf-8"))
            progress.solved, progress.hints = list(data["solved"]), dict(data["hints"])
        except (OSError, ValueError, KeyError, TypeError):
            raise CourseError(f"cannot read {progress.file}: remove it to start again") from None
        return progress

    def write(self) -> None:
        """Writes the file."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        data = {"solved": sorted(self.solved), "hints": self.hints}
        self.file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


class LearnGroup(click.Group):
    """Group whose command may be the number of a chapter or an exercise: `learn 3` is `learn start 3`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0][:1].isdigit():
            args = ["start", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=LearnGroup, invoke_without_command=True)
@click.pass_context
def learn(ctx: click.Context) -> None:
    """Learn how the compiler works, by exercises that are judged by running your answers.

    `learn` lists the chapters. `learn 3` makes the files of chapter 3 and names its page. `learn check 3` judges your
    answers, `learn hint 3.1` helps and `learn show 3.1` prints a solution.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(chapters)


@learn.command("list")
@FOLDER
def chapters(folder: Path = Path("learn")) -> None:
    """List the chapters, and how many of their exercises are solved."""
    solved = set(Progress.of(folder).solved)
    for c in all_chapters():
        count = sum(e.number in solved for e in c.exercises)
        click.echo(f"{c.number:>2}  {c.title:<44} {count} of {len(c.exercises)} solved")
    click.echo("`deplodock learn N` starts chapter N")


@learn.command()
@click.argument("number")
@FOLDER
def start(number: str, folder: Path) -> None:
    """Make the files of a chapter or an exercise, each with a hole, and name the page to read.

    Files that exist stay as they are.
    """
    selected = exercises(number)
    c = _chapter_of(selected[0])
    folder.mkdir(parents=True, exist_ok=True)
    click.echo(f"{c.number}. {c.title}: read {c.page}")
    for e in selected:
        file = folder / e.file
        if not (exists := file.exists()):
            file.write_text(e.template, encoding="utf-8")
        click.echo(f"  {e.number}  {e.title}: {file}{' (exists already)' if exists else ''}")
    click.echo(f"`deplodock learn check {number}` judges the answers")


def _chapter_of(exercise: Exercise) -> Chapter:
    return chapter(int(exercise.number.split(".")[0]))


@learn.command()
@click.argument("numbers", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Judge the answers to all exercises, for a course.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@FOLDER
@click.pass_context
def check(ctx: click.Context, numbers: tuple[str, ...], everything: bool, as_json: bool, folder: Path) -> None:
    """Judge the answers to chapters or exercises.

    An answer runs in a process of its own. It may change files only in a temporary folder. Its time and its memory are
    limited. The command ends with 1 unless all answers are right.
    """
    if everything == bool(numbers):
        raise CourseError("expected chapters or exercises, such as `learn check 3`, or --all")
    selected = [e for c in all_chapters() for e in c.exercises] if everything else _selected(numbers)
    progress, verdicts = Progress.of(folder), list[Verdict]()
    with Judges() as judges:
        for e in selected:
            file = folder / e.file
            if everything and not file.is_file():
                verdict = Verdict(e.number, False, f"no answer: there is no {file}")
            else:
                verdict = judges.judge(e, file)
            verdicts.append(verdict)
            if not as_json:
                _show(e, verdict)
    progress.solved = sorted(
        {*progress.solved} - {e.number for e in selected} | {v.exercise for v in verdicts if v.solved}
    )
    if folder.is_dir():
        progress.write()
    if as_json:
        click.echo(json.dumps(_course_json(selected, verdicts), indent=1))
    elif len(verdicts) > 1:
        click.echo(f"{sum(v.solved for v in verdicts)} of {len(verdicts)} solved")
    ctx.exit(0 if all(v.solved for v in verdicts) else 1)


def _selected(numbers: Iterable[str]) -> list[Exercise]:
    return list({e.number: e for n in numbers for e in exercises(n)}.values())


def _show(exercise: Exercise, verdict: Verdict) -> None:
    mark = "solved" if verdict.solved else "not yet"
    click.echo(f"{exercise.number} {exercise.title}: {mark}: {verdict.text}")
    for line in verdict.output.splitlines():
        click.echo(f"  | {line}")


def _course_json(selected: list[Exercise], verdicts: list[Verdict]) -> dict[str, Any]:
    titles = {e.number: e.title for e in selected}
    return {
        "solved": sum(v.solved for v in verdicts),
        "exercises": [v.as_json() | {"title": titles[v.exercise]} for v in verdicts],
    }


@learn.command()
@click.argument("number")
@FOLDER
def hint(number: str, folder: Path) -> None:
    """Print the next hint for an exercise."""
    e, progress = _one(number), Progress.of(folder)
    shown = min(progress.hints.get(e.number, 0), len(e.hints) - 1)
    click.echo(f"hint {shown + 1} of {len(e.hints)}: {e.hints[shown]}")
    progress.hints[e.number] = shown + 1
    progress.write()


@learn.command()
@click.argument("number")
def show(number: str) -> None:
    """Print a solution of an exercise."""
    click.echo(_one(number).solution, nl=False)


def _one(number: str) -> Exercise:
    selected = exercises(number)
    if "." not in number:
        raise CourseError(f"expected an exercise such as {selected[0].number}, but got the chapter {number}")
    return selected[0]
