"""`python -m tests.transcripts.record FILE…`: play dialogues, and write down what comes of them, for a reader to check."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.transcripts.player import play
from tests.transcripts.transcript import all_paths, read


async def record(paths: list[Path]) -> None:
    """Record each dialogue, and print its name."""
    for path in paths:
        dialogue = read(path)
        with tempfile.TemporaryDirectory() as folder:
            await play(dialogue, Path(folder), record=True)
        path.write_text(dialogue.text(), encoding="utf-8")
        events = sum(len(step.events) for step in dialogue.steps)
        print(f"{dialogue.name}: {len(dialogue.steps)} steps, {events} events")


if __name__ == "__main__":
    asyncio.run(record([Path(name) for name in sys.argv[1:]] or all_paths()))
