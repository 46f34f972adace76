"""The process that makes prompts: the jobs it is sent, their results, and the engine's side of it."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from engine.errors import EngineError
from engine.grammar import GrammarSource
from engine.messages import PLAIN, BlockingChannel, Message, ReplySpec
from engine.vision.image import Image, without

_SHORTEST_S = 0.001
"""The shortest timeout: a socket with none at all does not wait, and fails in another way."""

STARTS = 3
"""How many starts in a row may fail."""
START_TIMEOUT_S = 120.0

JOB_TIMEOUT_S = 60.0
"""A prompt that fits its window takes milliseconds; with the longest windows it takes a second."""

LOOK_TIMEOUT_S = 10.0
"""The largest image that may be sent takes a second or two, while all prompts wait."""
LOST = "The image could not be decoded: it takes too much time or memory."

ATTEMPTS = 2
"""How many processes may die on a job before it is refused. An image that takes too long is refused at once."""
log = logging.getLogger(__name__)


class BuildPrompt(msgspec.Struct, frozen=True, tag="build"):
    """Asks for the prompt of messages, or with `counts` only for its length. Jobs run one at a time.

    `window`: the first length, in tokens, that does not fit. `shares_system`: the answer has the system prompt's length.
    `spec`: the spec of the reply; its grammar is tried, too.
    """

    messages: tuple[Message, ...]
    window: int
    spec: ReplySpec = PLAIN
    counts: bool = False
    shares_system: bool = False


def characters(messages: tuple[Message, ...], spec: ReplySpec) -> int:
    """Return how many characters of text a prompt is made of, which is about what it costs to make it."""
    written = sum(
        len(one.content) + len(one.reasoning) + sum(len(call.arguments) for call in one.calls)
        for one in messages
    )
    shown = sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in spec.shown_tools)
    prefix = 0 if spec.translation is None else len(spec.translation.prefix)
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


class DecodeImage(msgspec.Struct, frozen=True, tag="look"):
    """Asks for the pixels of a request's image `number`, from 0. `client`, `priority`: as in `messages.Request`."""

    request_id: str
    number: int
    image: Image
    client: str = ""
    priority: int = 0


class DecodedTiles(msgspec.Struct, frozen=True, tag="tiles"):
    """The pixels of an image's tiles, (count, 3, side, side) bytes: no more than a model's largest grid has."""

    points: bytes
    count: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The tokenizer is loaded. `memory_bytes`: the peak memory of the process so far."""

    memory_bytes: int


class Prompt(msgspec.Struct, frozen=True):
    """A prompt. `opened`: the template's words at its end that already belong to the reply, such as a mark of reasoning.

    `continued`: how many tokens at its end are the beginning of a reply that is continued. `source`: the tokens to
    translate, if any. `shown`: the digest of each image, and where the tokens of its tiles begin.
    """

    token_ids: list[int]
    opened: str = ""
    continued: int = 0
    source: list[int] = []
    shown: tuple[tuple[str, tuple[int, ...]], ...] = ()


class BuiltPrompt(msgspec.Struct, frozen=True, tag="built"):
    """A prompt of `tokens` tokens. There is nothing else if it was only counted, or is too long for the window.

    A prompt that is too long may not have been read to its end: then it has at least these tokens.

    `shared_tokens`: those of the system prompt. `grammar`: constrains the reply; None if it is free.
    """

    tokens: int
    prompt: Prompt | None = None
    shared_tokens: int = 0
    grammar: GrammarSource | None = None


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The prompt or its reply's grammar can't be made, or the image can't be decoded. `field`: the part of the spec at fault."""

    why: str
    field: str = ""


class Postponed(msgspec.Struct, frozen=True, tag="postponed"):
    """There is no prompt yet, since its grammar is still being tried: ask again."""


Job = BuildPrompt | DecodeImage
Answer = BuiltPrompt | DecodedTiles | Rejected | Postponed


class ImageResult(NamedTuple):
    """A `DecodeImage` and its answer."""

    look: DecodeImage
    answer: Answer


FromPrompts = Ready | Answer


class PromptsUnavailable(EngineError):
    """The process that makes prompts can't be started, so nothing can be served."""


class _WorkerDied(Exception):
    """The process ended, or did not answer in time."""


