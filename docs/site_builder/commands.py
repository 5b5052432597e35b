"""Pages of the commands `deplodock` and `dl-opt`, from their options."""

from __future__ import annotations

import argparse
import re

import click

from deplodock.tools.cli import cli
from deplodock.tools.dl_opt import DlOptMain

INDEX = """# Commands

[The commands](../../commands.md) explains them by examples. These pages list all options, as `--help` does.

| command | effect |
|---|---|
{rows}

```{{toctree}}
:hidden:

{entries}
```
"""


def pages() -> dict[str, str]:
    """Returns the text of each page by its path."""
    texts: dict[str, tuple[str, str]] = {}
    context = click.Context(cli, info_name="deplodock")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        child = click.Context(command, info_name=name, parent=context)
        texts[f"deplodock-{name}"] = f"deplodock {name}", _click_page(command, child)
    parser = argparse.ArgumentParser()
    DlOptMain.register_all_arguments(DlOptMain.__new__(DlOptMain), parser)
    texts["dl-opt"] = "dl-opt", _argparse_page(parser)
    rows = "\n".join(f"| [`{title}`]({file}.md) | {_first(text)} |" for file, (title, text) in texts.items())
    index = INDEX.format(rows=rows, entries="\n".join(texts))
    return {"commands/index.md": index, **{f"commands/{file}.md": text for file, (_, text) in texts.items()}}


def _first(page: str) -> str:
    return page.split("\n\n")[1].replace("\n", " ").rstrip(".")


def _click_page(command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    formatter = click.HelpFormatter(width=10_000)
    command.format_help_text(context, formatter)
    texts = [line.strip() for line in formatter.getvalue().splitlines() if line.strip()]
    parts = [f"# `{context.command_path}`", *map(_prose, texts), f"```text\n{context.command_path} {usage}\n```"]
    if isinstance(command, click.Group):
        rows: list[str] = []
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            parts_of_child = click.Context(child, info_name=name, parent=context)
            records = [
                record for p in child.get_params(parts_of_child) if (record := p.get_help_record(parts_of_child))
            ]
            rows.append(
                f"## `{context.command_path} {name}`\n\n{_prose(child.get_short_help_str(500))}\n\n{_table(records)}"
            )
        return "\n\n".join([*parts, *rows]) + "\n"
    records = [record for p in command.get_params(context) if (record := p.get_help_record(context)) and record[1]]
    return "\n\n".join([*parts, "## Options", _table(records)]) + "\n"


def _argparse_page(parser: argparse.ArgumentParser) -> str:
    records: list[tuple[str, str]] = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        names = ", ".join(action.option_strings) or action.dest
        text = (action.help or "") % vars(action) if "%(" in (action.help or "") else action.help or ""
        records.append((f"{names}{value if action.option_strings else ''}", text))
    about = "Reads the text of any level, runs passes, and prints the result."
    return f"# `dl-opt`\n\n{about}\n\n```text\ndl-opt [OPTIONS] [FILE]\n```\n\n## Options\n\n{_table(records)}\n"


def _table(records: list[tuple[str, str]]) -> str:
    cells = [(option.replace("|", "\\|"), _prose(" ".join(text.split()))) for option, text in records]
    return "| option | effect |\n|---|---|\n" + "\n".join(f"| `{option}` | {text} |" for option, text in cells)


def _prose(text: str) -> str:
    """Returns a help text as Markdown: without characters that Markdown or a table would read."""
    spans = re.split(r"(`[^`]*`)", text)
    spans = [s.replace("|", "\\|") if s.startswith("`") else s for s in spans]
    return "".join(s if s.startswith("`") else re.sub(r"([*_<>\[\]{}#|])", r"\\\1", s) for s in spans)
