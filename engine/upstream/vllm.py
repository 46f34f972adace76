"""vLLM as an `Engine`: the gateway starts it, watches it, restarts it when it dies, and asks it like any upstream."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.api import EngineState
from engine.errors import EngineUnavailable
from engine.process.supervision import RestartLedger, RestartPolicy, terminate_process
from engine.upstream.engine import UpstreamEngine
from engine.upstream.monitor import context_window
from engine.upstream.options import PRESETS, Features, Timeouts, UpstreamOptions
from engine.upstream.vllm_keeper import SIGNALLED

STALLED_S = 60.0
"""How long a vLLM that has served may answer nothing before it is killed."""


class LaunchedEngine(UpstreamEngine):
    """Serves requests by a vLLM of its own.

    Nothing runs before `run`: put it into a task group, or use `running`. Requests wait while vLLM starts, for the first
    time or again. Those that have text are lost with vLLM; those that have none are sent again.
    """

    def __init__(
        self,
        options: LaunchOptions,
        *,
        restarts: RestartPolicy | None = None,
        stalled_s: float = STALLED_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Take vLLM's options and those of its supervision. `on_change` is called in each new state, and must not raise."""
        super().__init__(upstream_of(options), on_change=on_change)
        self._options = options
        self._stalled_s = stalled_s
        self._ledger = RestartLedger(restarts or RestartPolicy(), random.random)
        self._has_served = False  # the vLLM that runs now
        self._place = ""
        self.monitor.note_away = self._life.stalled  # restarts are counted here

    async def _keep_ready(self) -> None:
        """Keep a vLLM running until it fails for good, or until this is cancelled. Leaves no process behind."""
        while not self.status.state.is_final:
            delay_s = await self._live()
            await asyncio.sleep(delay_s)

    async def _live(self) -> float:
        """Run one vLLM to its end. Returns how long to wait before the next one."""
        key = secrets.token_hex(32)
        self._life.loading("starting vLLM", 0.0)
        with reserved_port() as port:
            self._client.base_url = f"http://{HOST}:{port}/v1"
            self._client.headers["Authorization"] = f"Bearer {key}"
            try:
                process = await LaunchedProcess.start(command_of(self._options, port), key, self._on_line)
            except OSError as error:
                return self._handle_exit(ExitReason(f"vLLM could not be started: {error}.", by_itself=True))
            try:
                async with asyncio.TaskGroup() as tasks:
                    serving = tasks.create_task(self._serve_by(process))
                    delay_s = self._handle_exit(await process.wait())
                    serving.cancel()
            except asyncio.CancelledError:
                self._end_all()  # before vLLM ends, which breaks their connections
                raise
            finally:
                self._has_served = False
                await process.stop()
        return delay_s

    async def _serve_by(self, process: LaunchedProcess) -> None:
        """Wait for a starting vLLM, serve requests with it as long as it answers, then kill it."""
        while (window := await context_window(self._client, self.options)) is None:  # noqa: ASYNC110 - it has no event for us
            await asyncio.sleep(LOOK_S)
        self.options = self.monitor.options = msgspec.structs.replace(self.options, context_tokens=window)
        self._has_served = True
        self.monitor.forget()
        loop = asyncio.get_running_loop()
        async with self.monitor.running():
            answered = loop.time()
            while loop.time() - answered < self._stalled_s:
                await asyncio.sleep(LOOK_S)
                if self.status.state is EngineState.READY:
                    answered = loop.time()
        log.error("vLLM has not answered for %.0f s and is killed", self._stalled_s)
        process.kill()

    def _handle_exit(self, ending: ExitReason) -> float:
        """Note the end of a vLLM. Returns how long to wait before the next one."""
        life = self._life
        if life.facts is None and ending.by_itself:
            advice = f"It needs an environment: {MAKE}." if "No module named" in ending.words else ""
            life.not_usable(f"{ending.words} {advice}".rstrip())
            self._end_all(EngineUnavailable)
            return 0.0
        return life.crashed("vLLM", ending.words, self._ledger)

    def _on_line(self, raw: str) -> None:
        """Take a line of vLLM's for our log.

        While it serves, only the first lines of its warnings and errors are logged above `debug`. The lines after those,
        such as the text of an exception, may quote what people wrote.
        """
        line = line_of(raw)
        goes_on = line.place == self._place
        self._place = line.place or self._place
        hidden = self._has_served and (goes_on or (line.level or 0) < logging.WARNING)
        hidden = hidden or _NOISE.search(line.text) is not None
        level = logging.DEBUG if hidden or line.level is None else line.level
        log.log(level, "%s: %s", NAME, line.text)


GRACE_S = 10.0
"""How long vLLM has to end by itself."""
_KEEPERS_OWN_S = 2.0


