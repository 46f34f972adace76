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
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.bench.engine.findings import Target
from tests.bench.figures import percentile
from tests.chaos import gateway
from tests.chaos.listener import SILENCE, Frame, Listener, Reply, spoken
from tests.chaos.report import Finding, Part
from tests.chaos.server_log import unhandled
from tests.chaos.stage import Stage
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
    "MIDSTREAM_SPEECH_GRAMMAR": str(Path(__file__).parent.parent / "e2e" / "demo.jsgf"),
    "MIDSTREAM_MAX_SPEECH": "64",
    "MIDSTREAM_LOG_LEVEL": "warning",
}
ALL = Target(100.0)
NONE = Target(0.0, at_most=True)
STEPS = Target(1.0, at_most=True)
LAST_SOUND_MS = Target(30.0, at_most=True)


class How(StrEnum):
    """What ends a reply."""

    CANCEL = "cancel"
    MESSAGE = "message"
    STOP = "stop"
    SPEECH = "speech"


WAYS = (How.CANCEL, How.MESSAGE, How.CANCEL, How.STOP, How.CANCEL, How.SPEECH)
"""One after the other."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `wanted`, `kept`: the text that was heard, and that of the history; `sound_ms`: from the cut to the last sound."""

    how: How
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


def measure(stage: Stage) -> Sequence[Finding]:
    """Cut so many replies."""
    script = gateway.Script(reply=REPLY, pace_s=PACE_S)
    with serving(stage.folder, SPEECH | gateway.UNHURRIED, command=gateway.command(script)) as server:
        seen = asyncio.run(_dialogues(server.ws_url, stage))
    return tuple(_findings(seen, unhandled(server.log)))


async def _dialogues(url: str, stage: Stage) -> list[Cut | str]:
    """Hold them, some at once; of one that came to no end, why."""
    sounds = Sounds(await spoken(QUESTION), await spoken(OVER))
    draw, left, seen = stage.draw(), iter(range(stage.scale.cuts)), list[Cut | str]()
    seeds = [draw.getrandbits(64) for _ in range(stage.scale.cuts)]

    async def talk() -> None:
        for number in left:
            chance = Random(seeds[number])
            try:
                how = WAYS[number % len(WAYS)]
                seen.append(await _dialogue(url, f"cut-{number}", how, chance, sounds))
            except (TimeoutError, OSError, ConnectionClosed) as why:
                seen.append(f"{number}: {type(why).__name__} {why}")
            if len(seen) % 50 == 0:
                stage.say(f"  {len(seen)} cuts")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(talk())
    return seen


async def _dialogue(url: str, name: str, how: How, chance: Random, sounds: Sounds) -> Cut:
    """Raises TimeoutError, OSError, ConnectionClosed."""
    async with connect(url, max_queue=None) as socket:
        await socket.send(json.dumps({"type": "hello", "client_id": name, "features": ["audio"]}))
        while json.loads(await socket.recv())["type"] != "ready":
            pass
        listener = Listener(socket, name, chance)
        listening = asyncio.create_task(listener.listen())
        try:
            return await _cut(listener, how, chance, sounds)
        except TimeoutError as why:
            last = json.dumps([frame for _, frame in listener.frames[-2:]])
            raise TimeoutError(f"{how}, the last that came: {last}") from why
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _cut(listener: Listener, how: How, chance: Random, sounds: Sounds) -> Cut:
    """Ask, listen for a while, and end it. Raises TimeoutError."""
    reply = await _begun(listener, how, sounds)
    until = chance.uniform(0, LONGEST_MS)
    await listener.until(lambda: reply.played_ms >= until)
    at, heard_ms = await _ended(listener, reply, how, sounds)
    if how in (How.CANCEL, How.STOP):  # else it is cut a little later, and what is played until then counts
        await listener.send(type="played", turn_id=reply.turn_id, audio_ms=999_999)
    done = await listener.told("done", turn_id=reply.turn_id)
    kept = await _kept(listener, done)
    return Cut(
        how=how,
        wanted=REPLY[: reply.heard_at(heard_ms)],
        kept=kept,
        precision=done.get("cancel", {}).get("precision", done["reason"]),
        steps_after=done.get("cancel", {}).get("steps_after"),
        sound_ms=max(0.0, (reply.last_sound_at - at) * 1000),
    )


