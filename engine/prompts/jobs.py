"""The process that makes prompts: the jobs it is sent, their results, and the engine's side of it.

Token ids travel as the bytes of an array.
"""

from __future__ import annotations

import logging
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import NamedTuple, Protocol

import msgspec

from engine.errors import EngineError
from engine.grammar import GrammarSource
from engine.messages import PLAIN, Message, ReplySpec
from engine.text.reply_text import WrittenReply
from engine.vision.image import Image, without

_LENGTH = struct.Struct("!i")
"""As `multiprocessing` has it, whose connection is at the other end."""

_SHORTEST_S = 0.001
"""A socket that is given no time at all does not wait, and fails in another way."""
_RINGS = 64

STARTS = 3
"""How many starts in a row may fail."""
START_TIMEOUT_S = 120.0

JOB_TIMEOUT_S = 60.0
"""A prompt that fits its window takes milliseconds; with the longest windows it takes a second."""

LOOK_TIMEOUT_S = 10.0
"""The largest image that may be sent takes a second or two. Meanwhile all prompts wait."""
LOST = "The image could not be decoded: it takes too much time or memory."

ATTEMPTS = 2
"""If the process dies, the next one gets the job once more; then it is refused. An image that hung is refused at once."""
log = logging.getLogger(__name__)


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


class PromptChannel:
    """A stream socket, and signals: at most a `RaisePriority` and a `Stop` for each job."""

    def __init__(self, end: socket.socket) -> None:
        """Take a connected stream socket."""
        self._end = end
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._signals: deque[Stop | RaisePriority] = deque()
        self._decoder: msgspec.msgpack.Decoder[FromPrompts] = msgspec.msgpack.Decoder(FromPrompts)

    def signal(self, word: Stop | RaisePriority) -> None:
        """Leave a word for the job that is being done: it is sent while its answer is waited for. Never waits."""
        self._signals.append(word)
        with suppress(BlockingIOError):  # who is to be woken has not even heard the last rings
            self._wake_sender.send(b"\0")

    def clear_signals(self) -> None:
        """Drop the words that were not sent yet: their job is done."""
        self._signals.clear()

    def send(self, message: ToPrompts, timeout_s: float) -> None:
        """Send a message. Raises TimeoutError where it is not read in time, OSError where nobody is there."""
        body = msgspec.msgpack.encode(message)
        self._end.settimeout(max(_SHORTEST_S, timeout_s))
        self._end.sendall(_LENGTH.pack(len(body)))
        self._end.sendall(body)

    def receive(self, timeout_s: float) -> FromPrompts:
        """Return the next message, and send the words meanwhile. Raises TimeoutError; EOFError or OSError where nobody is there."""
        until = time.monotonic() + timeout_s
        while True:
            while self._signals:
                self.send(self._signals.popleft(), until - time.monotonic())
            ready = wait([self._end, self._wake_receiver], max(0.0, until - time.monotonic()))
            if self._end in ready:
                (length,) = _LENGTH.unpack(self._read(_LENGTH.size, until))
                return self._decoder.decode(self._read(length, until))
            if not ready:
                raise TimeoutError
            self._wake_receiver.recv(_RINGS)

    def close(self) -> None:
        """Close it."""
        for one in (self._end, self._wake_receiver, self._wake_sender):
            one.close()

    def _read(self, count: int, until: float) -> bytearray:
        read = bytearray(count)
        left = memoryview(read)
        while left:
            self._end.settimeout(max(_SHORTEST_S, until - time.monotonic()))
            received = self._end.recv_into(left)
            if not received:
                raise EOFError
            left = left[received:]
        return read


class PromptsUnavailable(EngineError):
    """The process that makes prompts can't be started, so nothing can be served."""


class PromptWorker(Protocol):
    """Makes prompts. One long-lived thread calls `start` and `run_job`; any thread may call the others, which never wait."""

    def start(self) -> None:
        """Begin to get ready, without waiting for it."""
        ...

    def run_job(self, job: Job) -> Answer:
        """Return the answer to a job. Raises PromptsUnavailable."""
        ...

    def stop(self) -> None:
        """Give up the current job, if there is one."""
        ...

    def hurry(self) -> None:
        """Answer the current job with `Stopped` if it waits for the trial of a grammar. The trial continues."""
        ...

    def remember(self, salt: str, reply: WrittenReply) -> None:
        """Tell how a reply was spelled, before the next job."""
        ...


class _WorkerDied(Exception):
    """The process ended, or did not answer in time."""


class _WorkerTimedOut(_WorkerDied):
    """It did not answer in time."""


