"""Plays a dialogue against a real service: real sockets, a real store, and an engine whose every step is the dialogue's.

Verbs of a step, with their fields:

    open PEER     a WebSocket: `path` (/v1/ws), `headers`, `protocols`, `frame` that is sent first
    send PEER     a `frame`, or `text` as it is
    request PEER  an HTTP request: `path`, `method` (POST), `headers`, `body`, or `text` that is sent as it is
    close PEER    leave without a word
    script        what the model writes to the next request: a list of texts, {"thought": …}, {"call": …, "arguments": …}
    step          the engine makes so many tokens for each request
    die           the engine's process dies with this reason, and is back
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine.messages import Request
from engine.scripted import Call, ScriptedEngine, Thought
from engine.scripted import Step as Token
from tests.app.in_process_service import InProcessService, serving
from tests.transcripts.clients import Peer, RequestPeer, SocketPeer
from tests.transcripts.placeholders import Placeholders
from tests.transcripts.transcript import Step, Transcript

Json = Any
PATIENCE_S = 10.0
"""How long an event may take to arrive."""
QUIET_S = 0.5
"""So long without an event is the end of a step that leads to none; while recording, of each step."""
LOOK_S = 0.01
FIRST_S = 3.0
"""While recording: how long the first event or prompt of a message or a request may take."""


class Differs(AssertionError):
    """The service did not do what the transcript has."""


@dataclass
class _Playback:
    """What a dialogue works on."""

    dialogue: Transcript
    engine: ScriptedEngine
    running: InProcessService
    masks: Placeholders = field(default_factory=Placeholders)
    peers: dict[str, Peer] = field(default_factory=dict)
    prompts: int = 0
    """Requests of the engine that were compared or recorded."""

    async def act(self, act: dict[str, Json]) -> None:
        """Do what a step says."""
        act = self.masks.unmasked(act)
        match act:
            case {"open": peer}:
                url = self.running.url.replace("http", "ws") + act.get("path", "/v1/ws")
                opened = await SocketPeer.opened(url, act.get("headers", {}), act.get("protocols", []))
                self.peers[peer] = opened
                if "frame" in act:
                    await opened.send(act["frame"])
            case {"send": peer}:
                await self._socket(peer).send(act.get("frame"), text=act.get("text"))
            case {"request": peer, "path": path}:
                method, headers = act.get("method", "POST"), act.get("headers", {})
                text = act.get("text") or (json.dumps(act["body"]) if act.get("body") is not None else "")
                self.peers[peer] = RequestPeer(self.running.url, method, path, text, headers)
            case {"close": peer}:
                if not self.peers[peer].events.empty():
                    raise Differs(f"{peer} leaves, and had also received {self.waiting()}")
                await self.peers.pop(peer).close()
            case {"script": tokens}:
                self.engine.script([_token(one) for one in tokens])
            case {"step": steps}:
                self.engine.step(steps)
            case {"die": why}:
                self.engine.die(why)
            case _:
                raise ValueError(f"no verb: {act}")

    def _socket(self, peer: str) -> SocketPeer:
        found = self.peers[peer]
        assert isinstance(found, SocketPeer)
        return found

    def brief(self, event: Json) -> Json:
        """Return an event as it is recorded."""
        data = event.get("data") if isinstance(event, dict) else None
        for one in (event, data):
            if isinstance(one, dict) and one.get("type") in self.dialogue.brief:
                return {"type": one["type"], "brief": True}
        return self.masks.masked(event)

    def new_prompts(self) -> list[Json]:
        """Return the requests that reached the engine and were not returned before."""
        new = self.engine.requests[self.prompts :]
        self.prompts += len(new)
        whole = self.dialogue.whole
        return [self.masks.masked(_prompt(one) | (_wishes(one) if whole else {})) for one in new]

    async def compare(self, step: Step) -> None:
        """Wait for what the step led to when it was recorded. Raises Differs."""
        if not step.events and not step.prompts and "script" not in step.act:
            await asyncio.sleep(QUIET_S)  # so that the service has noticed it before the next step
            if surplus := self.waiting():
                raise Differs(f"{step.act}: peers received {surplus}, not nothing")
        for peer, expected in step.events:
            try:
                event = self.brief(await asyncio.wait_for(self.peers[peer].events.get(), PATIENCE_S))
            except TimeoutError:
                raise Differs(f"{step.act}: {peer} received nothing, not {expected}") from None
            if event != expected:
                raise Differs(f"{step.act}: {peer} received {event}, not {expected}")
        due = self.prompts + len(step.prompts)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(self.engine.requests) < due:  # noqa: ASYNC110 - the engine reports no arrivals
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Differs(f"{step.act}: the engine received nothing, not {step.prompts}") from None
        if (prompts := self.new_prompts()) != step.prompts:
            raise Differs(f"{step.act}: the engine received {prompts}, not {step.prompts}")

    async def record(self, step: Step) -> None:
        """Note what the step led to."""
        step.events, step.prompts = [], []
        if "script" in step.act:
            return
        loop = asyncio.get_running_loop()
        first_by = loop.time() + (0.0 if "step" in step.act or "close" in step.act else FIRST_S)
        is_quiet = False
        while not is_quiet:
            await asyncio.sleep(QUIET_S)
            events, prompts = self.waiting(), self.new_prompts()
            step.events += events
            step.prompts += prompts
            has_begun = step.events or step.prompts or loop.time() > first_by
            is_quiet = bool(has_begun) and not events and not prompts

    def waiting(self) -> list[tuple[str, Json]]:
        """Return what peers received and nobody looked at."""
        found = []
        for name, peer in self.peers.items():
            while not peer.events.empty():
                found.append((name, self.brief(peer.events.get_nowait())))
        return found


async def play(dialogue: Transcript, folder: Path, *, record: bool = False) -> None:
    """Play a dialogue over a service with its data in `folder`; or record what comes of it, in the dialogue.

    Raises Differs if the service does something else than the transcript has.
    """
    async with _stage(dialogue, folder) as stage:
        for step in dialogue.steps:
            await stage.act(step.act)
            await (stage.record(step) if record else stage.compare(step))
        await asyncio.sleep(QUIET_S)
        if surplus := stage.waiting() or stage.new_prompts():
            raise Differs(f"at the end, peers or the engine had also received {surplus}")


@asynccontextmanager
async def _stage(dialogue: Transcript, folder: Path) -> AsyncIterator[_Playback]:
    engine = ScriptedEngine(by_hand=True, **dialogue.engine)
    engine.hold_cancels = True
    async with serving(folder, engine, **dialogue.settings) as running:
        stage = _Playback(dialogue, engine, running)
        try:
            yield stage
        finally:
            for peer in stage.peers.values():
                await peer.close()


def _token(one: Json) -> Token:
    match one:
        case {"thought": text}:
            return Thought(text)
        case {"call": name}:
            return Call(name, one.get("arguments", "{}"), one.get("id", ""))
        case _:
            return str(one)


def _prompt(request: Request) -> Json:
    """Return what a request asks the model: its messages, and the tools it is shown."""
    messages: list[Json] = []
    for one in request.messages:
        message: dict[str, Json] = {one.role: one.content}
        message |= {"reasoning": one.reasoning} if one.reasoning else {}
        message |= {"calls": [[call.name, call.arguments] for call in one.calls]} if one.calls else {}
        messages.append(message)
    tools = [tool.name for tool in request.spec.shown_tools]
    return {"messages": messages} | ({"tools": tools} if tools else {})


def _wishes(request: Request) -> Json:
    """Return what else a request asks of the engine, apart from defaults: ids of calls and of results, images with places."""
    images = [[one.digest[:8], one.at, one.detail] for message in request.messages for one in message.images]
    ids = [one.call_id for message in request.messages for one in (*message.calls, message) if one.call_id]
    asked: dict[str, Json] = msgspec.json.decode(
        msgspec.json.encode({"params": request.params, "spec": request.spec})
    )
    asked |= {"images": images, "ids": ids}
    return {name: value for name, value in asked.items() if value}