async def _begun(listener: Listener, how: How, sounds: Sounds) -> Reply:
    """The reply to what is said, of which sound has come. Raises TimeoutError."""
    if how is How.SPEECH:
        await listener.start(turn_detection={"silence_ms": 300, "unfinished_ms": 300})
        await listener.say(SILENCE[:16_000] + sounds.question + SILENCE)
    else:
        await listener.start(turn_detection={"type": "none"})
        await listener.say(sounds.question)
        await listener.send(type="audio.commit")
    await listener.until(lambda: bool(listener.replies) and listener.replies[-1].got_ms > 0)
    return listener.replies[-1]


async def _ended(listener: Listener, reply: Reply, how: How, sounds: Sounds) -> tuple[float, int]:
    """End a reply; gives when, and how much of it was played by then. Raises TimeoutError."""
    if how is How.SPEECH:
        since = monotonic()
        speaking = asyncio.create_task(listener.say(sounds.over + SILENCE, in_time=True))
        at, _ = await listener.arrived("speech", since=since, state="started")
        heard_ms = await listener.tell(reply)
        await speaking
        return at, heard_ms
    at, heard_ms = monotonic(), await listener.tell(reply)
    match how:
        case How.CANCEL:
            await listener.send(type="cancel", turn_id=reply.turn_id)
        case How.MESSAGE:
            asked = {"client_msg_id": "next", "content": "And now?", "params": {"max_new_tokens": 1}}
            await listener.send(type="send", on_busy="interrupt", **asked)
            at, _ = await listener.arrived("accepted", client_msg_id="next")
        case How.STOP:
            await listener.send(type="audio.stop")
    return at, heard_ms


async def _kept(listener: Listener, done: Frame) -> str:
    """What the history has of a reply. Raises TimeoutError."""
    texts = [one["content"] for one in await listener.history() if one["message_id"] == done["message_id"]]
    return str(texts[0]) if texts else "(nothing)"


def _findings(seen: Sequence[Cut | str], errors: Sequence[str]) -> Iterator[Finding]:
    cuts = [one for one in seen if isinstance(one, Cut)]
    wrong = [one for one in cuts if one.kept != one.wanted or one.precision != "word"]
    ways = Counter(one.how.value for one in cuts)
    yield Finding(
        part=Part.CUTS,
        label=f"{len(cuts)} spoken replies cut: at the word that was heard",
        value=100.0 * (len(cuts) - len(wrong)) / len(cuts) if cuts else None,
        unit="%",
        readings={name: float(count) for name, count in ways.most_common()},
        target=ALL,
        note="; ".join(
            f"{one.how}: …{one.kept[-30:]!r} for …{one.wanted[-30:]!r} ({one.precision})" for one in wrong[:3]
        ),
    )
    yield Finding(
        part=Part.CUTS,
        label="words off, most",
        value=float(max((one.words_off for one in cuts), default=0)),
        target=NONE,
    )
    yield Finding(
        part=Part.CUTS,
        label="engine steps after a cut, most",
        value=float(max((one.steps_after or 0 for one in cuts), default=0)),
        target=STEPS,
        note=f"{sum(one.steps_after is not None for one in cuts)} of them were still written",
    )
    late = [one.sound_ms for one in cuts]
    yield Finding(
        part=Part.CUTS,
        label="from a cut to the last sound, p99",
        value=percentile(late, 0.99),
        unit="ms",
        readings={"p50": percentile(late, 0.5) or 0.0, "most": max(late, default=0.0)}
        | {way: percentile([one.sound_ms for one in cuts if one.how == way], 0.99) or 0.0 for way in ways},
        target=LAST_SOUND_MS,
    )
    failures = [one for one in seen if isinstance(one, str)]
    yield Finding(
        part=Part.CUTS,
        label="dialogues without an end, errors in the log",
        value=float(len(failures) + len(errors)),
        target=NONE,
        note="; ".join([*failures[:3], *sorted(set(errors))[:3]]),
    )
