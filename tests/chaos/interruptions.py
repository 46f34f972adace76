"""Spoken replies of a real service that are cut at random: the history ends at the word that was heard, and nothing comes behind it.

Many dialogues at once. Each says something, hears some of the reply by a player that is not exact, and ends it: by `cancel`,
by another message, by `audio.stop`, or by speaking over it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from random import Random
from time import monotonic

import msgspec
from websockets.exceptions import ConnectionClosed

from tests.app.voice_client import SILENCE, synthesize
from tests.bench.report import Measured, Target, at_most, none, percentile
from tests.chaos import gateway
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.chaos.voice_client import Frame, InexactVoiceClient, Reply, connected
from tests.server_process import serving

REPLY = (
    "Once upon a time there was a lighthouse on a small island, far away from the coast. Every evening, when the sun "
    "went down, an old man climbed 142 steps and lit the lamp. He counted them: one, two, three, and so on; he had no "
    "books, no radio and no clock. One night a ship came out of the fog, and nobody on board knew where they were. "
    "They saw the light. They turned, slowly, and were saved! In the morning the captain rowed over, thanked him, and "
    "gave him a clock as a present. Since then he knows what time it is, and still counts the steps."
)
PACE_S = 0.15
"""A token takes half as long as it takes to say it: most replies are cut while they are written."""
LONGEST_MS = 6_000
AT_ONCE = 8
QUESTION, OVER = "Count from one to ten.", "What did you say last?"
SPEECH = {
    "MIDSTREAM_SPEECH": "both",
    "MIDSTREAM_SPEECH_RECOGNIZER": str(Path(__file__).parent.parent / "e2e" / "demo.jsgf"),
    "MIDSTREAM_LOG_LEVEL": "warning",
}
STEPS = at_most(1.0)
LAST_SOUND_MS = at_most(30.0)


class CutOptions(StrEnum):
    """What ends a reply."""

    CANCEL = "cancel"
    MESSAGE = "message"
    STOP = "stop"
    SPEECH = "speech"


WAYS = (
    *(CutOptions.CANCEL, CutOptions.MESSAGE),
    *(CutOptions.CANCEL, CutOptions.STOP),
    *(CutOptions.CANCEL, CutOptions.SPEECH),
)
"""One after the other."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `wanted`, `kept`: the text that was heard, and that of the history; `sound_ms`: from the cut to the last sound."""

    how: CutOptions
    wanted: str
    kept: str
    precision: str
    steps_after: int | None
    sound_ms: float

    @property
    def words_off(self) -> int:
        """How many words the history has too many, or too few."""
        return abs(len(self.kept.split()) - len(self.wanted.split()))


class Sounds(msgspec.Struct, frozen=True):
    """What is said."""

    question: bytes
    over: bytes


def measure(scenario: Scenario) -> Sequence[Measured]:
    """Cut so many replies."""
    script = gateway.Script(reply=REPLY, pace_s=PACE_S, fixed={"max_speech": 64})
    with serving(scenario.folder, SPEECH | gateway.UNHURRIED, command=gateway.command(script)) as server:
        seen = asyncio.run(_dialogues(server.ws_url, scenario))
    return tuple(_findings(seen, unhandled(server.log)))


async def _dialogues(url: str, scenario: Scenario) -> list[Cut | str]:
    """Hold them, some at once; of one that came to no end, why."""
    sounds = Sounds(await synthesize(QUESTION), await synthesize(OVER))
    draw, left, seen = scenario.draw(), iter(range(scenario.scale.cuts)), list[Cut | str]()
    seeds = [draw.getrandbits(64) for _ in range(scenario.scale.cuts)]

    async def talk() -> None:
        for number in left:
            chance = Random(seeds[number])
            try:
                how = WAYS[number % len(WAYS)]
                seen.append(await _dialogue(url, f"cut-{number}", how, chance, sounds))
            except (TimeoutError, OSError, ConnectionClosed) as why:
                seen.append(f"{number}: {type(why).__name__} {why}")
            if len(seen) % 50 == 0:
                scenario.log(f"  {len(seen)} cuts")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(talk())
    return seen


async def _dialogue(url: str, name: str, how: CutOptions, chance: Random, sounds: Sounds) -> Cut:
    """Raises TimeoutError, OSError, ConnectionClosed."""
    async with connected(url, name, lambda socket: InexactVoiceClient(socket, name, chance)) as voice_client:
        try:
            return await _cut(voice_client, how, chance, sounds)
        except TimeoutError as why:
            last = json.dumps([frame for _, frame in voice_client.frames[-2:]])
            raise TimeoutError(f"{how}, the last that came: {last}") from why


