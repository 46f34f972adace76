"""Spoken dialogues with the demo model, in real time, through a real service: `python -m tests.bench.dialogues`.

Each has a name, an interrupted count that goes on or is said again, the name, and a sum. espeak-ng says everything, in two voices,
half of it with noise at 20 dB. First one dialogue at a time, compared with a plain cascade of the same parts (nothing begins before
the client reports the end of speech); then many at once, the first of whom begin at random moments.
Prints a table; `--json FILE` writes a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from speech.pocketsphinx_decoder import in_digits
from tests.bench.dialogues.voice_client import (
    SERVE,
    SPEECH,
    VOICES,
    RealtimeVoiceClient,
    Utterance,
    drawn,
    number,
    telephone,
    utterance,
)
from tests.bench.report import Measured, Report, percentile
from tests.chaos.voice_client import Reply
from tests.e2e.test_speech import wrong_words
from tests.server_process import serving

NOISE = 300.0
"""Root mean square of the noise: a tenth of the voices' loudness, 20 dB below."""
PAUSES_MS = (300, 700)
"""Pauses inside an utterance."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One utterance and its answer.

    `first_sound_ms`: from the end of speech to the first sound of the answer; `is_premature`: an answer came before the
    utterance ended.
    """

    said: str
    words: int
    wrong: int
    first_sound_ms: float
    is_premature: bool


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that was spoken over. `silent_ms`: from the first speech to the last sound that was played; `is_exact`: the
    history ends at the last word that was played.
    """

    silent_ms: float
    is_exact: bool


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of one dialogue."""

    turns: tuple[Turn, ...]
    cut: Cut


async def dialogue(phone: RealtimeVoiceClient, rng: random.Random, *, voice: str) -> Outcome:
    """Talk. Raises TimeoutError if an answer does not come."""
    turns = []

    async def ask(text: str, *, pause_ms: int = 0) -> Reply:
        speech = await utterance(text, voice=voice, pause_ms=pause_ms)
        turn, answer = await _speak_and_wait(phone, speech)
        turns.append(turn)
        return answer

    await phone.heard_out(await ask(f"my name is {drawn('name', rng)}"))
    counting = await ask(f"count to {number(rng, 60)}")
    cut = await _cut(phone, counting, rng, voice=voice)
    await phone.heard_out(await ask("what is my name"))
    pause = rng.randint(*PAUSES_MS)
    sum_ = f"what is {number(rng, 50)} | plus {number(rng, 50)}"
    await phone.heard_out(await ask(sum_, pause_ms=pause))
    return Outcome(turns=tuple(turns), cut=cut)


async def _speak_and_wait(phone: RealtimeVoiceClient, speech: Utterance) -> tuple[Turn, Reply]:
    """Say something and wait for its answer's first sound."""
    before = len(phone.replies)
    await phone.speak(speech)
    answer = await phone.answered(before + 1)
    while answer.done is not None and answer.done["reason"] == "cancelled":  # an early guess
        before += 1
        answer = await phone.answered(before + 1)
    received = [(at, frame) for at, frame in phone.frames_of("transcript", phone.spoke_at) if frame["final"]]
    words = " ".join(str(frame["text"]) for _, frame in received)
    wanted = in_digits(speech.text).split()
    assert answer.first_sound_at is not None
    return Turn(
        said=speech.text,
        words=len(wanted),
        wrong=wrong_words(wanted, words.split()),
        first_sound_ms=(answer.first_sound_at - phone.speech_ended_at) * 1000,
        is_premature=any(at < phone.speech_ended_at for at, _ in received),
    ), answer


async def _cut(phone: RealtimeVoiceClient, counting: Reply, rng: random.Random, *, voice: str) -> Cut:
    """Speak over a reply in its middle, and have it continue, or ask what was said."""
    until = rng.uniform(800, 4000)
    await phone.until(lambda: counting.played_ms >= until or counting.done is not None)
    over = await utterance(rng.choice(("what did you say last", "go on")), voice=voice)
    _, answer = await _speak_and_wait(phone, over)
    await phone.heard_out(answer)
    done = counting.done or {}
    kept = counting.text[: done.get("chars", 0)]
    history = await phone.history()
    stands = any(message["content"] == kept for message in history)
    return Cut(
        silent_ms=((counting.last_played_at or phone.spoke_at) - phone.spoke_at) * 1000,
        is_exact=stands and len(kept) == counting.heard_at(counting.played_ms),
    )


