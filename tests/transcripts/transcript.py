"""The file of a dialogue: what its peers send, what the model writes, and every event that came back.

A file is YAML. Events are JSON on a line of their own, so that a changed one is a changed line:

    title: "A stop keeps what its reader saw"
    brief: ["ready"]                     # of these events only the type is recorded
    whole: true                          # of a prompt also the parameters and the kind of reply that were asked for
    steps:
    - act: {"open": "a", "frame": {"type": "hello", "client_id": "ann"}}
      events:
      - ["a", {"type": "ready", "brief": true}]

Steps have one verb each (`player.py`). Below a step are the events that it led to, each with the peer that received it, and
the prompts that reached the engine. `record.py` writes them; a reader checks them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Json = Any
FOLDER = Path(__file__).parent


@dataclass
class Step:
    """One thing that is done, and what came of it."""

    act: dict[str, Json]
    prompts: list[Json] = field(default_factory=list)
    """Requests that reached the engine since the step before."""
    events: list[tuple[str, Json]] = field(default_factory=list)
    """Peer and event, in the order in which each peer received them."""


@dataclass
class Transcript:
    """A transcript."""

    path: Path
    title: str
    settings: dict[str, Json]
    engine: dict[str, Json]
    """Arguments of the scripted engine."""
    brief: frozenset[str]
    whole: bool
    """Whether prompts are recorded with what else a request asks of the engine."""
    steps: list[Step]

    @property
    def name(self) -> str:
        """Dialect and file, such as `native/cut`."""
        return f"{self.path.parent.name}/{self.path.stem}"

    def text(self) -> str:
        """Return the contents of its file."""
        head: dict[str, Json] = {"title": self.title}
        head |= {"settings": self.settings} if self.settings else {}
        head |= {"engine": self.engine} if self.engine else {}
        head |= {"brief": sorted(self.brief)} if self.brief else {}
        head |= {"whole": True} if self.whole else {}
        lines = [f"{key}: {_json(value)}" for key, value in head.items()]
        lines.append("steps:")
        for step in self.steps:
            lines.append(f"- act: {_json(step.act)}")
            if step.prompts:
                lines.append("  prompts:")
                lines += [f"  - {_json(prompt)}" for prompt in step.prompts]
            if step.events:
                lines.append("  events:")
                lines += [f"  - {_json([peer, event])}" for peer, event in step.events]
        return "\n".join(lines) + "\n"


def read(path: Path) -> Transcript:
    """Return the dialogue in a file. Raises yaml.YAMLError, KeyError for a file that is none."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Transcript(
        path=path,
        title=document["title"],
        settings=document.get("settings", {}),
        engine=document.get("engine", {}),
        brief=frozenset(document.get("brief", ())),
        whole=document.get("whole", False),
        steps=[
            Step(
                act=step["act"],
                prompts=step.get("prompts", []),
                events=[(peer, event) for peer, event in step.get("events", [])],
            )
            for step in document["steps"]
        ],
    )


def all_paths() -> list[Path]:
    """Return the files of all dialogues."""
    return sorted(FOLDER.glob("*/*.yaml"))


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
