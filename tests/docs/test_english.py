"""Documents, help, error texts and the page's texts are free of the dialect that they once had."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from app.cli import main
from tests.docs.documents import ROOT, prose

DIALECT = {
    r"(?:go|goes|going|went) on\b(?! (?:line|disk|the))": "continue",
    r"(?:come|comes|coming|came) back": "reconnect, return",
    r"anew": "again, re-…",
    r"(?:is|are|was|were|be|been) told": "is sent, is notified of",
    r"told (?:by|of|to|once|whole|there|when|if)": "sent, reported",
    r"there is no such": "… not found, unknown …",
    r"(?<!there )(?:is|are) no (?:setting|function|model|causal|text|vector|chunk|argument|JSON|UTF-8|Unicode|URL)": "is not a",
    r"whoever": "anyone who; a noun",
    r"to the letter": "exactly",
    r"mends?": "fix",
    r"papers?": "document",
    r"bad days?": "fault injection",
    r"a floor": "lower bound",
    r"as much as .{1,30} takes?": "what fits",
}
"""Phrases that a reader stumbles over, and what to write instead."""
PHRASES = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in DIALECT), re.IGNORECASE)
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
LAYERS = ("app", "connections", "specs", "sessions", "engine", "speech", "midstream", "midstream_server")
TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
DOCUMENTS = [ROOT / name for name in TRACKED if name.endswith(".md")]
MODULES = [
    ROOT / name
    for name in TRACKED
    if name.endswith(".py") and name.startswith(tuple(f"{layer}/" for layer in LAYERS))
]
WORDS = ROOT / "app" / "page" / "ui" / "words" / "sentences.js"


def found(text: str) -> list[str]:
    return [match[0] for match in PHRASES.finditer(" ".join(text.split()))]


def texts(module: Path) -> Iterator[str]:
    """Yield a module's strings of several words, other than docstrings."""
    tree = ast.parse(module.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and " " in node.value
        ):
            yield node.value


def commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from commands(inner)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_has_no_dialect(document: Path) -> None:
    assert found(CODE.sub("``", prose(document))) == []


def test_error_texts_and_log_events_have_no_dialect() -> None:
    wrong = {
        str(module.relative_to(ROOT)): words
        for module in MODULES
        if (words := found(" | ".join(texts(module))))
    }
    assert wrong == {}


def test_help_has_no_dialect() -> None:
    helps = [command.get_help(click.Context(command)) for command in commands(main)]
    assert len(helps) > 5
    assert found("\n".join(helps)) == []


def test_the_pages_texts_have_no_dialect() -> None:
    keys = re.findall(r'^  "((?:[^"\\]|\\.)*)":', WORDS.read_text(), re.MULTILINE)
    assert len(keys) > 200
    assert found(" | ".join(keys)) == []
