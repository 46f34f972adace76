"""How a spoken chat begins with a server, and why it can't."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from midstream.client import Client
from midstream.errors import Refused
from midstream.spoken import SpokenConversation
from midstream.terminal.voice.device import SoundDevice, SoundUnavailable
from midstream.terminal.voice.voice_chat import HELP, VoiceChat, VoiceSurface

_OFF = "its operator has not switched speech on (`midstream serve --speech both`)."


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceOptions:
    """How one talks. `finds` gives the sound device, or raises SoundUnavailable. `by_key`: Enter says when one speaks."""

    finds: Callable[[], SoundDevice]
    by_key: bool = False


async def run_voice_chat(
    client: Client, surface: VoiceSurface, device: SoundDevice, *, conversation_id: str, by_key: bool
) -> None:
    """Talk in a conversation until the user leaves. Raises SoundUnavailable, Refused, Disconnected."""
    async with _speaking(client, device, conversation_id=conversation_id, by_key=by_key) as spoken:
        surface.note(HELP[by_key])
        if spoken.voice is None:
            surface.note("The service has no voice: replies are text.")
        await VoiceChat(client, spoken, surface, device, by_key=by_key).run()


@asynccontextmanager
async def _speaking(
    client: Client, device: SoundDevice, *, conversation_id: str, by_key: bool
) -> AsyncIterator[SpokenConversation]:
    """Speak, and hear replies where the server has a voice. Raises SoundUnavailable."""
    if "audio" not in client.ready.get("features", ()):
        raise SoundUnavailable(f"The server takes no sound: {_OFF}")
    options: dict[str, Any] = {
        "input_rate": device.input_rate,
        "turn_detection": {"type": "none" if by_key else "vad"},
    }
    async with AsyncExitStack() as stack:
        try:
            try:
                speaking = client.speak(conversation_id, output_rate=device.output_rate, **options)
                spoken = await stack.enter_async_context(speaking)
            except Refused as refused:
                if refused.code != "bad_params" or "`output`" not in str(refused):
                    raise
                speaking = client.speak(conversation_id, output_rate=None, **options)
                spoken = await stack.enter_async_context(speaking)
        except Refused as refused:
            raise SoundUnavailable(f"The server takes no sound: {refused}") from refused
        yield spoken
