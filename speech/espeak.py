"""espeak-ng as a program of the system: its voices, and its sound as it is made.

It is only used as a program and never imported: its license is the GPL 3.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeVar

from engine.machine import child_environment
from speech.errors import VoiceFailed
from speech.interfaces import SpokenClause

T = TypeVar("T")
PROGRAM = "espeak-ng"
WORDS_A_MINUTE = 175

SLOWEST, FASTEST = 0.5, 2.5
"""The program's slowest and fastest speed, as multiples of the usual one."""

NICENESS = 10
"""Niceness of the program, and of the thread that compresses its sound: others' replies come first."""

PATIENCE_S = 20.0
"""How long the program may make no progress; a minute of sound takes it some tenths of a second."""

_PART_BYTES = 8192
_HEADER_BYTES = 44
_RATE = slice(24, 28)
_LIST_S = 10.0

_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that are removed: some of them change the voice within a text."""


def voices() -> tuple[str, ...]:
    """Return the voices' names, languages such as `en-us`; none without the program."""
    if (path := shutil.which(PROGRAM)) is None:
        return ()
    try:
        listed = subprocess.run(  # noqa: S603 - a program of the system
            [path, "--voices"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIST_S,
            env=child_environment(),
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(sorted(set(_named(listed.stdout))))


class Espeak:
    """The voices of espeak-ng. Each text has a process of its own."""

    name = PROGRAM
    speeds = (SLOWEST, FASTEST)

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of the voices, the default first."""
        self._names = tuple(names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the voices, the default first."""
        return self._names

    @property
    def examples(self) -> str:
        """The English voices, for an error."""
        english = ", ".join(voice for voice in self._names if voice.startswith("en-"))
        return f"{english}, and of other languages de, fr and so on"

    def speaking(
        self,
        text: str,
        *,
        voice: str,
        speed: float,
        owner: str,  # noqa: ARG002 - no text waits for another
    ) -> AbstractAsyncContextManager[EspeakStream]:
        """Speak a text while the context lasts. Raises VoiceFailed."""
        return speaking(plain(text), voice=voice, speed=speed)

    async def speak(self, clause: str, *, voice: str) -> SpokenClause:
        """Return a clause as sound, with the times of its words; cancelling the caller ends the work. Raises VoiceFailed."""
        from speech.alignment import clause_of, texts_of, words_of  # noqa: PLC0415 - numpy, which the gateway has no other use for

        words = words_of(clause)
        texts = texts_of([plain(clause[word.off : word.end]) for word in words])
        failed: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                renderings = [tasks.create_task(_spoken(text, voice)) for text in texts]
        except* VoiceFailed as voices:
            failed += voices.exceptions
        if failed:
            raise VoiceFailed(str(failed[0]))
        return await asyncio.to_thread(clause_of, words, [task.result() for task in renderings])


async def _spoken(text: str, voice: str) -> tuple[int, bytes]:
    async with speaking(text, voice=voice, speed=1.0) as stream:
        return stream.rate, b"".join([part async for part in stream.parts()])


class EspeakStream:
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
async def speaking(text: str, *, voice: str, speed: float) -> AsyncIterator[EspeakStream]:
    """Speak a text with one of the voices; the program ends with the context. Raises VoiceFailed.

    The text's control characters are commands: see `plain`.
    """
    async with _program(voice, speed) as (process, output, pipe):
        feeding = asyncio.create_task(_feed(pipe, text))
        try:
            head = await _patient(_head(output))
            yield EspeakStream(output, struct.unpack("<I", head[_RATE])[0])
            if await _patient(_exit_code(process)) != 0:
                raise VoiceFailed("The voice ended before it had spoken everything.")
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)


def plain(text: str) -> str:
    """Return a text without the characters that the program takes for commands."""
    return _NO_TEXT.sub(" ", text).replace("[[", "[ [")


@asynccontextmanager
async def _program(
    voice: str, speed: float
) -> AsyncIterator[tuple[subprocess.Popen[bytes], asyncio.StreamReader, asyncio.StreamWriter]]:
    """Run the program, connected by a socket; it ends with the context. Raises VoiceFailed."""
    try:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                process = _spawned(voice, speed, theirs.fileno())
            except OSError:
                writer.transport.abort()
                raise
    except OSError as error:
        raise VoiceFailed("The voice could not be started.") from error
    try:
        yield process, reader, writer
    finally:
        writer.transport.abort()
        process.kill()
        await _exit_code(process)


async def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Return the program's exit status once it ends, which is soon. This takes no thread if it has ended already."""
    code = process.poll()
    return await asyncio.to_thread(process.wait) if code is None else code


def _spawned(voice: str, speed: float, connection: int) -> subprocess.Popen[bytes]:
    """Start the program at one end of a connection. Raises OSError.

    With the whole path and without `close_fds`, this is `posix_spawn`, which takes some 0.3 ms. A fork, as by the event loop,
    copies this process's page tables first: all sockets would wait for 10 ms or more.
    """
    pace = str(round(WORDS_A_MINUTE * speed))
    process = subprocess.Popen(  # noqa: S603 - a program of the system
        [shutil.which(PROGRAM) or PROGRAM, "-b", "1", "-v", voice, "-s", pace, "--stdin", "--stdout"],
        stdin=connection,
        stdout=connection,
        stderr=subprocess.DEVNULL,  # it may quote the text
        env=child_environment(),
        close_fds=False,  # Python's own descriptors are not inherited (PEP 446)
    )
    with suppress(PermissionError):  # the server may have a lower priority already
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    return process


async def _feed(pipe: asyncio.StreamWriter, text: str) -> None:
    with suppress(ConnectionError):
        pipe.write(text.encode())
        await pipe.drain()
        pipe.write_eof()


async def _head(output: asyncio.StreamReader) -> bytes:
    try:
        return await output.readexactly(_HEADER_BYTES)
    except asyncio.IncompleteReadError:
        raise VoiceFailed("The voice produced no audio.") from None


async def _patient(work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    except TimeoutError:
        raise VoiceFailed("The voice does not respond.") from None
    except ConnectionError:
        raise VoiceFailed("The voice ended at once.") from None


def _named(listed: str) -> Iterator[str]:
    """Yield the languages of listed voices, except voices that need other programs."""
    for line in listed.splitlines()[1:]:
        columns = line.split()
        if len(columns) > 4 and not columns[4].startswith(("mb/", "!v/")):  # noqa: PLR2004 - the file's column
            yield columns[1]
