"""Spoken dialogues with the demo model, in real time, through a real service: `python -m tests.bench.dialogues`.

Each dialogue has a name, an interrupted count that goes on or is said again, the name, and a sum. espeak-ng says everything, in
two voices, half of it with noise at 20 dB. First one dialogue at a time, compared with a plain cascade of the same parts (nothing
begins before the client reports the end of speech); then eight at once, the first of whom begin at random moments, or in the same
instant. Last, what sounds and words over a spoken reply do: the service counts aloud, and after a second and a half its listener
coughs, hums, says "mhm", "stop" or a sentence. Times of the end of a count are in samples that the microphone had sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import msgspec

from speech.pocketsphinx_decoder import in_digits
from tests.bench.dialogues.voice_client import (
    SERVE,
    SPEECH,
    VOICES,
    Reply,
    Utterance,
    VoiceClient,
    names,
    telephone,
    utterance,
)
from tests.bench.report import Measured, Report, none, percentile, run_lab, say
from tests.e2e.test_speech import wrong_words
from tests.server_process import serving
from tests.speech.noise_samples import NOISES, noise
from tests.speech.numbers_in_words import in_words

NOISE, QUIET = 300.0, 30.0
"""Root mean square of the noise: a tenth of the voices' loudness, 20 dB below; and a tenth of that, below sounds over a reply."""
PAUSES_MS = (300, 700)
"""Pauses inside an utterance."""
COUNT = "count to fifty nine"
WORDS = {
    "backchannel": ("yes", "mhm", "okay"),
    "stop": ("stop", "stop it", "please stop", "stop please", "wait", "hold on"),
    "sentence": (
        "what did you say last", "tell me a story about a dragon", "what is seven plus eight", "what is my name",
        "my favourite colour is blue", "what time is it",
    ),
}  # fmt: skip
"""What is said over a reply, by its kind."""
INTO_MS = 1500
"""How much of the count is heard before."""
SILENCE_S = 2.5
"""How long is waited for what a sound does."""
LATEST_MS = 1000
"""A "stop" or a sentence ends the count within so much speech."""


class Mode(msgspec.Struct, frozen=True):
    """So many dialogues, some of them `at_once`. `is_cascade`: nothing begins before all was said; `apart_s`: they begin
    within this time.
    """

    title: str
    dialogues: int
    at_once: int = 1
    is_cascade: bool = False
    apart_s: float = 10.0


MODES = {
    "alone": (Mode("Midstream", 8), Mode("plain cascade", 8, is_cascade=True)),
    "eight": (Mode("Midstream, 8 at once", 200, at_once=8),),
    "together": (Mode("Midstream, 8 in the same instant", 200, at_once=8, apart_s=0),),
}
INTERRUPTIONS = "interruptions"


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


class DialogueResult(msgspec.Struct, frozen=True):
    """Observations of one dialogue, without a cut if it did not reach its end; `failure` has the last frames then."""

    is_noisy: bool
    turns: Sequence[Turn] = ()
    cut: Cut | None = None
    failure: str = ""


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


async def dialogue(phone: VoiceClient, rng: random.Random, *, voice: str) -> tuple[list[Turn], Cut]:
    """Talk. Raises TimeoutError if an answer does not come."""
    turns = []

    async def ask(text: str, *, pause_ms: int = 0) -> Reply:
        speech = await utterance(text, voice=voice, pause_ms=pause_ms)
        turn, answer = await _speak_and_wait(phone, speech)
        turns.append(turn)
        return answer

    await phone.heard_out(await ask(f"my name is {rng.choice(names())}"))
    counting = await ask(f"count to {in_words(rng.randint(1, 60))}")
    cut = await _cut(phone, counting, rng, voice=voice)
    await phone.heard_out(await ask("what is my name"))
    pause = rng.randint(*PAUSES_MS)
    sum_ = f"what is {in_words(rng.randint(1, 50))} | plus {in_words(rng.randint(1, 50))}"
    await phone.heard_out(await ask(sum_, pause_ms=pause))
    return turns, cut


async def _speak_and_wait(phone: VoiceClient, speech: Utterance) -> tuple[Turn, Reply]:
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


async def _cut(phone: VoiceClient, counting: Reply, rng: random.Random, *, voice: str) -> Cut:
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