class _WorkerTimedOut(_WorkerDied):
    """The process did not answer in time."""


class PromptProcess:
    """Has prompts made by a process of its own. If the process dies, the next one gets its job.

    One long-lived thread calls all methods.
    """

    def __init__(
        self, model: str, *, environment: Mapping[str, str], job_timeout_s: float = JOB_TIMEOUT_S
    ) -> None:
        """Take the model whose tokenizer makes the prompts. `environment`: the environment of the process."""
        self._command = [sys.executable, "-P", "-m", __package__]
        self._model = model
        self._environment = dict(environment)
        self._job_timeout_s = job_timeout_s
        self._running: _Running | None = None
        self._is_ready = False

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none runs."""
        return None if self._running is None else self._running.process.pid

    def start(self) -> None:
        """Start the process, without waiting until it is ready. It ends with the thread that started it."""
        line, its_line = socket.socketpair()
        with its_line:
            process = subprocess.Popen(  # noqa: S603 - Python itself
                [*self._command, str(its_line.fileno()), self._model],
                pass_fds=[its_line.fileno()],
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )
        decoder: msgspec.msgpack.Decoder[FromPrompts] = msgspec.msgpack.Decoder(FromPrompts)
        channel = BlockingChannel(line, decoder)
        self._running = _Running(process, line, channel, channel.receive())
        self._is_ready = False

    def run_job(self, job: Job) -> Answer:
        """Return the answer to a job. Raises PromptsUnavailable."""
        for _ in range(ATTEMPTS):
            try:
                return self._run_job(self._get_ready(), job)
            except _WorkerDied as why:
                log.warning("prompt process restarted: %s", why)
                self.end()
                if isinstance(job, DecodeImage) and isinstance(why, _WorkerTimedOut):
                    break
        return Rejected("The prompt could not be prepared." if isinstance(job, BuildPrompt) else LOST)

    def end(self) -> None:
        """End the process, if there is one."""
        running, self._running = self._running, None
        if running is not None:
            running.line.close()
            running.process.kill()
            running.process.wait()

    def _get_ready(self, attempt: int = 1) -> _Running:
        """Return the running process, or a new one. Raises PromptsUnavailable."""
        if self._running is None:
            self.start()
        assert self._running is not None  # noqa: S101 - it was started
        if self._is_ready:
            return self._running
        try:
            ready = self._running.answer(START_TIMEOUT_S)
        except _WorkerDied as why:
            self.end()
            if attempt == STARTS:
                raise PromptsUnavailable(f"The process that makes prompts can't be started: {why}.") from why
            time.sleep(0.1 * 2**attempt)
            return self._get_ready(attempt + 1)
        assert isinstance(ready, Ready)  # noqa: S101 - its first message
        self._is_ready = True
        log.info("prompts are made by process %s, in %d MB", self.pid, ready.memory_bytes >> 20)
        return self._running

    def _run_job(self, running: _Running, job: Job) -> Answer:
        timeout_s = self._job_timeout_s
        running.send(job, timeout_s)
        answer = running.answer(min(timeout_s, LOOK_TIMEOUT_S) if isinstance(job, DecodeImage) else timeout_s)
        assert not isinstance(answer, Ready)  # noqa: S101 - it comes only once, before the first job
        return answer


class _Running(NamedTuple):
    """A process that was started, and the other end of its socket."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    channel: BlockingChannel[FromPrompts]
    answers: Iterator[FromPrompts]

    def send(self, job: Job, timeout_s: float) -> None:
        """Send a job. Raises _WorkerDied."""
        self.line.settimeout(max(_SHORTEST_S, timeout_s))
        try:
            self.channel.send(job)
        except TimeoutError as error:
            raise _WorkerDied(f"it did not read within {timeout_s:g} s") from error
        except OSError as error:
            raise _WorkerDied(str(error)) from error

    def answer(self, timeout_s: float) -> FromPrompts:
        """Return the next message. Raises _WorkerDied."""
        self.line.settimeout(max(_SHORTEST_S, timeout_s))
        try:
            return next(self.answers)
        except TimeoutError as error:
            raise _WorkerTimedOut(f"it gave no answer within {timeout_s:g} s") from error
        except (StopIteration, OSError) as error:
            raise _WorkerDied("it ended") from error