@dataclass(eq=False)
class LaunchedProcess:
    """A running vLLM. Make one by `start`; `stop` it in any case."""

    _process: asyncio.subprocess.Process
    _lines: OutputReader
    _transport: asyncio.BaseTransport

    @classmethod
    async def start(
        cls, command: Sequence[str], key: str, on_line: Callable[[str], None], *, grace_s: float = GRACE_S
    ) -> LaunchedProcess:
        """Start a command. `on_line` is called for each line that it writes, and must not raise. Raises OSError."""
        reading, writing = os.pipe()
        loop, lines = asyncio.get_running_loop(), OutputReader(on_line)
        transport, _ = await loop.connect_read_pipe(lambda: lines, os.fdopen(reading, "rb", 0))
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(_KEEPER), str(grace_s), *command),
                stdin=asyncio.subprocess.PIPE,  # when this closes, as it does when the gateway ends, the keeper ends everything
                stdout=writing,
                stderr=writing,
                env=environment_of(os.environ, command[0], key),
                start_new_session=True,
            )
        except BaseException:
            transport.close()
            raise
        finally:
            os.close(writing)
        return cls(process, lines, transport)

    async def wait(self) -> ExitReason:
        """Wait until vLLM ends, and its last lines have been read. Returns how it ended."""
        code = await self._process.wait()
        with suppress(TimeoutError):  # if a process that left its group keeps the pipe open
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._lines.ended.wait()
        cause = cause_of(self._lines.kept)
        number = -code if code < 0 else code - SIGNALLED
        how = f"was ended by {signal.Signals(number).name}" if number > 0 else f"ended with exit code {code}"
        return ExitReason(
            f"vLLM {how}{f': {cause}' if cause else ''}".rstrip(".") + ".", by_itself=number <= 0
        )

    async def stop(self, deadline_s: float = GRACE_S + _KEEPERS_OWN_S) -> None:
        """Ask vLLM to end, and kill it after `deadline_s`. Nothing of it is left when this returns or is cancelled.

        What it writes meanwhile is not passed on, since its processes complain about each other's end.
        """
        self._lines.muted = True
        try:
            await terminate_process(self._process, deadline_s)
        finally:
            self.kill()
            self._transport.close()
        await self._process.wait()

    def kill(self) -> None:
        """Kill all processes of vLLM at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


NAME = "vllm"
"""The engine's name in logs, in messages and in the facts of the model."""
HOST = "127.0.0.1"

RESERVED = (
    *("host", "port", "uds", "api-key", "root-path", "model", "served-model-name", "config", "headless"),
    *("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "middleware", "api-server-count"),
)
"""Arguments of `vllm serve` that only the gateway sets: where it listens, who may ask, what it is called."""

SETTINGS_PREFIX = "MIDSTREAM_"
"""The prefix of environment variables that are not passed on, since some hold secrets."""
_NAME = re.compile(r"[a-z][a-z0-9]*([-.][A-Za-z0-9_]+)*")

_PATIENCE_S = 24 * 3600.0
"""How long a request waits for a vLLM that is away. The launcher ends or restarts vLLM sooner."""

MOST_CHARS = 2000
"""The longest line that is passed on; the rest of it is dropped."""

KEPT_LINES = 400
"""How many of vLLM's last lines are searched for the reason of its end."""
_RECORD = re.compile(
    r"^(?:\([^()]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?P<text>.*)$"
)
_PLACE = re.compile(r"^\[[\w.]+:\d+\] ?")
_PREFIX = re.compile(r"^\([^()]*\) ")
_CAUSE = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b: *\S|^[\w .-]+: error: ")
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|See root cause above|WorkerProc initialization failed"
)
_INVALID = re.compile(r"validation errors? for")
_NOISE = re.compile(r"Route: /|^[█▄▀▐▌ ]*$|[█▄▀]")
"""vLLM's banner and its list of routes."""
_LAST_WORDS_S = 2.0

LOOK_S = 0.5
"""Seconds between two checks whether a starting vLLM serves."""
MAKE = "`make vllm` makes an environment for it; --engine PATH names another one's Python"
log = logging.getLogger(__name__)


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM. `python`: that of its environment. `model`: vLLM's name for the model; `served_name`: the clients' name.

    `arguments`: as `checked_argument` returns them. They override `max_batch` (replies at once) and `dtype`.
    """

    python: str
    model: str
    served_name: str
    arguments: tuple[str, ...] = ()
    dtype: str = "auto"
    max_batch: int = 32


def command_of(options: LaunchOptions, port: int) -> list[str]:
    """Return the command that starts vLLM. If an argument is given twice, vLLM takes the last one."""
    defaults = {"dtype": options.dtype, "max-num-seqs": options.max_batch, "scheduling-policy": "priority"}
    return [
        *(options.python, "-P", "-m", "vllm.entrypoints.cli.main", "serve", options.model),
        *(f"--{name}={value}" for name, value in defaults.items() if _value(options, name) is None),
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *options.arguments,
        *(f"--host={HOST}", f"--port={port}", f"--served-model-name={options.served_name}"),
    ]


def environment_of(inherited: Mapping[str, str], python: str, key: str) -> dict[str, str]:
    """Return vLLM's environment: the gateway's, without its settings and its Python, but with the key for vLLM."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(SETTINGS_PREFIX) and name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    programs = python.rpartition("/")[0]
    return {
        "VLLM_NO_USAGE_STATS": "1",
        **kept,
        "PATH": f"{programs}:{kept.get('PATH', '/usr/bin:/bin')}",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "VLLM_API_KEY": key,
    }


