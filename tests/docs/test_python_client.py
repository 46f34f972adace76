"""The code of the guide to the Python client, as it stands there, against a real server; and that it names everything."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

import midstream
from engine.scripted import Call, ScriptedEngine, Thought
from tests.app.in_process_service import serving
from tests.docs.documents import ROOT, snippets
from tests.server_process import ServerProcess

GUIDE = ROOT / "docs" / "python-client.md"
PROGRAM, *BODIES = snippets(GUIDE, "python")
SCRIPTS = {  # what the model says, by a word of the example
    "Reasoning": [[Thought("Hm."), "It yields."]],
    "Write a novel.": ["Once upon a time " * 2000, "and ever after"],
    "Go on for long.": ["Hello.", "word " * 2000],
    "weather": [[Call("weather", '{"city": "Bern"}')], ["It rains."]],
}


def compiled(body: str) -> CodeType:
    """An example that stands inside of a coroutine."""
    return compile(body, GUIDE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("body", BODIES, ids=range(2, 2 + len(BODIES)))
async def test_the_examples_do_what_they_say(body: str, tmp_path: Path) -> None:
    engine = ScriptedEngine(pace_s=0.001)
    for replies in [replies for word, replies in SCRIPTS.items() if word in body][:1]:
        for reply in replies:
            engine.script(reply)
    async with (
        serving(tmp_path, engine) as running,
        midstream.connect(running.url, features=("reasoning", "tools")) as client,
    ):
        await eval(compiled(body), {"client": client, "midstream": midstream, "url": running.url})


def test_the_program_stops_a_reply(server: ServerProcess) -> None:
    code = PROGRAM.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    reported = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert reported.stdout.startswith("1, 2, 3,")
    assert reported.stdout.endswith("cancelled\n")


def public(kind: type) -> set[str]:
    """Methods and fields that a user sees."""
    return {name for name in (*dir(kind), *getattr(kind, "__annotations__", {})) if not name.startswith("_")}


@pytest.mark.parametrize(
    "kind",
    [
        midstream.Client,
        midstream.Call,
        midstream.Status,
        midstream.Reconnecting,
        midstream.Reply,
    ],
)
def test_the_guide_names_all_that_is_public(kind: type) -> None:
    inside = {
        midstream.Client: {"open", "keep", "close"},  # `connect` calls these
        midstream.Call: {"of", "take", "note", "cancel"},  # a reply does
        midstream.Reply: {"take", "begin_with"},  # the client does
    }
    names = set(re.findall(r"\w+", GUIDE.read_text()))
    assert public(kind) - inside.get(kind, set()) - names == set()
    assert set(midstream.__all__) - names == set()
