"""espeak-ng as a program of the system: its voices, and its sound as it is made.

It is only used over pipes and never imported: its license is the GPL 3.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import struct
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from speech.errors import VoiceFailed

T = TypeVar("T")

PROGRAM = "espeak-ng"
WORDS_A_MINUTE = 175
SLOWEST, FASTEST = 0.5, 2.5
"""Its speeds, as multiples of the usual one."""
PATIENCE_S = 20.0
"""How long it may make no progress; a minute of sound takes some tenths of a second."""
_PART_BYTES = 8192
_HEADER_BYTES = 44
_RATE = slice(24, 28)
_LIST_S = 10.0
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that are removed: some of them change the voice within a text."""


def voices() -> tuple[str, ...]:
    """Return the voices by their languages, such as `en-us`; none without the program."""
    if (path := shutil.which(PROGRAM)) is None:
        return ()
    try:
        listed = subprocess.run(  # noqa: S603 - a program of the system
            [path, "--voices"], capture_output=True, text=True, check=True, timeout=_LIST_S
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(sorted(set(_named(listed.stdout))))


class Speaking:
    """A text that is being spoken: 16-bit PCM with one channel, `rate` samples per second."""

    def __init__(self, output: asyncio.StreamReader, rate: int) -> None:
        self.rate = rate
        self._output = output

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield whole samples as they are made. Raises VoiceFailed."""
        rest = b""
        while part := await _patient(self._output.read(_PART_BYTES)):
            whole = rest + part
            rest = whole[len(whole) - len(whole) % 2 :]
            yield whole[: len(whole) - len(rest)]


@asynccontextmanager
async def speaking(
    text: str, *, voice: str, speed: float, has_commands: bool = False
) -> AsyncIterator[Speaking]:
    """Speak a text with one of the voices; the program ends with the context. Raises VoiceFailed.

    `has_commands`: its control characters are commands that the caller inserted.
    """
    process = await _start(voice, speed)
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    feeding = asyncio.create_task(_feed(process.stdin, text if has_commands else plain(text)))
    try:
        head = await _patient(_head(process.stdout))
        yield Speaking(process.stdout, struct.unpack("<I", head[_RATE])[0])
        if await _patient(process.wait()) != 0:
            raise VoiceFailed("The voice ended before it had spoken everything.")
    finally:
        feeding.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.gather(feeding, return_exceptions=True)
        await process.wait()


def plain(text: str) -> str:
    """Return a text without the characters that the program takes for commands."""
    return _NO_TEXT.sub(" ", text).replace("[[", "[ [")


async def _start(voice: str, speed: float) -> asyncio.subprocess.Process:
    pace = str(round(WORDS_A_MINUTE * speed))
    try:
        return await asyncio.create_subprocess_exec(
            *(PROGRAM, "-b", "1", "-v", voice, "-s", pace, "--stdin", "--stdout"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # it may quote the text
        )
    except OSError as error:
        raise VoiceFailed("The voice could not be started.") from error


async def _feed(pipe: asyncio.StreamWriter, text: str) -> None:
    with suppress(ConnectionError):
        pipe.write(text.encode())
        await pipe.drain()
    pipe.close()


async def _head(output: asyncio.StreamReader) -> bytes:
    try:
        return await output.readexactly(_HEADER_BYTES)
    except asyncio.IncompleteReadError:
        raise VoiceFailed("The voice made no sound.") from None


async def _patient(work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    except TimeoutError:
        raise VoiceFailed("The voice does not respond.") from None


def _named(listed: str) -> Iterator[str]:
    """Yield the languages in a list of voices, without those that need other programs."""
    for line in listed.splitlines()[1:]:
        columns = line.split()
        if len(columns) > 4 and not columns[4].startswith(("mb/", "!v/")):  # noqa: PLR2004 - the file's column
            yield columns[1]
