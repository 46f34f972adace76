"""A spoken chat in a real terminal, with a real service that hears and speaks; pipes stand for the sound card alone."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sys
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import midstream
from connections.protocol.errors import Close, CloseCode
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.voice_client import GRAMMAR, synthesize
from tests.midstream.terminal.terminals import CTRL_C, CTRL_D, ENTER, Terminal, chatting, client_id_of, piped
from tests.midstream.terminal.voice.piped_device import RATE

pytestmark = [
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng"),
    pytest.mark.asyncio(loop_scope="module"),
]
REPLY = "One, two, three, four, five, six and seven."
PIPE_BYTES = 4096
"""As small as pipes are: who has written his words has been heard but for an eighth of a second."""
TAIL = bytes(2 * PIPE_BYTES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    options: dict[str, Any] = {"speech": "both", "speech_grammar": GRAMMAR, "message_rate": 1000}
    folder = tmp_path_factory.mktemp("service")
    async with serving(folder, ScriptedEngine(reply=REPLY), **options) as service:
        yield service


class VoiceTerminal:
    """Somebody before a terminal and a microphone."""

    def __init__(self, terminal: Terminal, pipe: int, folder: Path) -> None:
        self.terminal = terminal
        self._pipe = pipe
        self._folder = folder

    async def speaks(self, text: str) -> None:
        """Returns once it was heard."""
        await asyncio.to_thread(self._write, await synthesize(text) + TAIL)

    def unplugs(self) -> None:
        (self._folder / "gone").touch()

    @property
    def played_ms(self) -> float:
        """How long the loudspeaker was heard, pauses included."""
        samples = array("h", (self._folder / "played").read_bytes())
        received = [at for at, sample in enumerate(samples) if sample]
        return (received[-1] - received[0] + 1) * 1000 / RATE if received else 0.0

    def _write(self, sound: bytes) -> None:
        while sound:
            sound = sound[os.write(self._pipe, sound) :]


@asynccontextmanager
async def voice_chat(running: InProcessService, home: Path, *by_key: str) -> AsyncIterator[VoiceTerminal]:
    os.mkfifo(home / "said")
    pipe = os.open(home / "said", os.O_RDWR)  # so that neither side waits for the other
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def run(address: str, *options: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "tests.midstream.terminal.voice.program", address, *options)

    try:
        async with chatting(running.url, home, str(home), *by_key, run=run) as terminal:
            yield VoiceTerminal(terminal, pipe, home)
    finally:
        os.close(pipe)


async def counts(talker: VoiceTerminal) -> None:
    """Has a reply begun that takes its time."""
    await talker.terminal.shows("Listening")
    await talker.speaks("Count from one to ten.")
    await talker.terminal.shows("One, two,")


async def history(running: InProcessService, home: Path) -> list[str]:
    client_id = client_id_of(home, running.url)
    async with midstream.connect(running.url, client_id=client_id) as client:
        return [message["content"] for message in await client.history("terminal")]


async def test_a_spoken_question_gets_its_spoken_reply_twice_in_one_chat(
    running: InProcessService, tmp_path: Path
) -> None:
    async with voice_chat(running, tmp_path) as talker:
        terminal = talker.terminal
        await terminal.shows("Listening")
        await talker.speaks("Count from one to ten.")
        await terminal.shows("> count from 1 to 10")
        await terminal.shows("> count from 1 to 10\n" + REPLY)
        await terminal.shows("Listening")
        first_ms = talker.played_ms
        await talker.speaks("What did you say last?")
        await terminal.shows("> what did you say last\n" + REPLY)
        await terminal.shows("Listening")
        assert first_ms > 1000
        assert talker.played_ms > first_ms + 1000
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0
        assert "Bye." in terminal.text
    expected = ["count from 1 to 10", REPLY, "what did you say last", REPLY]
    assert await history(running, tmp_path) == expected


async def test_a_reply_is_shown_as_it_is_spoken(running: InProcessService, tmp_path: Path) -> None:
    async with voice_chat(running, tmp_path) as talker:
        await counts(talker)
        assert "seven" not in talker.terminal.text


async def test_speech_over_a_reply_cuts_it_at_what_was_played_and_is_answered(
    running: InProcessService, tmp_path: Path
) -> None:
    async with voice_chat(running, tmp_path) as talker:
        terminal = talker.terminal
        await counts(talker)
        await talker.speaks("What did you say last?")
        await terminal.shows("> what did you say last\n" + REPLY)
        await terminal.shows("Listening")
        rows = [row for row in terminal.rows if row]
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0
    _, kept, *rest = await history(running, tmp_path)
    assert rest == ["what did you say last", REPLY]
    assert kept.startswith("One, two,")
    assert REPLY.startswith(f"{kept} ")
    assert kept in rows  # what is shown is what is kept


async def test_ctrl_c_cuts_the_reply_at_what_was_played_and_then_leaves(
    running: InProcessService, tmp_path: Path
) -> None:
    async with voice_chat(running, tmp_path) as talker:
        terminal = talker.terminal
        await counts(talker)
        terminal.types(CTRL_C)
        await terminal.shows("[stopped]")
        rows = terminal.rows
        await terminal.shows("Listening")
        played_ms = talker.played_ms
        terminal.types(CTRL_C)
        assert await terminal.exit_code() == 0
    _, kept = await history(running, tmp_path)
    assert rows[rows.index("[stopped]") - 1] == kept
    assert kept in await by_then(running, played_ms)


async def by_then(running: InProcessService, played_ms: float) -> set[str]:
    """What may be kept of a reply of which so much sound was heard: the pause behind a word is not heard."""
    how = {"input_rate": RATE, "output_rate": RATE, "turn_detection": {"type": "none"}}
    async with (
        midstream.connect(running.url, client_id="marks", features=("audio",)) as client,
        client.speak("marks", **how) as conversation,
    ):
        await conversation.send(await synthesize("Count from one to ten."))
        await conversation.commit()
        async for event in conversation:
            if isinstance(event, midstream.Sound):
                marks = event.reply.marks
                await event.reply.played(event.end_ms)
                if event.last:
                    break
    return {
        REPLY[: max((mark.off + mark.len for mark in marks if mark.end_ms <= until), default=0)]
        for until in (played_ms - 100, played_ms, played_ms + 100)
    }


async def test_enter_says_when_one_speaks_where_that_is_wanted(
    running: InProcessService, tmp_path: Path
) -> None:
    async with voice_chat(running, tmp_path, "by-key") as talker:
        terminal = talker.terminal
        await terminal.shows("Enter to talk")
        await talker.speaks("Tell me a story about a dragon.")  # nobody listens
        terminal.types(ENTER)
        await terminal.shows("Listening; Enter sends it")
        await talker.speaks("Count from one to ten.")
        terminal.types(ENTER)
        await terminal.shows("> count from 1 to 10")
        await terminal.shows("One, two,")
        terminal.types(ENTER)  # cuts the reply
        await terminal.shows("[stopped]")
        await terminal.shows("Listening; Enter sends it")
        await talker.speaks("What did you say last?")
        terminal.types(ENTER)
        await terminal.shows("> what did you say last\n" + REPLY)
        await terminal.shows("Enter to talk")
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0
    first, kept, second, _ = await history(running, tmp_path)
    assert (first, second) == ("count from 1 to 10", "what did you say last")
    assert REPLY.startswith(f"{kept} ")


async def test_who_loses_the_connection_is_told_to_talk_once_it_is_there_again(
    running: InProcessService, tmp_path: Path
) -> None:
    async with voice_chat(running, tmp_path, "by-key") as talker:
        terminal = talker.terminal
        await terminal.shows("Enter to talk")
        terminal.types(ENTER)
        await terminal.shows("Listening; Enter sends it")
        client_id = client_id_of(tmp_path, running.url)
        (connection,) = [
            one
            for one in running.service._lifecycle._manager.connections()
            if one.client.client_id == client_id
        ]
        connection.shut(Close(CloseCode.DRAIN, "The server stops; reconnect."))
        await terminal.shows("[connected again]\nEnter to talk")
        terminal.types(ENTER)
        await terminal.shows("Listening; Enter sends it")
        await talker.speaks("Count from one to ten.")
        terminal.types(ENTER)
        await terminal.shows("> count from 1 to 10\n" + REPLY)
        terminal.types(CTRL_D)
        assert await terminal.exit_code() == 0


async def test_a_device_that_goes_away_is_a_sentence(running: InProcessService, tmp_path: Path) -> None:
    async with voice_chat(running, tmp_path) as talker:
        await talker.terminal.shows("Listening")
        talker.unplugs()
        assert await talker.terminal.exit_code() == 1
        assert "midstream: The microphone is gone." in talker.terminal.rows
        assert "Traceback" not in talker.terminal.text


async def test_a_chat_that_goes_on_elsewhere_is_a_sentence(running: InProcessService, tmp_path: Path) -> None:
    async with voice_chat(running, tmp_path) as talker:
        await talker.terminal.shows("Listening")
        client_id = client_id_of(tmp_path, running.url)
        async with (
            midstream.connect(running.url, client_id=client_id, features=("audio",)) as client,
            client.speak("terminal"),
        ):
            assert await talker.terminal.exit_code() == 1
        assert "midstream: You talk in this conversation elsewhere now." in talker.terminal.rows


async def test_a_server_that_takes_no_sound_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    async with (
        serving(tmp_path / "service") as deaf,
        voice_chat(deaf, tmp_path / "home") as talker,
    ):
        assert await talker.terminal.exit_code() == 1
        assert "midstream: The server takes no sound:" in talker.terminal.text
        assert "Traceback" not in talker.terminal.text


async def test_a_server_without_a_voice_answers_in_text(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    options: dict[str, Any] = {"speech": "recognition", "speech_grammar": GRAMMAR}
    async with (
        serving(tmp_path / "service", ScriptedEngine(reply=REPLY), **options) as mute,
        voice_chat(mute, tmp_path / "home") as talker,
    ):
        await talker.terminal.shows("The service has no voice: replies are text.")
        await talker.speaks("Count from one to ten.")
        await talker.terminal.shows("> count from 1 to 10\n" + REPLY)
        assert talker.played_ms == 0


async def test_a_pipe_is_no_place_to_talk(running: InProcessService, tmp_path: Path) -> None:
    reported = await piped(running.url, tmp_path, "", "--voice")
    assert reported == (1, "", "midstream: --voice needs a terminal: here the input or the output is none.\n")


async def test_neither_sound_nor_words_are_left_on_the_disk(
    running: InProcessService, tmp_path: Path
) -> None:
    async with voice_chat(running, tmp_path) as talker:
        await talker.terminal.shows("Listening")
        await talker.speaks("Count from one to ten.")
        await talker.terminal.shows("> count from 1 to 10\n" + REPLY)
        await talker.terminal.shows("Listening")
        talker.terminal.types(CTRL_D)
        assert await talker.terminal.exit_code() == 0
    sound = await synthesize("Count from one to ten.")
    kept = [file.read_bytes() for file in (tmp_path / "midstream").rglob("*") if file.is_file()]
    assert kept
    middle = len(sound) // 2
    for trace in (b"count", b"seven", *(sound[at : at + 32] for at in range(middle, middle + 320, 32))):
        assert not any(trace in one for one in kept)
