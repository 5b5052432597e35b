"""The counts of `tests/prose.py` may only fall."""

from __future__ import annotations

import json

import prose

PLANTED = '''"""What is planted here."""

ALONE = 1
"""The same for nobody: it says so many things that lie behind the others, of which none is known."""

# the loop goes where what is left stands

def tell(first, own, each):
    """Of these, the one that is next; and then this is a sentence which does not end before it has had more than \\
    thirty words in it, because a reader has to keep all of them in mind until the end."""
    found = first

def _size(value):
    """Returns the size of the value."""
'''


def test_no_count_rises() -> None:
    recorded = json.loads(prose.RECORD.read_text(encoding="utf-8"))
    present = prose.counts(prose.files())
    risen = {habit: number for habit, number in present.items() if number > recorded.get(habit, 0)}
    assert not risen, "\n".join(
        f"{habit}: {number}, but at most {recorded.get(habit, 0)} are allowed;"
        f' python tests/prose.py --show "{habit}" lists them'
        for habit, number in risen.items()
    )


def test_a_planted_text_is_counted() -> None:
    expected = {*prose.PHRASES, "question openers", "openers without a noun", "long sentences"}
    expected |= {"public functions without Args", "docstrings that repeat the name"}
    expected |= {"name found", "name own", "name each"}
    assert {hit.habit for hit in prose.hits(PLANTED)} == expected


def test_plain_words_are_not_counted() -> None:
    plain = '"""Layouts of tiles."""\n\ndef width(layout):\n    """Returns the number of elements in a row."""\n'
    assert not [*prose.hits(plain)]


def test_code_in_a_text_is_not_counted() -> None:
    assert not [*prose.hits('"""Names such as `what` and `found`."""\n')]
