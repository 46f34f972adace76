"""The engine's side of the process that makes prompts: starts it, asks it, and starts it again if it dies or hangs."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import msgspec

from engine.errors import EngineError
from engine.prompts.jobs import (
    Answer,
    Build,
    FromPrompts,
    Hurry,
    Job,
    Look,
    Ready,
    Rejected,
    Remember,
    Stop,
    ToPrompts,
)
from engine.prompts.line import Line
from engine.text.reply_memory import WrittenReply

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


class PromptsUnavailable(EngineError):
    """The process that makes prompts can't be started, so nothing can be served."""


class PromptMaker(Protocol):
    """Makes prompts. One long-lived thread calls `start` and `ask`; any thread may call the others, which never wait."""

    def start(self) -> None:
        """Begin to get ready, without waiting for it."""
        ...

    def ask(self, job: Job) -> Answer:
        """Return the answer to a job. Raises PromptsUnavailable."""
        ...

    def stop(self) -> None:
        """Give up the current job, if there is one."""
        ...

    def hurry(self) -> None:
        """Answer the current job with `Stopped` if it waits for the trial of a grammar. The trial goes on."""
        ...

    def remember(self, salt: str, reply: WrittenReply) -> None:
        """Tell how a reply was spelled, before the next job."""
        ...


class _Dead(Exception):
    """The process ended, or did not answer in time."""


class _Hangs(_Dead):
    """It did not answer in time."""


class PromptProcess:
    """A `PromptMaker` with a process of its own. If the process dies, its job is asked again."""

    def __init__(
        self, model: str, *, environment: Mapping[str, str], job_timeout_s: float = JOB_TIMEOUT_S
    ) -> None:
        """Take the model whose tokenizer makes the prompts. `environment`: the environment of the process."""
        self._command = [sys.executable, "-P", "-m", __package__]
        self._model = model
        self._environment = dict(environment)
        self._job_timeout_s = job_timeout_s
        self._telling = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Line | None = None
        self._is_ready = self._is_asked = self._is_hurried = False
        self._notes: deque[Remember] = deque()

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """See `PromptMaker`. The process ends with the thread that started it."""
        ours, theirs = socket.socketpair()
        line = Line(ours)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - Python itself
                [*self._command, str(theirs.fileno()), self._model],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )
        self._line, self._is_ready = line, False

    def ask(self, job: Job) -> Answer:
        """See `PromptMaker`."""
        for _ in range(ATTEMPTS):
            self._get_ready()
            try:
                return self._ask(job)
            except _Dead as why:
                log.warning("the process that makes prompts is started again: %s", why)
                self.end()
                if isinstance(job, Look) and isinstance(why, _Hangs):
                    break
        return Rejected("The prompt could not be prepared." if isinstance(job, Build) else LOST)

    def stop(self) -> None:
        """See `PromptMaker`."""
        self._say(Stop(), is_last=True)

    def hurry(self) -> None:
        """See `PromptMaker`. It is sent once a job, since the process may not read messages for a while.

        Without a current job it holds for the next one, whose caller may not have known yet that others wait.
        """
        if not self._is_hurried:
            self._say(Hurry())

    def remember(self, salt: str, reply: WrittenReply) -> None:
        """See `PromptMaker`."""
        self._notes.append(Remember.of(salt, reply))

    def end(self) -> None:
        """End the process, if there is one. Only the thread of `ask` may call it."""
        process, self._process = self._process, None
        with self._telling:
            line, self._line, self._is_asked = self._line, None, False
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
            except _Dead as why:
                log.warning("the process that makes prompts could not be started: %s", why)
                self.end()
        if not self._is_ready:
            raise PromptsUnavailable("The process that makes prompts can't be started.")

    def _wait_for_ready(self) -> None:
        if self._line is None:
            self.start()
        told = self._receive(START_TIMEOUT_S)
        if isinstance(told, Ready):
            self._is_ready = True
            log.info("prompts are made by process %s, in %d MB", self.pid, told.memory_bytes >> 20)

    def _ask(self, job: Job) -> Answer:
        while self._notes:
            self._send(self._notes.popleft())
        self._send(job)
        timeout_s = self._job_timeout_s
        answer = self._receive(min(timeout_s, LOOK_TIMEOUT_S) if isinstance(job, Look) else timeout_s)
        if isinstance(job, Build):
            self._end_of_job()
        assert not isinstance(answer, Ready)  # noqa: S101 - it comes only once, before the first job
        return answer

    def _say(self, told: Stop | Hurry, *, is_last: bool = False) -> None:
        """Send a message about the current job. `is_last`: no other message about it follows."""
        with self._telling:
            is_asked = self._is_asked
            self._is_asked = is_asked and not is_last
            self._is_hurried = self._is_hurried or isinstance(told, Hurry)
            if is_asked and self._line is not None:
                self._line.say(told)

    def _end_of_job(self) -> None:
        assert self._line is not None  # noqa: S101 - it was answered over one
        with self._telling:
            self._is_asked = self._is_hurried = False
            self._line.hush()

    def _send(self, told: ToPrompts) -> None:
        """Send a message. The lock is not held meanwhile: the step loop may wait for it."""
        assert self._line is not None  # noqa: S101 - what is ready has one
        if isinstance(told, Build):
            with self._telling:
                told = msgspec.structs.replace(told, hurried=told.hurried or self._is_hurried)
                self._is_asked, self._is_hurried = True, told.hurried
        try:
            self._line.send(told, self._job_timeout_s)
        except TimeoutError as error:
            raise _Dead(f"it did not read within {self._job_timeout_s:g} s") from error
        except OSError as error:
            raise _Dead(str(error)) from error

    def _receive(self, timeout_s: float) -> FromPrompts:
        assert self._line is not None  # noqa: S101 - a process that was started has one
        try:
            return self._line.receive(timeout_s)
        except TimeoutError as error:
            raise _Hangs(f"it gave no answer within {timeout_s:g} s") from error
        except (EOFError, OSError) as error:
            raise _Dead("it ended") from error
