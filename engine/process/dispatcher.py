"""The threads of the engine's process: one reads the socket, one has prompts made, and the main one runs steps.

Neither of the first two waits for a step. So pings and cancels are read while a long prompt is tokenized, and prompts are
counted while a step runs. The process that makes prompts serves waiting requests fairly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, assert_never

import msgspec

from engine.fair_queue import FairQueue
from engine.messages import (
    BlockingChannel,
    Cancel,
    CancelCount,
    CountRequest,
    CountResult,
    EngineStatistics,
    ErrorCode,
    Finished,
    FinishReason,
    Output,
    Params,
    Ping,
    Pong,
    Request,
    StepOutputs,
    ToEngine,
)
from engine.prompts.jobs import (
    LOST,
    Answer,
    BuildPrompt,
    BuiltPrompt,
    DecodeImage,
    ImageResult,
    Postponed,
    PromptProcess,
    Rejected,
    characters,
    without_images,
)
from engine.text.parser import ReplyFactory, ReplyPrefix
from engine.text.reply_text import (
    DuplicateRequest,
    PreparedRequest,
    resolve_sampling,
)
from engine.vision.image import PlacedImage

if TYPE_CHECKING:  # it imports torch
    from engine.scheduling.core import EngineCore

log = logging.getLogger(__name__)


class StepLoop:
    """Takes work, runs a step, sends its outputs, repeatedly."""

    def __init__(
        self,
        core: EngineCore,
        inbox: Inbox,
        send: Callable[[StepOutputs | EngineStatistics], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[EngineStatistics], EngineStatistics] = lambda counted: counted,
    ) -> None:
        """Take the core, the source of its work and the receiver of its outputs. `clock` returns seconds.

        `used` adds the process's use of the machine to the counters.
        """
        self._core = core
        self._inbox = inbox
        self._send = send
        self._clock = clock
        self._used = used
        self._last_statistics = EngineStatistics()
        self._sent_at = clock()

    def run_once(self) -> None:
        """Wait for work if idle, run one step, send its outputs. Raises OSError once the gateway is gone."""
        work = self._inbox.take(0.0 if self._core.busy else self._idle_s())
        outputs: list[Output] = list(work.ends)
        self._hand_over(work)
        if self._core.busy:
            outputs += self._core.step()
        if outputs:
            self._send(StepOutputs(tuple(outputs), self._core.made_at))
        if self._idle_s() == 0.0:
            self._last_statistics = self._statistics()
            self._sent_at = self._clock()
            self._send(self._used(self._last_statistics))

    def _hand_over(self, work: Work) -> None:
        for request in work.prepared:
            try:
                self._core.submit(request)
            except DuplicateRequest:
                log.warning("request %s is already being served; the second one is dropped", request.named)
        for request_id in work.cancels:
            self._core.cancel(request_id)
        for image_result in work.image_result:
            self._core.put_image(image_result)

    def _idle_s(self) -> float | None:
        """Return how long to wait before the counters are sent; None: until something changes."""
        if self._statistics() == self._last_statistics:
            return None
        return max(0.0, self._sent_at + STATISTICS_EVERY_S - self._clock())

    def _statistics(self) -> EngineStatistics:
        counted = self._core.statistics()
        return msgspec.structs.replace(
            counted,
            queued=counted.queued + self._inbox.arriving,
            cancels=counted.cancels + self._inbox.cancelled_early,
        )


class Dispatcher:
    """Dispatches the gateway's messages: cancels and pings at once, prompts one at a time, in a fair order."""

    def __init__(self, channel: BlockingChannel[ToEngine], inbox: Inbox, prompts: PromptProcess) -> None:
        """Take the gateway's channel, the step loop's inbox, and the maker of prompts."""
        self._channel = channel
        self._inbox = inbox
        self._prompts = prompts
        self._changed = threading.Condition()
        self._waiting: FairQueue[Key, PromptRequest] = FairQueue()
        self._current: Key | None = None
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
        """Queue an image for decoding, in the fair order of prompts. A cancel of its request removes it."""
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
            case _:
                assert_never(message)

    def _queue(self, key: Key, item: PromptRequest, priority: int = 0) -> None:
        with self._changed:
            self._waiting.add(key, item, client=item.client, priority=priority, cost=_cost(item))
            self._changed.notify()

    def _drop(self, key: Key) -> None:
        """Forget a prompt that nobody waits for."""
        with self._changed:
            if self._waiting.remove(key) is None and key == self._current:
                self._current = None

    def _next(self) -> PromptRequest:
        """Wait for the next piece of work."""
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: len(self._waiting) > 0)
            self._current, item = self._waiting.pop()
            return item

    def _postpone(self, item: Request | CountRequest) -> bool:
        """Postpone a prompt whose grammar is still being compiled; return False if nobody waits for it any more."""
        with self._changed:
            if not len(self._waiting):
                self._changed.wait(TRIAL_PAUSE_S)
            if self._current is None:
                return False
            priority = item.priority if isinstance(item, Request) else 0
            self._waiting.add(self._current, item, client=item.client, priority=priority, cost=POSTPONED_COST)
            return True

    def _prepare(self, at_end: Callable[[], None]) -> None:
        try:
            self._prompts.start()
            request_builder = self._request_builder.get()
            while True:
                self._process(request_builder, self._next())
        except Exception:
            # the boundary of this thread: without prompts the process is useless and ends
            log.exception("prompt thread failed")
        at_end()

    def _process(self, request_builder: RequestBuilder, item: PromptRequest) -> None:
        if isinstance(item, DecodeImage):
            self._inbox.put_image(ImageResult(item, self._decode_image(item)))
            return
        if isinstance(item, Request) and not self._inbox.is_wanted(item):
            return
        job = request_builder.job(item)
        messages = without_images(job.messages, self._lost) if self._lost else job.messages
        made = self._prompts.run_job(msgspec.structs.replace(job, messages=messages))
        if isinstance(made, Postponed) and self._postpone(item):
            return
        if isinstance(item, Request):
            self._inbox.deliver(item, request_builder.prepared(item, made))
            return
        with suppress(OSError):  # the reading thread notices the gateway's end, too, and handles it
            self._channel.send(request_builder.counted(item, made))

    def _decode_image(self, look: DecodeImage) -> Answer:
        """Have an image decoded, unless an earlier process died decoding it: the present one doesn't know."""
        digest = look.image.digest
        answer = Rejected(LOST) if digest in self._lost else self._prompts.run_job(look)
        if answer == Rejected(LOST):
            self._lost[digest] = None
            while len(self._lost) > MAX_LOST_IMAGES:
                self._lost.popitem(last=False)
        return answer