class PromptProcess:
    """A `PromptWorker` with a process of its own. If the process dies, its job is asked again."""

    def __init__(
        self, model: str, *, environment: Mapping[str, str], job_timeout_s: float = JOB_TIMEOUT_S
    ) -> None:
        """Take the model whose tokenizer makes the prompts. `environment`: the environment of the process."""
        self._command = [sys.executable, "-P", "-m", __package__]
        self._model = model
        self._environment = dict(environment)
        self._job_timeout_s = job_timeout_s
        self._signal_lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: PromptChannel | None = None
        self._is_ready = self._takes_signals = self._is_hurried = False
        self._notes: deque[RememberReply] = deque()

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """See `PromptWorker`. The process ends with the thread that started it."""
        ours, theirs = socket.socketpair()
        line = PromptChannel(ours)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - Python itself
                [*self._command, str(theirs.fileno()), self._model],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )
        self._line, self._is_ready = line, False

    def run_job(self, job: Job) -> Answer:
        """See `PromptWorker`."""
        for _ in range(ATTEMPTS):
            self._get_ready()
            try:
                return self._run_job(job)
            except _WorkerDied as why:
                log.warning("prompt process restarted: %s", why)
                self.end()
                if isinstance(job, DecodeImage) and isinstance(why, _WorkerTimedOut):
                    break
        return Rejected("The prompt could not be prepared." if isinstance(job, BuildPrompt) else LOST)

    def stop(self) -> None:
        """See `PromptWorker`."""
        self._signal(Stop(), is_last=True)

    def hurry(self) -> None:
        """See `PromptWorker`. It is sent once a job, since the process may not read messages for a while.

        Without a current job it holds for the next one, whose caller may not have known yet that others wait.
        """
        if not self._is_hurried:
            self._signal(RaisePriority())

    def remember(self, salt: str, reply: WrittenReply) -> None:
        """See `PromptWorker`."""
        self._notes.append(RememberReply.of(salt, reply))

    def end(self) -> None:
        """End the process, if there is one. Only the thread of `run_job` may call it."""
        process, self._process = self._process, None
        with self._signal_lock:
            line, self._line, self._takes_signals = self._line, None, False
        if line is not None:
            line.close()
        if process is not None:
            process.kill()
            process.wait()

    def _get_ready(self) -> None:
        pause_s = 0.1
        for attempt in range(STARTS):
            if self._is_ready and self._line is not None:
                return
            if attempt:
                threading.Event().wait(pause_s * 2**attempt)
            try:
                self._wait_for_ready()
            except _WorkerDied as why:
                log.warning("prompt process failed to start: %s", why)
                self.end()
        if not self._is_ready:
            raise PromptsUnavailable("The process that makes prompts can't be started.")

    def _wait_for_ready(self) -> None:
        if self._line is None:
            self.start()
        message = self._receive(START_TIMEOUT_S)
        if isinstance(message, Ready):
            self._is_ready = True
            log.info("prompts are made by process %s, in %d MB", self.pid, message.memory_bytes >> 20)

    def _run_job(self, job: Job) -> Answer:
        while self._notes:
            self._send(self._notes.popleft())
        self._send(job)
        timeout_s = self._job_timeout_s
        answer = self._receive(min(timeout_s, LOOK_TIMEOUT_S) if isinstance(job, DecodeImage) else timeout_s)
        if isinstance(job, BuildPrompt):
            self._end_of_job()
        assert not isinstance(answer, Ready)  # noqa: S101 - it comes only once, before the first job
        return answer

    def _signal(self, message: Stop | RaisePriority, *, is_last: bool = False) -> None:
        """Send a message about the current job. `is_last`: no other message about it follows."""
        with self._signal_lock:
            takes_signals = self._takes_signals
            self._takes_signals = takes_signals and not is_last
            self._is_hurried = self._is_hurried or isinstance(message, RaisePriority)
            if takes_signals and self._line is not None:
                self._line.signal(message)

    def _end_of_job(self) -> None:
        assert self._line is not None  # noqa: S101 - it was answered over one
        with self._signal_lock:
            self._takes_signals = self._is_hurried = False
            self._line.clear_signals()

    def _send(self, message: ToPrompts) -> None:
        """Send a message. The lock is not held meanwhile: the step loop may wait for it."""
        assert self._line is not None  # noqa: S101 - what is ready has one
        if isinstance(message, BuildPrompt):
            with self._signal_lock:
                message = msgspec.structs.replace(message, hurried=message.hurried or self._is_hurried)
                self._takes_signals, self._is_hurried = True, message.hurried
        try:
            self._line.send(message, self._job_timeout_s)
        except TimeoutError as error:
            raise _WorkerDied(f"it did not read within {self._job_timeout_s:g} s") from error
        except OSError as error:
            raise _WorkerDied(str(error)) from error

    def _receive(self, timeout_s: float) -> FromPrompts:
        assert self._line is not None  # noqa: S101 - a process that was started has one
        try:
            return self._line.receive(timeout_s)
        except TimeoutError as error:
            raise _WorkerTimedOut(f"it gave no answer within {timeout_s:g} s") from error
        except (EOFError, OSError) as error:
            raise _WorkerDied("it ended") from error
