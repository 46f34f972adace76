"""Two threads of the engine's process: one reads the socket, one prepares prompts. Neither waits for a step.

So pings and cancels are read while a long prompt is tokenized, and prompts are counted while a step runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import assert_never

from engine.errors import PromptRejected
from engine.messages import (
    Cancel,
    Count,
    Counted,
    Finished,
    FinishReason,
    Params,
    Ping,
    Pong,
    Request,
    ToEngine,
)
from engine.process.channel import BlockingChannel
from engine.process.inbox import Lanes
from engine.text.detokenizer import Detokenizer
from engine.text.prepared import PreparedRequest, Sampling, resolve_sampling
from engine.text.prompt import PromptBuilder
from engine.text.reply_logprobs import ReplyLogprobs
from engine.text.reply_memory import ReplyMemory
from engine.text.reply_text import ReplyText

log = logging.getLogger(__name__)


class Preparer:
    """Makes requests ready for the core, and counts prompts. For one thread."""

    def __init__(
        self,
        prompts: PromptBuilder,
        detokenizers: Callable[[], Detokenizer],
        defaults: Params,
        *,
        context_tokens: int,
    ) -> None:
        """Take what the loaded model brought along. `context_tokens`: of a prompt and its reply, at most."""
        self._prompts = prompts
        self._detokenizers = detokenizers
        self._defaults = defaults
        self._context_tokens = context_tokens
        self._memory = ReplyMemory()

    def prepare(self, request: Request) -> PreparedRequest | Finished:
        """Return the request made ready, or its end where its prompt is refused."""
        sampling = resolve_sampling(request.params, self._defaults)
        try:
            prompt = self._prompt(request, sampling)
        except PromptRejected as error:
            return _refused(request, str(error))
        notes = self._memory.notes(request.cache_salt)
        detokenizer = self._detokenizers()
        logprobs = None if sampling.top_logprobs is None else ReplyLogprobs(detokenizer.spell)
        reply = ReplyText(detokenizer, request.params.stop, notes, logprobs)
        return PreparedRequest(
            request.request_id,
            prompt,
            sampling,
            reply,
            cache_salt=request.cache_salt,
            client=request.client,
            priority=request.priority,
            shared_tokens=self._prompts.system_tokens(request.messages, prompt)
            if request.shares_system
            else 0,
            logprobs=logprobs,
        )

    def _prompt(self, request: Request, sampling: Sampling) -> list[int]:
        """Return the prompt as the model spelled its own replies, unless that leaves the new one too little room.

        Prompts were counted as the tokenizer spells them; the window's last quarter is the reply's, if it needs as much.
        Raises PromptRejected.
        """
        own = self._memory.of(request.cache_salt)
        if own is None:
            return self._prompts.token_ids(request.messages)
        window = self._context_tokens
        room = min(sampling.max_new_tokens, window // 4)
        return self._prompts.spelled_ids(request.messages, own, most=window - room)

    def count(self, count: Count) -> Counted:
        """Return the prompt's length, or why it was refused."""
        try:
            return Counted(count.count_id, len(self._prompts.token_ids(count.messages)))
        except PromptRejected as error:
            return Counted(count.count_id, 0, str(error))


class Intake:
    """Sorts what the gateway sends: cancels and pings at once, prompts one after the other."""

    def __init__(self, channel: BlockingChannel, lanes: Lanes) -> None:
        """Take the ends that it stands between."""
        self._channel = channel
        self._lanes = lanes
        self._prompts: SimpleQueue[Request | Count] = SimpleQueue()
        self._preparer: SimpleQueue[Preparer] = SimpleQueue()

    def start(self, at_end: Callable[[], None]) -> None:
        """Start both threads. `at_end` is called on the reading one when the gateway is gone.

        To be called before torch is imported: where OpenMP binds the main thread to a core, threads
        started later would have to share it.
        """
        threading.Thread(target=self._read, args=(at_end,), name="intake", daemon=True).start()
        threading.Thread(target=self._prepare, name="prompts", daemon=True).start()

    def prepare_with(self, preparer: Preparer) -> None:
        """Begin to prepare prompts: the model is loaded."""
        self._preparer.put(preparer)

    def _read(self, at_end: Callable[[], None]) -> None:
        try:
            for message in self._channel.receive():
                self._sort(message)
        except OSError as error:
            log.info("the gateway is gone: %s", error)
        except Exception:
            # The boundary of this thread. Without a reader the process is of no use: it ends.
            log.exception("the gateway's messages can't be read any more")
        at_end()

    def _sort(self, message: ToEngine) -> None:
        match message:
            case Ping():
                self._channel.send(Pong(message.number, *self._lanes.progress))
            case Cancel():
                self._lanes.cancel(message.request_id)
            case Request():
                self._lanes.arrive(message)
                self._prompts.put(message)
            case Count():
                self._prompts.put(message)
            case _:
                assert_never(message)

    def _prepare(self) -> None:
        preparer = self._preparer.get()
        while True:
            asked = self._prompts.get()
            if isinstance(asked, Count):
                answer = _guarded_count(preparer, asked)
                with suppress(OSError):  # the reading thread sees the gateway's end as well, and acts on it
                    self._channel.send(answer)
            elif self._lanes.wants(asked):
                self._lanes.deliver(asked, _guarded_prepare(preparer, asked))


def _guarded_prepare(preparer: Preparer, request: Request) -> PreparedRequest | Finished:
    try:
        return preparer.prepare(request)
    except Exception:
        # The one broad catch for a prompt: it must not take the others' along.
        log.exception("request %s could not be prepared", request.request_id)
        return _refused(request, "The prompt could not be prepared.")


def _guarded_count(preparer: Preparer, count: Count) -> Counted:
    try:
        return preparer.count(count)
    except Exception:
        log.exception("a prompt could not be counted")
        return Counted(count.count_id, 0, "The prompt could not be counted.")


def _refused(request: Request, why: str) -> Finished:
    return Finished(
        request.request_id,
        FinishReason.ERROR,
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=0,
        error=why,
    )