def upstream_of(options: LaunchOptions) -> UpstreamOptions:
    """Return the upstream options for a vLLM that is started with `options`. Its port and its window are known later."""
    by_priority = _value(options, "scheduling-policy") in {None, "priority"}
    adapter = _value(options, "lora-modules")  # the first LoRA adapter, if there is one
    parsers = (_value(options, name) for name in ("enable-auto-tool-choice", "tool-call-parser"))
    return UpstreamOptions(
        name=NAME,
        url=f"http://{HOST}/v1",
        model=options.served_name if adapter is None else adapter.partition("=")[0],
        context_tokens=1,
        max_requests=int(_value(options, "max-num-seqs") or options.max_batch),
        health="../health",
        features=msgspec.convert(
            {
                **PRESETS["vllm"],
                "priority": "low_first" if by_priority else "off",
                "tools": "off" if None in parsers else "all",
            },
            Features,
        ),
        timeouts=Timeouts(unavailable_s=_PATIENCE_S),
    )


def checked_argument(given: str) -> str:
    """Return an argument for `vllm serve`, made from `name=value` or from only a `name`. Raises ValueError."""
    name, equals, value = given.removeprefix("--").partition("=")
    name = name.replace("_", "-") if "." not in name else name
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{given!r} is not an argument of vLLM: write name=value, or only a name")
    head = name.removeprefix("no-")
    if any(reserved.startswith(head) for reserved in RESERVED):  # vLLM takes abbreviated names, too
        raise ValueError(f"{name!r} is the gateway's business, not an argument for vLLM")
    if name == "max-num-seqs" and not (value.isdecimal() and int(value)):
        raise ValueError(f"{given!r} names no number of replies at once")
    if name == "lora-modules" and not value.partition("=")[2]:
        raise ValueError(f"{given!r} names no adapter: write lora-modules=NAME=PATH")
    if equals and not value:
        raise ValueError(f"{given!r} has no value")
    return f"--{name}{equals}{value}"


def _value(options: LaunchOptions, name: str) -> str | None:
    """Return the value of the last argument of this name; None if there is none."""
    values = [one.partition("=")[2] for one in options.arguments if one.partition("=")[0] == f"--{name}"]
    return values[-1] if values else None


class LogLine(NamedTuple):
    """One line that vLLM wrote. `level` is None if the line belongs to no log record, such as a progress bar or a bare traceback.

    `place`: where in vLLM's code the record was written, and when. All lines of one record have the same `place`.
    """

    level: int | None
    text: str
    place: str = ""


def line_of(raw: str) -> LogLine:
    """Read a line, and drop the marks that vLLM puts before it."""
    found = _RECORD.match(raw)
    if found is None:
        return LogLine(None, _PREFIX.sub("", raw).rstrip())
    text = _PLACE.sub("", found["text"]).rstrip()
    return LogLine(
        logging.getLevelNamesMapping()[found["level"]], text, raw[: len(raw.rstrip()) - len(text)].rstrip()
    )


def cause_of(lines: Sequence[str]) -> str | None:
    """Return the reason of vLLM's end: the last error that is no mere consequence of another; None if there is none."""
    plain = [line_of(line).text for line in lines]
    causes = [
        number for number, text in enumerate(plain) if _CAUSE.match(text) and not _CONSEQUENCE.search(text)
    ]
    if not causes:
        return None
    last = causes[-1]
    reason = plain[last]
    if _INVALID.search(reason) and last + 1 < len(plain):  # pydantic's reason is on the next line
        reason = plain[last + 1].strip().partition(" [type=")[0]
    return reason[:MOST_CHARS]


_KEEPER = Path(__file__).with_name("vllm_keeper.py")


class ExitReason(NamedTuple):
    """How vLLM ended, in words, and whether by itself: then another start would end the same way."""

    words: str
    by_itself: bool


class OutputReader(asyncio.Protocol):
    """Passes on what vLLM writes, line by line, and keeps the last lines. A progress bar ends its lines with a carriage return.

    A line is cut at `MOST_CHARS`: what came beyond them is dropped, and what comes later is another line.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""
        self.kept: deque[str] = deque(maxlen=KEPT_LINES)
        self.muted = False
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        *whole, rest = re.split(rb"[\r\n]+", self._rest + data)
        if len(rest) > MOST_CHARS:
            whole, rest = [*whole, rest], b""
        self._rest = rest
        for line in (part.decode(errors="replace")[:MOST_CHARS] for part in whole if part.strip()):
            self.kept.append(line)
            if not self.muted:
                self._on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the process says how it ended
        """See `asyncio.Protocol`."""
        self.ended.set()


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a free loopback port. Inside the block no process gets it, except one that asks to share it (SO_REUSEADDR)."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield int(holder.getsockname()[1])
