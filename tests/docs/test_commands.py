"""Each command line in a document that begins with `midstream`, and each setting before one, is understood."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from app.cli import main
from app.settings import Settings
from tests.docs.documents import DOCUMENTS, ROOT, snippets
from tests.jwt_signing import SECRET

WITH_COMMANDS = [
    document for document in DOCUMENTS if document.name != "CONTRIBUTING.md" and snippets(document, "sh")
]
OURS = re.compile(r"(?:^|[ /])midstream |\bMIDSTREAM_")
CONTINUED = re.compile(r"\\\n\s*")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command, with the variables before it."""
    for line in filter(OURS.search, CONTINUED.sub(" ", text).splitlines()):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                yield words
                words = []
            else:
                words.append(word)


def parts(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The variables, and the command with its options."""
    given = 0
    while given < len(words) and re.match(r"[A-Z_]+=", words[given]):
        given += 1
    pairs = [word.partition("=") for word in words[:given]]
    return {name: value for name, _, value in pairs}, words[given:]


def parse_options(words: list[str]) -> None:
    """Read options as the program does, without doing anything. Raises click.UsageError."""
    command: click.Command = main
    while isinstance(command, click.Group):
        name, *words = words
        found = command.commands.get(name)
        if found is None:
            raise click.UsageError(f"no such command: {name}")
        command = found
    command.make_context(command.name, list(words))


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=lambda document: str(document.relative_to(ROOT)))
def test_commands_and_settings_are_understood(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where files lie that a value names as @FILE
    for text in snippets(document, "sh"):
        for variables, words in map(parts, commands(text)):
            settings = {name: value for name, value in variables.items() if name.startswith("MIDSTREAM_")}
            for value in settings.values():
                if value.startswith("@"):
                    (tmp_path / value[1:]).write_text("Be kind.")
            if config := settings.get("MIDSTREAM_CONFIG"):
                (tmp_path / config).parent.mkdir(exist_ok=True)
                (tmp_path / config).touch()
            Settings.read(
                {name: SECRET if value.startswith("$") else value for name, value in settings.items()}
            )
            if words and Path(words[0]).name == "midstream" and len(words) > 1:
                parse_options(words[1:])


def test_what_is_wrong_is_found() -> None:
    (words,) = filter(None, commands("A=1 midstream chat --urll http://x && true | cat".partition(" &&")[0]))
    assert parts(words) == ({"A": "1"}, ["midstream", "chat", "--urll", "http://x"])
    for wrong in (["chat", "--urll", "x"], ["serv"], ["keys", "add", "ann", "--tokens-per-day", "many"]):
        with pytest.raises(click.UsageError):
            parse_options(wrong)
