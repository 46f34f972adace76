"""Two threads of the engine's process: one reads the socket, the other has prompts made. Neither waits for a step.

So pings and cancels are read while a long prompt is tokenized, and prompts are counted while a step runs. The process that
makes prompts serves waiting requests fairly.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import assert_never

import msgspec

from engine.messages import Cancel, Count, Ping, Pong, Profiled, Request, TakeProfile, ToEngine, Uncount
from engine.process.channel import BlockingChannel
from engine.process.inbox import Lanes
from engine.process.preparing import Preparer
from engine.profiler import profile
from engine.prompts.fair_queue import FairQueue
from engine.prompts.jobs import Answer, Look, Looked, Rejected, Stopped, characters, without_images
from engine.prompts.worker import LOST, PromptMaker
from engine.reply_spec import ReplySpec

Asked = Request | Count | Look
Key = str | int
"""The key of a request is its id, that of a count its number."""

log = logging.getLogger(__name__)

LOOK_COST = 20_000
"""The cost of decoding an image, in characters of a prompt."""
GRAMMAR_COST = 20_000
"""The least cost of compiling a grammar, in characters of a prompt."""
LOST_KNOWN = 1024
"""How many images are remembered at which the process that makes prompts died. None of them is decoded again."""
SET_ASIDE_COST = 4_000
"""The cost of each further attempt while a prompt's grammar is being compiled."""


class Intake:
    """Dispatches the gateway's messages: cancels and pings at once, prompts one at a time, in a fair order."""

    def __init__(self, channel: BlockingChannel, lanes: Lanes, prompts: PromptMaker) -> None:
        """Take both ends, and the maker of prompts."""
        self._channel = channel
        self._lanes = lanes
        self._prompts = prompts
        self._changed = threading.Condition()
        self._waiting: FairQueue[Key, Asked] = FairQueue()
        self._current: Key | None = None
        self._priority = 0
        self._plain: dict[Key, int] = {}
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._preparer: SimpleQueue[Preparer] = SimpleQueue()

    def start(self, at_end: Callable[[], None]) -> None:
        """Start both threads. `at_end` is called on one of them when the gateway is gone, or no prompt can be made any more.

        Call it before importing torch: if OpenMP binds the main thread to a core, later threads would share that core.
        """
        threading.Thread(target=self._read, args=(at_end,), name="intake", daemon=True).start()
        threading.Thread(target=self._prepare, args=(at_end,), name="prompts", daemon=True).start()

    def prepare_with(self, preparer: Preparer) -> None:
        """Begin to prepare prompts: the model is loaded."""
        self._preparer.put(preparer)

    def look(self, look: Look) -> None:
        """Have an image decoded, as fairly as prompts are made. Its request's cancel takes it back."""
        self._queue(look.request_id, look, look.priority)

    def _read(self, at_end: Callable[[], None]) -> None:
        try:
            for message in self._channel.receive():
                self._sort(message)
        except OSError as error:
            log.info("the gateway is gone: %s", error)
        except Exception:
            # the boundary of this thread: without a reader the process is useless and ends
            log.exception("the gateway's messages can't be read any more")
        at_end()

    def _sort(self, message: ToEngine) -> None:
        match message:
            case Ping():
                self._channel.send(Pong(message.number, *self._lanes.progress))
            case Cancel():
                self._lanes.cancel(message.request_id)
                self._give_up(message.request_id)
            case Uncount():
                self._give_up(message.count_id)
            case Request():
                self._lanes.arrive(message)
                self._queue(message.request_id, message, message.priority)
            case Count():
                self._queue(message.count_id, message)
            case TakeProfile():
                threading.Thread(target=self._profile, args=(message,), name="profiler", daemon=True).start()
            case _:
                assert_never(message)

    def _profile(self, asked: TakeProfile) -> None:
        with suppress(OSError):  # as below
            self._channel.send(Profiled(profile(asked.seconds), asked.number))

    def _queue(self, key: Key, asked: Asked, priority: int = 0) -> None:
        # The approximate cost of the work, even if it is no text.
        grammar = 0 if isinstance(asked, Look) else _grammar_cost(asked.spec)
        cost = LOOK_COST
        if not isinstance(asked, Look):
            cost = 1 + characters(asked.messages, asked.spec) + grammar
        with self._changed:
            self._waiting.add(key, asked, client=asked.client, priority=priority, cost=cost)
            if not grammar:
                self._plain[key] = priority
                if priority >= self._priority:
                    self._prompts.hurry()
            self._changed.notify()

    def _give_up(self, key: Key) -> None:
        """Stop making a prompt that nobody waits for."""
        with self._changed:
            self._plain.pop(key, None)
            if self._waiting.remove(key) is None and key == self._current:
                self._current = None
                self._prompts.stop()

    def _next(self) -> tuple[Asked, bool]:
        """Return the next piece of work, and whether one without a grammar waits that is no less urgent."""
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: len(self._waiting) > 0)
            self._current, asked = self._waiting.pop()
            self._plain.pop(self._current, None)
            self._priority = _priority_of(asked)
            return asked, any(priority >= self._priority for priority in self._plain.values())

    def _set_aside(self, asked: Request | Count) -> bool:
        """Postpone a prompt whose grammar is still being compiled; return False if nobody waits for it any more."""
        with self._changed:
            if self._current is None:
                return False
            self._waiting.add(
                self._current, asked, client=asked.client, priority=_priority_of(asked), cost=SET_ASIDE_COST
            )
            return True

    def _prepare(self, at_end: Callable[[], None]) -> None:
        try:
            self._prompts.start()
            preparer = self._preparer.get()
            while True:
                asked, hurried = self._next()
                self._do(preparer, asked, hurried=hurried)
        except Exception:
            # the boundary of this thread: without prompts the process is useless and ends
            log.exception("no prompts can be made any more")
        at_end()

    def _do(self, preparer: Preparer, asked: Asked, *, hurried: bool) -> None:
        if isinstance(asked, Look):
            self._lanes.show(Looked(asked, self._look(asked)))
            return
        if isinstance(asked, Request) and not self._lanes.wants(asked):
            return
        job = preparer.job(asked)
        messages = without_images(job.messages, self._lost) if self._lost else job.messages
        made = self._prompts.ask(msgspec.structs.replace(job, messages=messages, hurried=hurried))
        if isinstance(made, Stopped) and self._set_aside(asked):
            return
        if isinstance(asked, Request):
            self._lanes.deliver(asked, preparer.prepared(asked, made))
            return
        with suppress(OSError):  # the reading thread notices the gateway's end, too, and handles it
            self._channel.send(preparer.counted(asked, made))

    def _look(self, look: Look) -> Answer:
        """Have an image decoded, unless the process has died at it before, which a new process does not know."""
        digest = look.image.digest
        answer = Rejected(LOST) if digest in self._lost else self._prompts.ask(look)
        if answer == Rejected(LOST):
            self._lost[digest] = None
            while len(self._lost) > LOST_KNOWN:
                self._lost.popitem(last=False)
        return answer


def _priority_of(asked: Asked) -> int:
    """Return the priority of work; a count has none of its own."""
    return 0 if isinstance(asked, Count) else asked.priority


def _grammar_cost(spec: ReplySpec) -> int:
    """Return the approximate cost of a spec's grammar, in characters of a prompt."""
    if spec.format is None and not spec.shown_tools:
        return 0
    return GRAMMAR_COST + len(msgspec.json.encode(spec.format))