async def _cut(voice_client: InexactVoiceClient, how: CutOptions, chance: Random, sounds: Sounds) -> Cut:
    """Ask, listen for a while, and end it. Raises TimeoutError."""
    reply = await _begun(voice_client, how, sounds)
    until = chance.uniform(0, LONGEST_MS)
    await voice_client.until(lambda: reply.played_ms >= until)
    at, heard_ms = await _ended(voice_client, reply, how, sounds)
    if how in (
        CutOptions.CANCEL,
        CutOptions.STOP,
    ):  # else it is cut later, and what is played until then counts
        await voice_client.send(type="played", turn_id=reply.turn_id, audio_ms=999_999)
    done = await voice_client.received("done", turn_id=reply.turn_id)
    kept = await _kept(voice_client, done)
    return Cut(
        how=how,
        wanted=REPLY[: reply.heard_at(heard_ms)],
        kept=kept,
        precision=done.get("cancel", {}).get("precision", done["reason"]),
        steps_after=done.get("cancel", {}).get("steps_after"),
        sound_ms=max(0.0, (reply.last_sound_at - at) * 1000),
    )


async def _begun(voice_client: InexactVoiceClient, how: CutOptions, sounds: Sounds) -> Reply:
    """The reply to what is said, of which sound has come. Raises TimeoutError."""
    if how is CutOptions.SPEECH:
        await voice_client.start(grace_s=0, turn_detection={"silence_ms": 300, "unfinished_ms": 300})
        await voice_client.send_audio(SILENCE[:16_000] + sounds.question + SILENCE)
    else:
        await voice_client.start(grace_s=0, turn_detection={"type": "none"})
        await voice_client.send_audio(sounds.question)
        await voice_client.send(type="audio.commit")
    await voice_client.until(lambda: bool(voice_client.replies) and voice_client.replies[-1].got_ms > 0)
    return voice_client.replies[-1]


async def _ended(
    voice_client: InexactVoiceClient, reply: Reply, how: CutOptions, sounds: Sounds
) -> tuple[float, int]:
    """End a reply; gives when, and how much of it was played by then. Raises TimeoutError."""
    if how is CutOptions.SPEECH:
        since = monotonic()
        speaking = asyncio.create_task(voice_client.send_audio(sounds.over + SILENCE, in_time=True))
        at, _ = await voice_client.arrived("speech", since=since, state="started")
        heard_ms = await voice_client.stop_playing(reply)
        await speaking
        return at, heard_ms
    at, heard_ms = monotonic(), await voice_client.stop_playing(reply)
    match how:
        case CutOptions.CANCEL:
            await voice_client.send(type="cancel", turn_id=reply.turn_id)
        case CutOptions.MESSAGE:
            requested = {"client_msg_id": "next", "content": "And now?", "params": {"max_new_tokens": 1}}
            await voice_client.send(type="send", on_busy="interrupt", **requested)
            at, _ = await voice_client.arrived("accepted", client_msg_id="next")
        case CutOptions.STOP:
            await voice_client.send(type="audio.stop")
    return at, heard_ms


async def _kept(voice_client: InexactVoiceClient, done: Frame) -> str:
    """What the history has of a reply. Raises TimeoutError."""
    history = await voice_client.history()
    texts = [one["content"] for one in history if one["message_id"] == done["message_id"]]
    return str(texts[0]) if texts else "(nothing)"


def _findings(seen: Sequence[Cut | str], errors: Sequence[str]) -> Iterator[Measured]:
    cuts = [one for one in seen if isinstance(one, Cut)]
    wrong = [one for one in cuts if one.kept != one.wanted or one.precision != "word"]
    ways = Counter(one.how.value for one in cuts)
    exact = 100.0 * (len(cuts) - len(wrong)) / len(cuts) if cuts else None
    examples = (
        f"{one.how}: …{one.kept[-30:]!r} for …{one.wanted[-30:]!r} ({one.precision})" for one in wrong[:3]
    )
    yield Measured(
        label=f"{len(cuts)} spoken replies cut: at the word that was heard",
        value=exact,
        unit="%",
        readings={name: float(count) for name, count in ways.most_common()},
        target=Target(100.0),
        note="; ".join(examples),
    )
    words = float(max((one.words_off for one in cuts), default=0))
    yield Measured(label="words off, most", value=words, target=at_most(0))
    steps = float(max((one.steps_after or 0 for one in cuts), default=0))
    written = f"{sum(one.steps_after is not None for one in cuts)} of them were still written"
    yield Measured(label="engine steps after a cut, most", value=steps, target=STEPS, note=written)
    late = [one.sound_ms for one in cuts]
    readings = {"p50": percentile(late, 0.5) or 0.0, "most": max(late, default=0.0)}
    readings |= {
        way: percentile([one.sound_ms for one in cuts if one.how == way], 0.99) or 0.0 for way in ways
    }
    p99, label = percentile(late, 0.99), "from a cut to the last sound, p99"
    yield Measured(label=label, value=p99, unit="ms", readings=readings, target=LAST_SOUND_MS)
    failures = [one for one in seen if isinstance(one, str)]
    yield none("dialogues without an end, errors in the log", [*failures, *sorted(set(errors))])
