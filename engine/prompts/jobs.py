"""The messages between the engine's process and the one that makes prompts. Token ids travel as the bytes of an array."""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from typing import NamedTuple

import msgspec

from engine.grammar.source import GrammarSource
from engine.messages import Message
from engine.reply_spec import PLAIN, ReplySpec
from engine.text.reply_memory import WrittenReply
from engine.vision.image import Image, without


class BuildPrompt(msgspec.Struct, frozen=True, tag="build"):
    """Asks for the prompt of messages, or with `counts` only for its length. One is asked for at a time.

    `window`: a prompt of so many tokens does not fit. `salt`: whose replies are spelled as they were written, if the
    prompt then takes `most` tokens or fewer. `shares_system`: the answer has the length of the system prompt. `spec`: the
    spec of the reply; its grammar is tried, too. `hurried`: others wait, as after a `RaisePriority`.
    """

    messages: tuple[Message, ...]
    window: int
    spec: ReplySpec = PLAIN
    counts: bool = False
    salt: str = ""
    most: int = 0
    shares_system: bool = False
    hurried: bool = False


def characters(messages: tuple[Message, ...], spec: ReplySpec) -> int:
    """Return how many characters of text a prompt is made of, which is about what it costs to make it."""
    written = sum(
        len(one.written or one.content) + len(one.reasoning) + sum(len(call.arguments) for call in one.calls)
        for one in messages
    )
    shown = sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in spec.shown_tools)
    prefix = 0 if spec.translation is None else len(spec.translation.prefix) + len(spec.translation.draft)
    return written + shown + prefix + sum(len(one) for one in spec.template.values() if isinstance(one, str))


def without_images(messages: Sequence[Message], unseen: Container[str]) -> tuple[Message, ...]:
    """Return messages with a note in place of each image whose digest is among `unseen`."""
    made: list[Message] = []
    for message in messages:
        if any(image.digest in unseen for image in message.images):
            content, images = without(message.content, message.images, unseen)
            message = msgspec.structs.replace(message, content=content, images=images)  # noqa: PLW2901
        made.append(message)
    return tuple(made)


class RememberReply(msgspec.Struct, frozen=True, tag="remember"):
    """Tells how the model spelled a reply: the `WrittenReply` of a salt."""

    salt: str
    text: str
    token_ids: bytes
    ends: bytes

    @classmethod
    def of(cls, salt: str, reply: WrittenReply) -> RememberReply:
        """Pack a reply."""
        return cls(salt, reply.text, reply.token_ids.tobytes(), reply.ends.tobytes())

    def reply(self) -> WrittenReply:
        """Unpack the reply."""
        return WrittenReply(self.text, array("i", self.token_ids), array("i", self.ends))


class DecodeImage(msgspec.Struct, frozen=True, tag="look"):
    """Asks for the pixels of a request's image, counted from 0. `client`, `priority`: as in `messages.Request`."""

    request_id: str
    number: int
    image: Image
    client: str = ""
    priority: int = 0


class DecodedTiles(msgspec.Struct, frozen=True, tag="tiles"):
    """The pixels of an image's tiles, (count, 3, side, side) bytes: no more than a model's largest grid has."""

    points: bytes
    count: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Nobody waits for the last job any more. The answer is `Stopped`, or whatever was ready before."""


class RaisePriority(msgspec.Struct, frozen=True, tag="hurry"):
    """Others wait. If the last job still tries a grammar, the answer is `Stopped`, and the job may be asked again."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The tokenizer is loaded. `memory_bytes`: the peak memory of the process so far."""

    memory_bytes: int


class BuiltPrompt(msgspec.Struct, frozen=True, tag="built"):
    """A prompt of `tokens` tokens. If it was only counted, there is nothing else. `shared_tokens`: the system prompt's.

    `opened`: words of the template at its end that belong to the reply already, as an opened reasoning does.
    `continued`: the last so many tokens are the beginning of a reply that goes on. `grammar`: what the reply is held to,
    None where it is free; left out where it was counted. `source`: the token ids of what is translated. `shown`: the
    digests of its images, and where the tokens of each one's tiles begin. `draft`: how the reply may begin.
    """

    tokens: int
    token_ids: bytes = b""
    shared_tokens: int = 0
    opened: str = ""
    continued: int = 0
    grammar: GrammarSource | None = None
    source: bytes = b""
    shown: tuple[tuple[str, tuple[int, ...]], ...] = ()
    draft: bytes = b""


class TooLong(msgspec.Struct, frozen=True, tag="too long"):
    """The prompt has at least `tokens` tokens, which is too many for the window. It may not have been read to its end."""

    tokens: int


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """There is no prompt of these messages, or no grammar of their reply. `field`: the part of the spec that is at fault."""

    why: str
    field: str = ""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The job was given up: nobody waits for it, or its grammar is still tried while others wait."""


Job = BuildPrompt | DecodeImage
Answer = BuiltPrompt | DecodedTiles | TooLong | Rejected | Stopped


class ImageResult(NamedTuple):
    """A `DecodeImage` and its answer."""

    look: DecodeImage
    answer: Answer


ToPrompts = BuildPrompt | DecodeImage | RememberReply | Stop | RaisePriority
FromPrompts = Ready | BuiltPrompt | DecodedTiles | TooLong | Rejected | Stopped