async def _dialogues(url: str, mode: Mode, count: int) -> list[DialogueResult]:
    """Hold so many dialogues."""
    places = asyncio.Semaphore(mode.at_once)

    async def one(place: int) -> DialogueResult:
        is_noisy, voice = place % 4 >= 2, VOICES[place % 2]
        name = f"{mode.title} {place}".replace(" ", "-").replace(",", "")
        async with places:
            if place < mode.at_once:
                await asyncio.sleep(random.Random(place).uniform(0, mode.apart_s))
            async with telephone(
                url, f"talker-{place}", name, noise=NOISE if is_noisy else 0.0, cascade=mode.is_cascade
            ) as phone:
                try:
                    return DialogueResult(is_noisy, *await dialogue(phone, random.Random(place), voice=voice))
                except TimeoutError:
                    last = json.dumps([frame for _, frame in phone.frames][-3:])
                    return DialogueResult(is_noisy, failure=last)

    return await asyncio.gather(*(one(place) for place in range(count)))


def _dialogue_findings(title: str, seen: Sequence[DialogueResult]) -> Iterator[Measured]:
    cuts = [one.cut for one in seen if one.cut is not None]
    turns = [turn for one in seen for turn in one.turns]
    counts = {
        "dialogues to their end": (len(cuts), len(seen)),
        "answers before the speaker had finished": (sum(turn.is_premature for turn in turns), len(turns)),
        "cuts whose history ends at the word heard": (sum(cut.is_exact for cut in cuts), len(cuts)),
    }
    for is_noisy in (False, True):
        some = [turn for one in seen if one.is_noisy is is_noisy for turn in one.turns]
        label = f"words misheard, {'noise at 20 dB' if is_noisy else 'clean'}"
        counts[label] = sum(turn.wrong for turn in some), sum(turn.words for turn in some)
    for label, (count, of) in counts.items():
        yield Measured(label=f"{title}: {label}", value=float(count), readings={"of": float(of)})
    for label, times in {
        "end of speech to first sound": [turn.first_sound_ms for turn in turns],
        "barge-in to the reply's last sound": [cut.silent_ms for cut in cuts],
    }.items():
        late = {"p95": percentile(times, 0.95) or 0.0}
        yield Measured(label=f"{title}: {label}, p50", value=percentile(times, 0.5), unit="ms", readings=late)


async def _sounds() -> list[tuple[str, Utterance]]:
    """Return the sounds over a reply, each with its kind."""
    sounds = [("noise", Utterance(name, noise(name), len(noise(name)))) for name in NOISES]
    for kind, texts in WORDS.items():
        for text, voice in product(texts, VOICES):
            speech = await utterance(text, voice=voice)
            sounds.append((kind, msgspec.structs.replace(speech, text=f"“{text}”, {voice}")))
    return sounds


async def _interrupt(url: str, conversation: str, kind: str, speech: Utterance) -> InterruptionResult:
    """Make one sound over a count."""
    async with telephone(url, conversation, conversation, noise=QUIET) as phone:
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


def _interruption_findings(seen: Sequence[InterruptionResult]) -> Iterator[Measured]:
    for kind in dict.fromkeys(one.kind for one in seen):
        some = [one for one in seen if one.kind == kind]
        wrong = [f"{one.sound}: {one.cut_ms} {one.message}" for one in some if not one.is_right]
        cuts = [one.cut_ms for one in some if one.cut_ms is not None]
        measured = none(f"{kind}: of {len(some)} sounds, those that did something else", wrong)
        readings = {"cut after ms, least": min(cuts), "most": max(cuts)} if cuts else {}
        yield msgspec.structs.replace(measured, readings=readings)


async def measure(options: argparse.Namespace) -> Report:
    """Talk and interrupt, through one service."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), SPEECH, command=SERVE) as server:
        for mode in (mode for part, modes in MODES.items() if part in options.only for mode in modes):
            count = mode.at_once if options.quick else mode.dialogues
            seen = report.details[mode.title] = await _dialogues(server.ws_url, mode, count)
            failures = [one.failure for one in seen if one.failure]
            say(f"{mode.title}: {len(seen)} dialogues", *failures[:3], sep="\n  ")
            report.findings += _dialogue_findings(mode.title, seen)
        if INTERRUPTIONS in options.only:
            sounds = (await _sounds())[:: 20 if options.quick else 1]
            made = [
                await _interrupt(server.ws_url, f"interruption-{place}", *sound)
                for place, sound in enumerate(sounds)
            ]
            report.details[INTERRUPTIONS] = made
            report.findings += _interruption_findings(made)
    return report


def main(options: argparse.Namespace) -> Report:
    """Measure."""
    return asyncio.run(measure(options))


if __name__ == "__main__":
    sys.exit(
        run_lab("tests.bench.dialogues", __doc__, main, file="dialogues.json", parts=(*MODES, INTERRUPTIONS))
    )
