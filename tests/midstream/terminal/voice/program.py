"""`midstream chat --voice` with a device of pipes: the address, the folder of the pipes, and whether Enter says when one speaks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from midstream.terminal import chat
from midstream.terminal.voice.voice_setup import VoiceOptions
from tests.midstream.terminal.voice.piped_device import PipedDevice

if __name__ == "__main__":
    address, folder, *by_key = sys.argv[1:]
    voice = VoiceOptions(finds=lambda: PipedDevice(Path(folder)), by_key=bool(by_key))
    sys.exit(asyncio.run(chat.run(address, options=chat.ChatOptions(voice=voice))))
