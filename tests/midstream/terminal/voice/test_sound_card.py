"""The sound card of this machine, by PortAudio: what is said where there is none, and a chat through a real sound server."""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import shutil
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.scripted import ScriptedEngine
from midstream.terminal.voice.device import SoundUnavailable
from midstream.terminal.voice.sound_card import SoundCard
from tests.app.in_process_service import serving
from tests.app.voice_client import GRAMMAR, RATE, synthesize
from tests.midstream.terminal.terminals import CTRL_C, chatting

REPLY = "One, two, three, four and five."
HAS_PORTAUDIO = ctypes.util.find_library("portaudio") is not None
PROGRAMS = ("pulseaudio", "pacat", "parec", "espeak-ng")
needs_portaudio = pytest.mark.skipif(not HAS_PORTAUDIO, reason="needs libportaudio2")
needs_a_server = pytest.mark.skipif(
    not HAS_PORTAUDIO or not all(map(shutil.which, PROGRAMS)),
    reason="needs libportaudio2, libasound2-plugins, pulseaudio and espeak-ng",
)
ALSA = "pcm.!default { type pulse }\nctl.!default { type pulse }\n"


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(SoundUnavailable, match=r"pip install 'midstream\[voice-chat\]'"):
        SoundCard()


def test_a_missing_portaudio_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    with pytest.raises(SoundUnavailable, match="apt-get install libportaudio2"):
        SoundCard()


@needs_portaudio
@pytest.mark.skipif(Path("/proc/asound/cards").exists(), reason="this machine may have a sound card")
async def test_a_machine_without_a_device_is_a_sentence_and_an_exit_code(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PULSE_SERVER": f"unix:{tmp_path}/none"}
    async with chatting("127.0.0.1:1", tmp_path, "--voice", **environ) as terminal:
        assert await terminal.exit_code() == 1
        assert [row for row in terminal.rows if row] == ["midstream: This machine has no microphone."]


class SoundServer:
    """A sound server without a card: what is played into `room` is what the microphone hears."""

    def __init__(self, folder: Path) -> None:
        self.environ = {
            "PULSE_SERVER": f"unix:{folder}/socket",
            "PULSE_RUNTIME_PATH": str(folder / "runtime"),
            "XDG_RUNTIME_DIR": str(folder),
            "HOME": str(folder),
        }

    async def start(self, *command: str, **pipes: Any) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(*command, env=os.environ | self.environ, **pipes)

    async def speaks(self, text: str) -> None:
        sound = await synthesize(text)
        talker = await self.start(*_raw("pacat", "room"), stdin=subprocess.PIPE)
        await talker.communicate(sound)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[asyncio.StreamReader]:
        """What the loudspeaker plays."""
        listener = await self.start(*_raw("parec", "loudspeaker.monitor"), stdout=subprocess.PIPE)
        assert listener.stdout is not None
        try:
            yield listener.stdout
        finally:
            listener.terminate()
            await listener.communicate()


def _raw(program: str, device: str) -> tuple[str, ...]:
    return (program, f"--device={device}", "--raw", "--format=s16le", f"--rate={RATE}", "--channels=1")


@asynccontextmanager
async def sound_server(folder: Path) -> AsyncIterator[SoundServer]:
    (folder / ".asoundrc").write_text(ALSA)
    server = SoundServer(folder)
    modules = (
        f"module-native-protocol-unix auth-anonymous=1 socket={folder}/socket",
        "module-null-sink sink_name=loudspeaker",
        "module-null-sink sink_name=room",
        "module-remap-source master=room.monitor source_name=microphone",
    )
    loaded = [option for module in modules for option in ("-L", module)]
    options = ("-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--disable-shm=yes")
    daemon = await server.start("pulseaudio", *options, *loaded, stderr=subprocess.DEVNULL)
    try:
        for setting in ("set-default-sink loudspeaker", "set-default-source microphone"):
            while await (await server.start("pactl", *setting.split(), stderr=subprocess.DEVNULL)).wait():
                assert daemon.returncode is None
        yield server
    finally:
        daemon.terminate()
        await daemon.wait()


@needs_a_server
async def test_a_chat_through_portaudio_hears_and_is_heard(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    options: dict[str, Any] = {"speech": "both", "speech_grammar": GRAMMAR}
    async with (
        sound_server(home) as sounds,
        serving(tmp_path / "service", ScriptedEngine(reply=REPLY), **options) as running,
        sounds.listening() as loudspeaker,
        chatting(running.url, home, "--voice", **sounds.environ) as terminal,
    ):
        await terminal.shows("Listening")
        await sounds.speaks("Count from one to ten.")
        await terminal.shows("> count from 1 to 10\n" + REPLY)
        await terminal.shows("Listening")
        assert await loud_s(loudspeaker) > 1
        terminal.types(CTRL_C)
        assert await terminal.exit_code() == 0


async def loud_s(loudspeaker: asyncio.StreamReader) -> float:
    """How long the first second or more of sound goes on, with its pauses."""
    loud, quiet = 0.0, 0
    while not loud or quiet < RATE // 2:
        piece = array("h", await loudspeaker.readexactly(640))
        if any(abs(sample) > 100 for sample in piece):
            loud, quiet = loud + (quiet + len(piece) if loud else len(piece)), 0
        else:
            quiet += len(piece)
    return loud / RATE


@needs_a_server
async def test_a_device_that_there_is_not_is_answered_by_those_that_there_are(tmp_path: Path) -> None:
    async with (
        sound_server(tmp_path) as sounds,
        chatting("127.0.0.1:1", tmp_path, "--voice", "--microphone", "none", **sounds.environ) as terminal,
    ):
        assert await terminal.exit_code() == 1
        reported = " ".join(terminal.text.split())
        assert "There is no microphone 'none'" in reported
        assert "--microphone takes one of:" in reported
