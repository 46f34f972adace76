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

from engine.fair_queue import FairQueue
from engine.messages import (
    Cancel,
    CancelCount,
    CountRequest,
    Ping,
    Pong,
    ProfileRequest,
    ProfileResult,
    Request,
    ToEngine,
)
from engine.process.channel import BlockingChannel
from engine.process.inbox import Inbox
from engine.process.request_builder import RequestBuilder
from engine.profiler import profile
from engine.prompts.jobs import (
    Answer,
    DecodeImage,
    ImageResult,
    Rejected,
    Stopped,
    characters,
    without_images,
)
from engine.prompts.worker import LOST, PromptWorker
from engine.reply_spec import ReplySpec

PromptRequest = Request | CountRequest | DecodeImage
Key = str | int
"""The key of a request is its id, that of a count its number."""

log = logging.getLogger(__name__)

IMAGE_COST = 20_000
"""The cost of decoding an image, in characters of a prompt."""
GRAMMAR_COST = 20_000
"""The least cost of compiling a grammar, in characters of a prompt."""
MAX_LOST_IMAGES = 1024
"""How many images are remembered at which the process that makes prompts died. None of them is decoded again."""
POSTPONED_COST = 4_000
"""The cost of each further attempt while a prompt's grammar is being compiled."""


class Dispatcher:
    """Dispatches the gateway's messages: cancels and pings at once, prompts one at a time, in a fair order."""

    def __init__(self, channel: BlockingChannel, inbox: Inbox, prompts: PromptWorker) -> None:
        """Take both ends, and the maker of prompts."""
        self._channel = channel
        self._inbox = inbox
        self._prompts = prompts
        self._changed = threading.Condition()
        self._waiting: FairQueue[Key, PromptRequest] = FairQueue()
        self._current: Key | None = None
        self._priority = 0
        self._plain: dict[Key, int] = {}
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._request_builder: SimpleQueue[RequestBuilder] = SimpleQueue()

    def start(self, at_end: Callable[[], None]) -> None:
        """Start both threads. `at_end` is called on one of them when the gateway is gone, or no prompt can be made any more.

        Call it before importing torch: if OpenMP binds the main thread to a core, later threads would share that core.
        """
        threading.Thread(target=self._read, args=(at_end,), name="dispatcher", daemon=True).start()
        threading.Thread(target=self._prepare, args=(at_end,), name="prompts", daemon=True).start()

    def set_request_builder(self, request_builder: RequestBuilder) -> None:
        """Begin to prepare prompts: the model is loaded."""
        self._request_builder.put(request_builder)

    def look(self, look: DecodeImage) -> None:
        """Have an image decoded, as fairly as prompts are made. Its request's cancel takes it back."""
        self._queue(look.request_id, look, look.priority)

    def _read(self, at_end: Callable[[], None]) -> None:
        try:
            for message in self._channel.receive():
                self._dispatch(message)
        except OSError as error:
            log.info("gateway disconnected: %s", error)
        except Exception:
            # the boundary of this thread: without a reader the process is useless and ends
            log.exception("reading messages of the gateway failed")
        at_end()

    def _dispatch(self, message: ToEngine) -> None:
        match message:
            case Ping():
                self._channel.send(Pong(message.number, *self._inbox.progress))
            case Cancel():
                self._inbox.cancel(message.request_id)
                self._drop(message.request_id)
            case CancelCount():
                self._drop(message.count_id)
            case Request():
                self._inbox.register(message)
                self._queue(message.request_id, message, message.priority)
            case CountRequest():
                self._queue(message.count_id, message)
            case ProfileRequest():
                threading.Thread(target=self._profile, args=(message,), name="profiler", daemon=True).start()
            case _:
                assert_never(message)

    def _profile(self, item: ProfileRequest) -> None:
        with suppress(OSError):  # as below
            self._channel.send(ProfileResult(profile(item.seconds), item.number))

    def _queue(self, key: Key, item: PromptRequest, priority: int = 0) -> None:
        # The approximate cost of the work, even if it is no text.
        grammar = 0 if isinstance(item, DecodeImage) else _grammar_cost(item.spec)
        cost = IMAGE_COST
        if not isinstance(item, DecodeImage):
            cost = 1 + characters(item.messages, item.spec) + grammar
        with self._changed:
            self._waiting.add(key, item, client=item.client, priority=priority, cost=cost)
            if not grammar:
                self._plain[key] = priority
                if priority >= self._priority:
                    self._prompts.hurry()
            self._changed.notify()

    def _drop(self, key: Key) -> None:
        """Stop making a prompt that nobody waits for."""
        with self._changed:
            self._plain.pop(key, None)
            if self._waiting.remove(key) is None and key == self._current:
                self._current = None
                self._prompts.stop()

    def _next(self) -> tuple[PromptRequest, bool]:
        """Return the next piece of work, and whether one without a grammar waits that is no less urgent."""
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: len(self._waiting) > 0)
            self._current, item = self._waiting.pop()
            self._plain.pop(self._current, None)
            self._priority = _priority_of(item)
            return item, any(priority >= self._priority for priority in self._plain.values())

    def _postpone(self, item: Request | CountRequest) -> bool:
        """Postpone a prompt whose grammar is still being compiled; return False if nobody waits for it any more."""
        with self._changed:
            if self._current is None:
                return False
            self._waiting.add(
                self._current, item, client=item.client, priority=_priority_of(item), cost=POSTPONED_COST
            )
            return True

    def _prepare(self, at_end: Callable[[], None]) -> None:
        try:
            self._prompts.start()
            request_builder = self._request_builder.get()
            while True:
                item, hurried = self._next()
                self._process(request_builder, item, hurried=hurried)
        except Exception:
            # the boundary of this thread: without prompts the process is useless and ends
            log.exception("prompt thread failed")
        at_end()

    def _process(self, request_builder: RequestBuilder, item: PromptRequest, *, hurried: bool) -> None:
        if isinstance(item, DecodeImage):
            self._inbox.put_image(ImageResult(item, self._decode_image(item)))
            return
        if isinstance(item, Request) and not self._inbox.is_wanted(item):
            return
        job = request_builder.job(item)
        messages = without_images(job.messages, self._lost) if self._lost else job.messages
        made = self._prompts.run_job(msgspec.structs.replace(job, messages=messages, hurried=hurried))
        if isinstance(made, Stopped) and self._postpone(item):
            return
        if isinstance(item, Request):
            self._inbox.deliver(item, request_builder.prepared(item, made))
            return
        with suppress(OSError):  # the reading thread notices the gateway's end, too, and handles it
            self._channel.send(request_builder.counted(item, made))

    def _decode_image(self, look: DecodeImage) -> Answer:
        """Have an image decoded, unless the process has died at it before, which a new process does not know."""
        digest = look.image.digest
        answer = Rejected(LOST) if digest in self._lost else self._prompts.run_job(look)
        if answer == Rejected(LOST):
            self._lost[digest] = None
            while len(self._lost) > MAX_LOST_IMAGES:
                self._lost.popitem(last=False)
        return answer


def _priority_of(item: PromptRequest) -> int:
    """Return the priority of work; a count has none of its own."""
    return 0 if isinstance(item, CountRequest) else item.priority


def _grammar_cost(spec: ReplySpec) -> int:
    """Return the approximate cost of a spec's grammar, in characters of a prompt."""
    if spec.format is None and not spec.shown_tools:
        return 0
    return GRAMMAR_COST + len(msgspec.json.encode(spec.format))
