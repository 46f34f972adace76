"""Spoken replies of a real service that are cut at random: the history ends at the word that was heard, and no step follows.

Many dialogues at once. Each says something, plays some of the reply in random steps, and ends it: by `cancel`, by another
message, by `audio.stop`, or by speaking over it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.app.in_process_service import Frame, Socket
from tests.app.voice_client import GRAMMAR, SILENCE, VoiceClient, synthesize
from tests.bench.report import Measured, Target, at_most, none
from tests.chaos import gateway
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
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
PATIENCE_S = 60.0
QUESTION, OVER = "Count from one to ten.", "What did you say last?"
SPEECH = {
    "MIDSTREAM_SPEECH": "both",
    "MIDSTREAM_SPEECH_RECOGNIZER": GRAMMAR,
    "MIDSTREAM_LOG_LEVEL": "warning",
}
WAYS = ("cancel", "message", "cancel", "stop", "cancel", "speech")
"""What ends a reply, one after the other."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `wanted`, `kept`: the text that was heard, and that of the history."""

    how: str
    wanted: str
    kept: str
    precision: str
    steps_after: int | None


def measure(scenario: Scenario) -> Sequence[Measured]:
    """Cut so many replies."""
    script = gateway.Script(reply=REPLY, pace_s=PACE_S, fixed={"max_speech": 64})
    with serving(scenario.folder, SPEECH | gateway.UNHURRIED, command=gateway.command(script)) as server:
        seen = asyncio.run(_dialogues(server.ws_url, scenario))
    return tuple(findings(seen, unhandled(server.log)))


async def _dialogues(url: str, scenario: Scenario) -> list[Cut | str]:
    """Hold them, some at once; of one that came to no end, why."""
    sounds = (await synthesize(QUESTION), await synthesize(OVER))
    draw, seen = scenario.draw(), list[Cut | str]()
    left = iter([(number, Random(draw.getrandbits(64))) for number in range(scenario.scale.cuts)])

    async def talk() -> None:
        for number, chance in left:
            try:
                async with asyncio.timeout(PATIENCE_S):
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


async def _dialogue(url: str, name: str, how: str, chance: Random, sounds: tuple[bytes, bytes]) -> Cut:
    """Ask, listen for a while, and end the reply. Raises TimeoutError, OSError, ConnectionClosed."""
    async with connect(url, max_queue=None) as opened:
        socket, about = Socket(opened), {"conversation_id": name}
        await socket.send(type="hello", client_id=name, features=["audio"])
        await socket.next("ready")
        client, (question, over) = VoiceClient(socket, name), sounds
        silence_ms = {"silence_ms": 300, "unfinished_ms": 300}
        await client.start(grace_s=0, turn_detection=silence_ms if how == "speech" else {"type": "none"})
        if how == "speech":
            await client.send_audio(SILENCE[:16_000] + question + SILENCE)
        else:
            await client.send_audio(question)
            await socket.send(type="audio.commit", **about)
        await client.until("marks")
        heard_ms, turn_id = chance.randint(0, LONGEST_MS), client.turn
        await client.play(heard_ms, chance)
        heard_ms = min(heard_ms, client.received_ms)
        message: dict[str, Any] = {"client_msg_id": "next", "content": "?", "params": {"max_new_tokens": 1}}
        match how:
            case "cancel":
                await socket.send(type="cancel", turn_id=turn_id, **about)
                await client.played(999_999)  # too late
            case "stop":
                await socket.send(type="audio.stop", **about)
            case "message":
                await socket.send(type="send", on_busy="interrupt", **message, **about)
            case _:
                await client.send_audio(over + SILENCE)
        wanted = REPLY[: max((end for end, at in _ends(client) if at <= heard_ms), default=0)]
        done = await client.until("done", turn_id=turn_id)
        cancel = done.get("cancel", {})
        return Cut(
            how=how,
            wanted=wanted,
            kept=await _kept(client, done),
            precision=cancel.get("precision", done["reason"]),
            steps_after=cancel.get("steps_after"),
        )


def _ends(client: VoiceClient) -> Iterator[tuple[int, int]]:
    """Yield where each word ends, in the text and in the sound."""
    return ((mark["off"] + mark["len"], mark["end_ms"]) for mark in client.marks)


async def _kept(client: VoiceClient, done: Frame) -> str:
    """Return what the history has of a reply."""
    await client.socket.send(type="history", conversation_id=client.place)
    messages = (await client.until("history"))["messages"]
    return next((one["content"] for one in messages if one["message_id"] == done["message_id"]), "(nothing)")


def findings(seen: Sequence[Cut | str], errors: Sequence[str]) -> Iterator[Measured]:
    """Yield the figures of the cuts, and of dialogues that failed, of which the reason is known."""
    cuts = [one for one in seen if isinstance(one, Cut)]
    wrong = [one for one in cuts if one.kept != one.wanted or one.precision != "word"]
    examples = [f"{one.how}: …{one.kept[-30:]!r} for …{one.wanted[-30:]!r}" for one in wrong[:3]]
    yield Measured(
        label=f"{len(cuts)} spoken replies cut: at the word that was heard",
        value=100.0 * (len(cuts) - len(wrong)) / len(cuts) if cuts else None,
        unit="%",
        readings={name: float(count) for name, count in Counter(one.how for one in cuts).most_common()},
        target=Target(100.0),
        note="; ".join(examples),
    )
    steps = float(max((one.steps_after or 0 for one in cuts), default=0))
    written = f"{sum(one.steps_after is not None for one in cuts)} of them were still written"
    yield Measured(label="engine steps after a cut, most", value=steps, target=at_most(1.0), note=written)
    failures = [one for one in seen if isinstance(one, str)]
    yield none("dialogues without an end, errors in the log", [*failures, *sorted(set(errors))])