class Inbox:
    """Hands work to the step loop. A cancel overtakes a request that is still being prepared."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arriving: dict[str, Request] = {}
        self._work = Work([], [], [])
        self.cancelled_early = 0
        """The number of requests that were cancelled during preparation, since the start."""
        self.progress = True, 0
        """Whether the step loop is working, and how often it has taken work: this reveals a step that never ends."""

    def register(self, request: Request) -> None:
        """Note a request that will be prepared."""
        with self._changed:
            self._arriving[request.request_id] = request

    def is_wanted(self, request: Request) -> bool:
        """Return whether an arrived request is not cancelled."""
        with self._changed:
            return self._arriving.get(request.request_id) is request

    def deliver(self, request: Request, outcome: PreparedRequest | Finished) -> None:
        """Pass on a prepared or ended request; it is dropped if it was cancelled."""
        with self._changed:
            if self._arriving.get(request.request_id) is not request:
                return
            del self._arriving[request.request_id]
            if isinstance(outcome, Finished):
                self._work.ends.append(outcome)
            else:
                self._work.prepared.append(outcome)
            self._changed.notify()

    def put_image(self, image_result: ImageResult) -> None:
        """Pass on the pixels of an image, or why there are none."""
        with self._changed:
            self._work = self._work._replace(image_result=(*self._work.image_result, image_result))
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """Pass on a cancel; a request in preparation is ended here."""
        with self._changed:
            if self._arriving.pop(request_id, None) is None:
                self._work.cancels.append(request_id)
            else:
                self.cancelled_early += 1
                self._work.ends.append(Finished(request_id, FinishReason.CANCELLED, 0, 0, 0, steps_after=0))
            self._changed.notify()

    def take(self, wait_s: float | None) -> Work:
        """Take all new work. Waits up to `wait_s` seconds for some; None: without limit."""
        with self._changed:
            turns = self.progress[1]
            self.progress = False, turns
            self._changed.wait_for(lambda: any(self._work), wait_s)
            self.progress = True, turns + 1
            work, self._work = self._work, Work([], [], [])
            return work

    @property
    def arriving(self) -> int:
        """The number of requests in preparation."""
        return len(self._arriving)


class Work(NamedTuple):
    """The work since the last step. Cancels apply after the requests were submitted."""

    prepared: list[PreparedRequest]
    cancels: list[str]
    ends: list[Finished]
    image_result: tuple[ImageResult, ...] = ()


class RequestBuilder:
    """Makes requests ready for the core. For one thread."""

    def __init__(self, replies: ReplyFactory, defaults: Params, *, context_tokens: int) -> None:
        """`defaults`: the model's own parameters. `context_tokens`: the most tokens of a prompt with its reply."""
        self._replies = replies
        self._defaults = defaults
        self._context_tokens = context_tokens

    def job(self, request: Request | CountRequest) -> BuildPrompt:
        """Return the job for a request or a count."""
        return BuildPrompt(
            request.messages,
            self._context_tokens,
            request.spec,
            counts=isinstance(request, CountRequest),
            shares_system=isinstance(request, Request) and request.shares_system,
        )

    def prepared(self, request: Request, made: Answer) -> PreparedRequest | Finished:
        """Return the prepared request, or its end if there is no prompt."""
        if not isinstance(made, BuiltPrompt) or made.prompt is None:
            is_of_spec = isinstance(made, Rejected) and made.field
            code = ErrorCode.BAD_PARAMS if is_of_spec else ErrorCode.INTERNAL
            why = self._why(made)
            return Finished(request.request_id, FinishReason.ERROR, 0, 0, 0, error=why, error_code=code)
        prompt = made.prompt
        images = {image.digest: image for message in request.messages for image in message.images}
        beginning = ReplyPrefix(prompt.opened, prompt.token_ids[len(prompt.token_ids) - prompt.continued :])
        return PreparedRequest(
            request.request_id,
            prompt.token_ids,
            resolve_sampling(request.params, self._defaults),
            self._replies.begin(request, beginning),
            cache_salt=request.cache_salt,
            client=request.client,
            priority=request.priority,
            shared_tokens=made.shared_tokens,
            grammar=made.grammar,
            source=prompt.source,
            shown=[PlacedImage(images[digest], starts) for digest, starts in prompt.shown],
            trace=request.trace,
        )

    def counted(self, count: CountRequest, made: Answer) -> CountResult:
        """Return the prompt's length, as far as it was counted, or why there is none."""
        if isinstance(made, BuiltPrompt):
            return CountResult(count.count_id, made.tokens)
        field = made.field if isinstance(made, Rejected) else ""
        return CountResult(count.count_id, 0, self._why(made), field)

    def _why(self, made: Answer) -> str:
        if isinstance(made, BuiltPrompt):
            within = self._context_tokens
            return f"The prompt has {made.tokens} tokens or more; with its reply it must fit into {within}."
        return made.why if isinstance(made, Rejected) else "Nobody waits for the prompt."


PromptRequest = Request | CountRequest | DecodeImage

Key = str | int
"""The key of a request is its id, that of a count its number."""

IMAGE_COST = 20_000
"""The cost of decoding an image, in characters of a prompt."""

GRAMMAR_COST = 20_000
"""The least cost of compiling a grammar, in characters of a prompt."""

MAX_LOST_IMAGES = 1024
"""How many images are remembered that killed the process that makes prompts. None of them is decoded again."""

TRIAL_PAUSE_S = 0.05
"""How long the trial of a grammar is left alone if nothing else waits: each look makes the prompt again."""
POSTPONED_COST = 4_000
"""The cost of each further attempt while a prompt's grammar is being compiled."""
STATISTICS_EVERY_S = 1.0


def _cost(item: PromptRequest) -> int:
    """Return the approximate cost of work, in characters of a prompt."""
    if isinstance(item, DecodeImage):
        return IMAGE_COST
    cost = 1 + characters(item.messages, item.spec)
    has_grammar = item.spec.format is not None or item.spec.shown_tools
    return cost + GRAMMAR_COST + len(msgspec.json.encode(item.spec.format)) if has_grammar else cost
