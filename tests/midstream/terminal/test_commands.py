"""Which lines are commands."""

from __future__ import annotations

import pytest

from midstream.terminal.session import HELP, NAMES, Command, Message, UnknownCommand, help_lines, read


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("Hello.\n", Message("Hello.")),
        ("  two\nlines ", Message("two\nlines")),
        (" \n", None),
        ("/new", Command("new", "")),
        ("/rename  A good title \n", Command("rename", "A good title")),
        ("/regenerate", Command("retry", "")),
        ("/again", Command("retry", "")),
        ("/exit", Command("quit", "")),
        ("//etc/hosts has what?", Message("/etc/hosts has what?")),
        ("/hlep me", UnknownCommand("hlep")),
        ("/", UnknownCommand("")),
    ],
)
def test_a_line_is_a_message_or_a_command(line: str, meaning: object) -> None:
    assert read(line) == meaning


@pytest.mark.parametrize(
    ("name", "hint"),
    [("hlep", "did you mean /help?"), ("LIST", "did you mean /list?"), ("xyzzy", "/help lists")],
)
def test_a_command_that_there_is_not_is_answered_with_what_was_meant(name: str, hint: str) -> None:
    assert hint in str(UnknownCommand(name))
    assert "type two" in str(UnknownCommand(name))


def test_the_help_names_every_command_and_fits_a_terminal() -> None:
    assert [usage for usage in HELP if not any(line.startswith(usage) for line in help_lines())] == []
    assert max(map(len, help_lines())) <= 100
    assert all(isinstance(read(f"/{name}"), Command) for name in NAMES)
