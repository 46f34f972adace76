"""One dialogue with the demo model and its observations: a name, an interrupted count that goes on or is said again, the name, a sum."""

from __future__ import annotations

import random
import re

import msgspec

from speech.pocketsphinx_decoder import in_digits
from tests.bench.dialogues.utterances import Utterance, drawn, number, utterance
from tests.bench.dialogues.voice_client import Answer, RealtimeVoiceClient
from tests.e2e.test_speech import wrong_words

PAUSES_MS = (300, 700)
"""Pauses inside an utterance."""
AGAIN = 0.5
"""The share of cuts after which the question is what was said."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One utterance and its answer. Milliseconds; None if it does not apply, or did not come.

    `first_sound_ms`: from the end of speech to the first sound of the answer; `understood_ms`, `written_ms`: to the final
    words, and to the answer's first text. `is_premature`: an answer came before the utterance ended.
    """

    said: str
    words: int
    wrong: int
    first_sound_ms: float | None
    understood_ms: float | None
    written_ms: float | None
    had_pause: bool
    is_premature: bool


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that was spoken over. `silent_ms`: from the first speech to the last sound that was played; `is_exact`: the history ends at the last word
    that was played; `goes_on`: the next answer began with the number behind it; `says_again`: it was what was heard, word by word. One
    of the two is asked for, the other is None. `steps_after`: of the engine.
    """

    silent_ms: float
    is_exact: bool
    goes_on: bool | None
    says_again: bool | None
    steps_after: int | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of one dialogue. `knows_name`: the reply repeated the recognized name."""

    turns: tuple[Turn, ...]
    cut: Cut
    knows_name: bool


async def dialogue(phone: RealtimeVoiceClient, rng: random.Random, *, voice: str) -> Outcome:
    """Talk. Raises TimeoutError if an answer does not come."""
    turns = []

    async def ask(text: str, *, pause_ms: int = 0) -> Answer:
        turn, answer = await _speak_and_wait(
            phone, await utterance(text, voice=voice, pause_ms=pause_ms), had_pause=bool(pause_ms)
        )
        turns.append(turn)
        return answer

    name = drawn("name", rng)
    await phone.heard_out(await ask(f"my name is {name}"))
    known = _name_understood(phone)
    counting = await ask(f"count to {number(rng, 60)}")
    cut = await _cut(phone, counting, rng, voice=voice)
    recalled = await ask("what is my name")
    await phone.heard_out(recalled)
    pause = rng.randint(*PAUSES_MS)
    sum_ = f"what is {number(rng, 50)} | plus {number(rng, 50)}"
    await phone.heard_out(await ask(sum_, pause_ms=pause))
    return Outcome(turns=tuple(turns), cut=cut, knows_name=known.lower() in recalled.text.lower())


async def _speak_and_wait(
    phone: RealtimeVoiceClient, speech: Utterance, *, had_pause: bool
) -> tuple[Turn, Answer]:
    """Say something and wait for its answer's first sound."""
    before = len(phone.answers)
    await phone.speak(speech)
    answer = await phone.answered(before + 1)
    while answer.done is not None and answer.done["reason"] == "cancelled":  # an early guess
        before += 1
        answer = await phone.answered(before + 1)
    received = [(at, frame) for at, frame in phone.frames_of("heard", phone.spoke_at) if frame["final"]]
    words = " ".join(str(frame["text"]) for _, frame in received)
    wanted = in_digits(speech.text).split()
    written = [at for at, frame in phone.frames_of("delta") if frame["turn_id"] == answer.turn_id]
    return Turn(
        said=speech.text,
        words=len(wanted),
        wrong=wrong_words(wanted, words.split()),
        first_sound_ms=_since(phone, answer.first_sound_at),
        understood_ms=_since(phone, received[-1][0] if received else None),
        written_ms=_since(phone, written[0] if written else None),
        had_pause=had_pause,
        is_premature=any(at < phone.speech_ended_at for at, _ in received),
    ), answer


async def _cut(phone: RealtimeVoiceClient, counting: Answer, rng: random.Random, *, voice: str) -> Cut:
    """Speak over a reply in its middle, and have it continue, or ask what was said."""
    until = rng.uniform(800, 4000)
    await phone.until(lambda: counting.played_ms >= until or counting.done is not None)
    again = rng.random() < AGAIN
    over = await utterance("what did you say last" if again else "go on", voice=voice)
    _, answer = await _speak_and_wait(phone, over, had_pause=False)
    await phone.heard_out(answer)
    done = counting.done or {}
    kept = counting.text[: done.get("chars", 0)]
    history = await phone.history()
    stands = any(message["content"] == kept for message in history)
    words = re.findall(r"\d+", kept)
    return Cut(
        silent_ms=((counting.last_played_at or phone.spoke_at) - phone.spoke_at) * 1000,
        is_exact=stands and len(kept) == counting.heard_off,
        goes_on=None if again else bool(words) and answer.text.startswith(str(int(words[-1]) + 1)),
        says_again=answer.text == f"I said: {kept}" if again else None,
        steps_after=done.get("cancel", {}).get("steps_after"),
    )


def _name_understood(phone: RealtimeVoiceClient) -> str:
    (_, frame), *_ = [one for one in phone.frames_of("heard") if one[1]["final"]]
    return str(frame["text"]).rpartition(" ")[2]


def _since(phone: RealtimeVoiceClient, at: float | None) -> float | None:
    return None if at is None else (at - phone.speech_ended_at) * 1000
