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
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean

import msgspec

from speech.pocketsphinx_decoder import in_digits
from tests.bench.dialogues.voice_client import (
    SERVE,
    SPEECH,
    VOICES,
    Answer,
    RealtimeVoiceClient,
    Utterance,
    drawn,
    number,
    telephone,
    utterance,
)
from tests.bench.report import aligned, percentile, this_machine
from tests.e2e.test_speech import wrong_words
from tests.server_process import serving

NOISE = 300.0
"""Root mean square of the noise: a tenth of the voices' loudness, 20 dB below."""
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
        speech = await utterance(text, voice=voice, pause_ms=pause_ms)
        turn, answer = await _speak_and_wait(phone, speech, had_pause=bool(pause_ms))
        turns.append(turn)
        return answer

    name = drawn("name", rng)
    await phone.heard_out(await ask(f"my name is {name}"))
    (_, understood), *_ = [one for one in phone.frames_of("heard") if one[1]["final"]]
    known = str(understood["text"]).rpartition(" ")[2]
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


def _since(phone: RealtimeVoiceClient, at: float | None) -> float | None:
    return None if at is None else (at - phone.speech_ended_at) * 1000


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
    print(f"{this_machine()}; p50 / p95")
    columns = [list(_figures(seen)) for seen in found.values()]
    rows = [[name, *(column[place][1] for column in columns)] for place, (name, _) in enumerate(columns[0])]
    print(aligned([["", *(way.title for way in found)], *rows], numbers=True))
    if options.json:
        told = [
            {"way": msgspec.to_builtins(way), "seen": msgspec.to_builtins(seen)}
            for way, seen in found.items()
        ]
        options.json.write_text(json.dumps(told, indent=1))
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


def _figures(seen: Sequence[DialogueResult]) -> Iterator[tuple[str, str]]:
    whole = [one.outcome for one in seen if one.outcome is not None]
    turns, cuts = [turn for one in whole for turn in one.turns], [one.cut for one in whole]
    yield "dialogues to their end", f"{len(whole)} of {len(seen)}"
    for name, pick in _TIMES.items():
        yield name, _quantiles(map(pick, turns))
    yield "answers before all was said", _share(turn.is_premature for turn in turns)
    yield "… where a pause was inside", _share(turn.is_premature for turn in turns if turn.had_pause)
    for is_noisy in (False, True):
        outcomes = [one.outcome for one in seen if one.outcome and one.is_noisy is is_noisy]
        some = [turn for one in outcomes for turn in one.turns]
        words = sum(turn.words for turn in some)
        rate = f"{sum(turn.wrong for turn in some) / words:.1%} of {words}" if words else "-"
        yield f"words misheard, {'noise at 20 dB' if is_noisy else 'clean'}", rate
    yield "names told again", _share(one.knows_name for one in whole)
    yield "cuts whose history ends at the word heard", _share(cut.is_exact for cut in cuts)
    yield "cuts that went on at the next number", _share(cut.goes_on for cut in cuts)
    yield "cuts that were said again as heard", _share(cut.says_again for cut in cuts)
    yield "speech over a reply to its last sound, ms", _quantiles(cut.silent_ms for cut in cuts)
    yield "engine steps after a cut, most", str(max((cut.steps_after or 0 for cut in cuts), default=0))


_TIMES: dict[str, Callable[[Turn], float | None]] = {
    "end of speech to words, ms": lambda turn: turn.understood_ms,
    "end of speech to first text, ms": lambda turn: turn.written_ms,
    "end of speech to first sound, ms": lambda turn: turn.first_sound_ms,
}


def _quantiles(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    middle, late = percentile(known, 0.5), percentile(known, 0.95)
    return "-" if middle is None or late is None else f"{middle:,.0f} / {late:,.0f}"


def _share(values: Iterable[bool | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{mean(known):.1%} of {len(known)}" if known else "-"


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
