"""The command `chat` and its options. The code that it runs is imported when it runs."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from midstream.terminal.voice.device import SoundDevice
    from midstream.terminal.voice.voice_setup import VoiceOptions


@click.command()
@click.argument("url", default="127.0.0.1:8000")
@click.option(
    "--conversation",
    default=None,
    help="Id of the conversation to continue. Default: one for all terminals; in a pipe a new one.",
)
@click.option("--client-id", default=None, help="Your client id; default: the one in your config folder.")
@click.option(
    "--key",
    envvar="CHAT_KEY",  # names with MIDSTREAM_ are the service's settings, and it refuses unknown ones
    show_envvar=True,
    help="Your API key or JWT; without one it is asked for if the service requires it.",
)
@click.option("--patience-s", default=60.0, show_default=True, help="How long to retry a lost connection.")
@click.option("--plain", is_flag=True, help="Show replies as they are written, without Markdown.")
@click.option(
    "--history/--no-history",
    default=True,
    show_default=True,
    help="Keep your lines for the Up key of later chats, in your state folder, readable by you only.",
)
@click.option("--voice", is_flag=True, help="Talk, and hear the replies, where the service has speech.")
@click.option("--push-to-talk", is_flag=True, help="With --voice: Enter begins and ends what you say.")
@click.option("--microphone", metavar="NAME", help="With --voice: a part of its name, or its number.")
@click.option("--loudspeaker", metavar="NAME", help="With --voice: likewise.")
def chat(
    url: str,
    *,
    conversation: str | None,
    client_id: str | None,
    key: str | None,
    patience_s: float,
    plain: bool,
    history: bool,
    voice: bool,
    push_to_talk: bool,
    microphone: str | None,
    loudspeaker: str | None,
) -> None:
    """Chat in the terminal; Ctrl-C stops a reply, a second one (or Ctrl-D) leaves, /help lists the commands.

    URL is that of the service's page or of its WebSocket, or HOST:PORT. In a pipe each line of the input is a message,
    the output has only the replies, and the exit status says whether all of them are complete.
    """
    from midstream.terminal import chat as terminal  # noqa: PLC0415 - the other commands need none of it

    if (push_to_talk or microphone or loudspeaker) and not voice:
        raise click.UsageError("--push-to-talk, --microphone and --loudspeaker go with --voice.")
    user = terminal.User(client_id=client_id, key=key)
    options = terminal.ChatOptions(
        conversation_id=conversation,
        patience_s=patience_s,
        keeps_history=history,
        is_plain=plain,
        voice=_voice(microphone, loudspeaker, by_key=push_to_talk) if voice else None,
    )
    sys.exit(asyncio.run(terminal.run(url, user=user, options=options)))


def _voice(microphone: str | None, loudspeaker: str | None, *, by_key: bool) -> VoiceOptions:
    from midstream.terminal.voice.voice_setup import VoiceOptions  # noqa: PLC0415 - likewise

    def finds() -> SoundDevice:
        from midstream.terminal.voice.sound_card import SoundCard  # noqa: PLC0415 - likewise

        return SoundCard(microphone, loudspeaker)

    return VoiceOptions(finds=finds, by_key=by_key)
