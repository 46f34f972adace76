"""What sounds and words over a spoken reply do: `python -m tests.bench.dialogues.interruptions`.

A real service counts aloud, in real time. After a second and a half its listener coughs, hums, says "mhm", "stop" or a
sentence. The table says how many of each kind did what they should, and when the count ended, in samples that the microphone had
sent since that sound began. Writes docs/bench/interruptions.json. Exit status 1: a noise or a backchannel ended a reply or
became a message, or a sentence or a "stop" did not end one within a second of speech.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import msgspec

from speech.pocketsphinx_decoder import in_digits
from tests.bench.dialogues.voice_client import (
    SERVE,
    SPEECH,
    VOICES,
    Utterance,
    telephone,
    utterance,
)
from tests.bench.report import RESULTS, Measured, Report, none
from tests.server_process import serving
from tests.speech.noise_samples import NOISES, noise

COUNT = "count to fifty nine"
NODS = ("yes", "mhm", "okay")
STOPS = ("stop", "stop it", "please stop", "stop please", "wait", "hold on")
SENTENCES = (
    "what did you say last", "tell me a story about a dragon", "what is seven plus eight", "what is my name",
    "my favourite colour is blue", "what time is it",
)  # fmt: skip
INTO_MS = 1500
"""How much of the count is heard before."""
SILENCE_S = 2.5
"""How long is waited for what a sound does."""
LATEST_MS = 1000


class InterruptionResult(msgspec.Struct, frozen=True):
    """What a sound did. `cut_ms`: None: the reply continued; `message`: what was answered."""

    kind: str
    sound: str
    cut_ms: float | None
    message: str | None

    @property
    def is_right(self) -> bool:
        """Whether it did what it should."""
        if self.kind in ("noise", "backchannel"):
            return self.cut_ms is None and self.message is None
        is_cut = self.cut_ms is not None and self.cut_ms <= LATEST_MS
        expected = None if self.kind == "stop" else in_digits(self.sound[1:].split("”")[0])
        return is_cut and self.message == expected


def main() -> int:
    """Make all sounds, and print what each did."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.dialogues.interruptions", description=__doc__
    )
    parser.add_argument("--at-once", type=int, default=2, help="replies that are spoken at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS / "interruptions.json", help="file for results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), SPEECH, command=SERVE) as server:
        seen = asyncio.run(_all(server.ws_url, options.at_once))
    return Report(findings=list(_findings(seen)), details={"sounds": seen}).conclude(options.out)


def _findings(seen: list[InterruptionResult]) -> Iterator[Measured]:
    for kind in dict.fromkeys(one.kind for one in seen):
        some = [one for one in seen if one.kind == kind]
        wrong = [f"{one.sound}: {one.cut_ms} {one.message}" for one in some if not one.is_right]
        cuts = [one.cut_ms for one in some if one.cut_ms is not None]
        measured = none(f"{kind}: of {len(some)} sounds, those that did something else", wrong)
        readings = {"cut after ms, least": min(cuts), "most": max(cuts)} if cuts else {}
        yield msgspec.structs.replace(measured, readings=readings)


async def _all(url: str, at_once: int) -> list[InterruptionResult]:
    places = asyncio.Semaphore(at_once)

    async def one(number: int, kind: str, speech: Utterance) -> InterruptionResult:
        async with places:
            return await _over(url, f"interruption-{number}", kind, speech)

    return await asyncio.gather(*(one(number, *sound) for number, sound in enumerate(await _sounds())))


async def _sounds() -> list[tuple[str, Utterance]]:
    noises = [("noise", Utterance(name, noise(name), len(noise(name)))) for name in NOISES]
    kinds = (("backchannel", NODS), ("stop", STOPS), ("sentence", SENTENCES))
    words = [
        (kind, msgspec.structs.replace(await utterance(text, voice=voice), text=f"“{text}”, {voice}"))
        for kind, texts in kinds
        for text, voice in product(texts, VOICES)
    ]
    return [*noises, *words]


async def _over(url: str, conversation: str, kind: str, speech: Utterance) -> InterruptionResult:
    """Make one sound over a count."""
    async with telephone(url, conversation, conversation, silence_ms=500, noise=30.0) as phone:
        await phone.speak(await utterance(COUNT, voice="en-us"))
        count = await phone.answered(1)
        await phone.until(lambda: count.played_ms >= INTO_MS)
        await phone.speak(speech)
        await asyncio.sleep(SILENCE_S)
        _, *messages = [one["content"] for one in await phone.history() if one["role"] == "user"]
        return InterruptionResult(
            kind=kind,
            sound=speech.text,
            cut_ms=None if count.ended_ms is None else count.ended_ms - phone.spoke_ms,
            message=messages[-1] if messages else None,
        )


if __name__ == "__main__":
    sys.exit(main())
