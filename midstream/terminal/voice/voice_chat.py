"""A chat that is spoken at a terminal: what is heard is shown as words, and replies are shown as they are spoken.

Ctrl-C cuts the reply at what was heard; where there is none, or it is being cut already, it leaves. So does Ctrl-D. Where the
user wants to say himself when he speaks, Enter begins and ends that, and cuts a reply first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Protocol

from midstream.client import Client
from midstream.errors import ClientError, Disconnected, Refused
from midstream.spoken import (
    END_S,
    Connection,
    Heard,
    Sound,
    Speech,
    SpokenConversation,
    SpokenEvent,
    SpokenReply,
)
from midstream.terminal.cbreak import cbreak
from midstream.terminal.reply_view import ReplySurface
from midstream.terminal.texts import end_text, is_whole, kept_up_to
from midstream.terminal.user_interface import Page
from midstream.terminal.voice.device import SoundDevice, SoundUnavailable
from midstream.terminal.voice.microphone import Microphone
from midstream.terminal.voice.player import Player


class SpokenView:
    """One reply. Nothing is below it while it grows."""

    def __init__(self, reply: SpokenReply, surface: ReplySurface) -> None:
        self.reply = reply
        self._surface = surface
        self._page: Page = surface.page("")
        self._shown = 0

    def show(self, ms: float) -> None:
        """Show what was said of it by so many milliseconds of its sound."""
        text = self.reply.spoken(ms)
        if len(text) > self._shown:
            self._shown = len(text)
            self._page.show(text)

    def settle(self) -> None:
        """What is shown stays: something else comes below it."""
        self._page.settle()

    def note(self, line: str) -> None:
        """Say something below what is shown so far."""
        self.settle()
        self._surface.note(line)

    def end(self) -> None:
        """Show it as it is kept, and how it ended."""
        if self._page.end(self.reply.text):
            self._surface.note(kept_up_to(self.reply.text))
        reason = self.reply.done["reason"] if self.reply.done else "disconnected"
        if reason == "cancelled":
            self._surface.note("[stopped]")
        elif not is_whole(reason):
            self._surface.note(end_text(reason))


Frame = dict[str, Any]
PLAYED_REPORT_MS = 100
"""So often the server is told how much was played, and where a word ends: a cut keeps what was told."""
TICK_S = 0.04
"""So often it is looked at that."""
SETTLED_S = 1.0
"""A reply in whose place another one begins has ended; so long its end may be on its way from the line to the screen."""
HELP = {
    False: "Talk; a pause sends it, and talking over a reply stops that. Without headphones: --push-to-talk.",
    True: "Enter begins what you say, and Enter sends it.",
}
_REST = {False: "Listening", True: "Enter to talk"}


class VoiceSurface(ReplySurface, Protocol):
    """Where it is shown."""

    def show_past(self, message: Frame) -> None:
        """Show a whole message."""


class VoiceChat:
    """One conversation, spoken through a device."""

    def __init__(
        self,
        client: Client,
        spoken: SpokenConversation,
        surface: VoiceSurface,
        device: SoundDevice,
        *,
        by_key: bool,
    ) -> None:
        self._client, self._spoken, self._surface, self._device = client, spoken, surface, device
        self._by_key = by_key
        self._player = Player(device.output_rate)
        self._microphone = Microphone(spoken, by_key=by_key)
        self._view: SpokenView | None = None
        self._reading: asyncio.Task[None] | None = None
        self._transcript = ""  # over a reply: it is a message if it ends that
        self._is_over_reply = False  # what is being said began over one
        self._stopping: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Talk until the user leaves. Raises SoundUnavailable, Refused, Disconnected."""
        loop = asyncio.get_running_loop()
        ended = self._ended = loop.create_future()
        self._device.start(
            lambda samples: _soon(loop, self._microphone.put, samples),
            self._player.fill,
            lambda why: _soon(loop, self._lose, why),
        )
        self._rest()
        tasks = [asyncio.create_task(one) for one in (self._take(), self._microphone.run(), self._play())]
        keys = sys.stdin.fileno()
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        loop.add_reader(keys, self._key, keys)
        try:
            with cbreak(keys):
                await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                for one in (ended, *tasks):
                    if one.done():
                        one.result()
        finally:
            loop.remove_reader(keys)
            loop.remove_signal_handler(signal.SIGINT)
            await self._leave(tasks)

    def interrupt(self) -> None:
        """Cut the reply; where there is none, or it is being cut already, leave."""
        if self._stopping is None and self._spoken.is_answering:
            self._stopping = asyncio.create_task(self._cut())
        else:
            self._end()

    def press(self) -> None:
        """Begin what is said, over a reply too, or end it."""
        if not self._by_key or not self._spoken.is_heard:
            return
        if not self._microphone.press():
            self._rest("Understanding")
            return
        if self._stopping is None and self._spoken.is_answering:
            self._stopping = asyncio.create_task(self._cut())
        self._rest()

    async def _take(self) -> None:
        """Heed what happens, until another connection speaks in the conversation. Raises SoundUnavailable, Refused, Disconnected."""
        async for event in self._spoken:
            await self._handle(event)
        raise SoundUnavailable("You talk in this conversation elsewhere now.")

    async def _handle(self, event: SpokenEvent) -> None:
        match event:
            case Speech(state):
                self._player.duck(ducked=state == "started")
                if state == "started":
                    self._transcript, self._is_over_reply = "", self._view is not None
            case Heard(text, final):
                self._show_words(text, final=final)
            case SpokenReply():
                await self._begin(event)
            case Sound(reply, samples, _, last):
                if self._view is not None and self._view.reply is reply:
                    self._player.take(samples, last=last)
            case Connection(is_lost):
                self._player.duck(ducked=False)
                if is_lost:
                    await self._drop()
                self._rest()
            case Refused():
                self._player.duck(ducked=False)  # what was being said is lost, and its end is not told
                self._show_error(f"[{event}]")

    async def _drop(self) -> None:
        """Forget what is being said, of which a part is lost."""
        self._microphone.drop()
        if self._spoken.is_heard:  # the connection is back by now, and has heard what was said since
            await self._spoken.clear()

    def _show_words(self, text: str, *, final: bool) -> None:
        """Show what is said. Over a reply it is no message yet: a short word of assent lets that go on."""
        if self._view is not None:
            self._transcript = text if final else ""
        elif not final:
            self._surface.wait(f"> {text}")
        elif text:
            self._show_message(text)
        else:
            self._rest("" if self._is_over_reply else "Nothing understood")

    def _show_message(self, text: str) -> None:
        self._surface.wait("")
        self._surface.show_past({"role": "user", "content": text})
        self._surface.wait("…")

    async def _begin(self, reply: SpokenReply) -> None:
        """Begin with a reply, or go on with the same one after a lost connection."""
        if self._view is None or self._view.reply is not reply:
            if self._reading is not None:
                await asyncio.wait((self._reading,), timeout=SETTLED_S)
            self._close_view()
            self._surface.wait("")
            self._view = SpokenView(reply, self._surface)
            self._reading = asyncio.create_task(self._read(reply))
        self._player.begin(reply.from_ms)

    async def _read(self, reply: SpokenReply) -> None:
        """Read its text to the end."""
        try:
            await reply.wait()
        except Disconnected:
            return  # whoever takes events is told the same
        except ClientError as error:
            self._show_error(f"[{error}]")
        if self._view is not None and self._view.reply is reply:
            self._close_view()
            self._rest()

    def _close_view(self) -> None:
        if self._view is None:
            return
        self._player.stop()
        view, self._view = self._view, None
        view.end()
        done = view.reply.done
        transcript, self._transcript = self._transcript, ""
        if transcript and done is not None and done["reason"] == "cancelled":
            self._show_message(transcript)

    async def _play(self) -> None:
        """Show the reply as it is played, and tell the server how much was."""
        reported_ms = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            if (view := self._view) is None:
                continue
            ms = self._player.played_ms
            view.show(ms)
            reported_ms = min(reported_ms, ms)  # another reply
            if view.reply.rate and _is_report_due(view.reply, ms, reported_ms, is_over=self._player.is_over):
                reported_ms = ms
                await view.reply.played(ms)

    async def _cut(self) -> None:
        """End the reply at what was heard of it."""
        try:
            self._transcript = ""
            if self._view is not None:
                await self._view.reply.played(self._player.stop())
            await self._client.cancel(self._spoken.conversation_id)
        except Disconnected:
            pass  # whoever takes events is told the same
        except Refused as refused:
            self._show_error(f"[{refused}]")
        finally:
            self._stopping = None

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> None:
        """Let go of all; what was heard of a reply is told before the conversation ends."""
        self._device.close()
        waiting = [one for one in (*tasks, self._reading, self._stopping) if one is not None]
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if self._view is None:
            self._surface.wait("")
            return
        self._view.settle()
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._view.reply.played(self._player.stop())

    def _rest(self, what: str = "") -> None:
        """Say what is waited for, where no reply is on the screen."""
        if self._view is None:
            is_pressed = self._by_key and self._microphone.is_open
            resting = "Listening; Enter sends it" if is_pressed else _REST[self._by_key]
            if not self._spoken.is_heard:
                resting = "Not connected"
            self._surface.wait(f"{what}. {resting}" if what else resting)

    def _show_error(self, line: str) -> None:
        """Say what could not be done."""
        if self._view is not None:
            self._view.note(line)
        else:
            self._surface.wait("")
            self._surface.fail(line)
            self._rest()

    def _key(self, keys: int) -> None:
        typed = os.read(keys, 1024)
        if not typed or b"\x04" in typed:
            self._end()
        elif b"\n" in typed or b"\r" in typed:
            self.press()

    def _lose(self, why: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(SoundUnavailable(why))

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _is_report_due(reply: SpokenReply, ms: float, reported_ms: float, *, is_over: bool) -> bool:
    """Return whether the server is told that so much was played."""
    return ms > reported_ms and (
        is_over or ms - reported_ms >= PLAYED_REPORT_MS or reply.ended_ms(ms) > reported_ms
    )


def _soon(loop: asyncio.AbstractEventLoop, do: Any, what: object) -> None:
    """Do something in the loop, from a thread of the device's; one that comes too late for that comes to nothing."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(do, what)