class Mode(msgspec.Struct, frozen=True):
    """Number of dialogues at once; `is_cascade`: nothing begins before all was said."""

    at_once: int
    is_cascade: bool

    @property
    def title(self) -> str:
        """The name in the table."""
        return f"{'plain cascade' if self.is_cascade else 'Midstream'}, {self.at_once} at once"


class DialogueResult(msgspec.Struct, frozen=True):
    """Observations of one dialogue; `failure` if it did not reach its end."""

    is_noisy: bool
    outcome: Outcome | None
    failure: str = ""


def main() -> int:
    """Talk, and print a table."""
    options = _options()
    plan = [(Mode(1, is_cascade=cascade), options.alone) for cascade in (False, True)]
    plan += [(Mode(count, is_cascade=False), options.dialogues) for count in options.at_once]
    found: dict[Mode, list[DialogueResult]] = {}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), SPEECH, command=SERVE) as server:
        for way, count in plan:
            seen = found[way] = asyncio.run(_talks(server.ws_url, way, count, options))
            failures = [one.failure for one in seen if one.outcome is None]
            print(
                f"{way.title}: {len(seen)} dialogues", *failures[:3], sep="\n  ", file=sys.stderr, flush=True
            )
    report = Report(details={way.title: seen for way, seen in found.items()})
    report.findings += [one for way, seen in found.items() for one in _findings(way, seen)]
    report.conclude(options.json)
    return 0


async def _talks(url: str, way: Mode, count: int, options: argparse.Namespace) -> list[DialogueResult]:
    """Hold so many dialogues, so many of them at once."""
    places = asyncio.Semaphore(way.at_once)

    async def one(place: int) -> DialogueResult:
        is_noisy, voice = place % 4 >= 2, VOICES[place % 2]
        name = f"{way.title} {place}".replace(" ", "-").replace(",", "")
        noise = NOISE if is_noisy else 0.0
        async with places:
            if place < way.at_once:
                await asyncio.sleep(random.Random(place).uniform(0, options.apart_s))
            async with telephone(
                url,
                f"talker-{place}",
                name,
                silence_ms=options.silence_ms,
                noise=noise,
                cascade=way.is_cascade,
            ) as phone:
                try:
                    return DialogueResult(is_noisy, await dialogue(phone, random.Random(place), voice=voice))
                except TimeoutError:
                    return DialogueResult(
                        is_noisy, None, json.dumps([frame for _, frame in phone.frames][-3:])
                    )

    return await asyncio.gather(*(one(place) for place in range(count)))


def _findings(way: Mode, seen: Sequence[DialogueResult]) -> Iterator[Measured]:
    whole = [one.outcome for one in seen if one.outcome is not None]
    turns, cuts = [turn for one in whole for turn in one.turns], [one.cut for one in whole]
    counts = {
        "dialogues to their end": (len(whole), len(seen)),
        "answers before the speaker had finished": (sum(turn.is_premature for turn in turns), len(turns)),
        "cuts whose history ends at the word heard": (sum(cut.is_exact for cut in cuts), len(cuts)),
    }
    for is_noisy in (False, True):
        some = [
            turn for one in seen if one.outcome and one.is_noisy is is_noisy for turn in one.outcome.turns
        ]
        label = f"words misheard, {'noise at 20 dB' if is_noisy else 'clean'}"
        counts[label] = sum(turn.wrong for turn in some), sum(turn.words for turn in some)
    for label, (count, of) in counts.items():
        yield Measured(label=f"{way.title}: {label}", value=float(count), readings={"of": float(of)})
    for label, times in {
        "end of speech to first sound": [turn.first_sound_ms for turn in turns],
        "barge-in to the reply's last sound": [cut.silent_ms for cut in cuts],
    }.items():
        late = {"p95": percentile(times, 0.95) or 0.0}
        yield Measured(
            label=f"{way.title}: {label}, p50", value=percentile(times, 0.5), unit="ms", readings=late
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dialogues", description=__doc__)
    for name, default, told in (
        ("--dialogues", 200, "for each number at once"),
        ("--alone", 16, "one at a time, each way"),
        ("--silence-ms", 500, "of a sentence that may go on"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{told} (default: %(default)d)")
    parser.add_argument("--at-once", type=int, nargs="*", default=[8], help="default: 8")
    apart = "begin within this time; 0: in the same instant (default: %(default)g)"
    parser.add_argument("--apart-s", type=float, default=10.0, help=apart)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
