"""Midstream's engine as a contender: its core, stepped on the calling thread as in the engine's own process.

And what is measured of it alone: the next turn, cancels, growth of memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec

from engine.execution.executor import LoadedModel
from engine.loading.loader import load
from engine.machine import EngineOptions
from engine.messages import Chunk, Finished, FinishReason, Output, Started
from engine.scheduling.core import EngineCore
from engine.text.detokenizer import Detokenizer, Vocabulary
from engine.text.reply_text import PreparedRequest, ReplyStep, ReplyText, SamplingParams
from tests.bench.engine.load import (
    TEMPERATURE,
    TOP_P,
    ContenderFailed,
    GenerationRequest,
    TokenUpdate,
    prompt,
)
from tests.bench.engine.worker import Worker

Facts = dict[str, float]
SAMPLED = SamplingParams(1, True, TEMPERATURE, TOP_P, 0, 1.0, None, None)
"""The sampling parameters of all contenders."""
MOST_STEPS_BETWEEN = 4
"""The most steps between two cancels of running replies."""
LONG_PROMPTS = 2
CONVERSATIONS, CANCELLED = 500, 0.3
PROMPT_TOKENS, NEW_TOKENS = (8, 64), (4, 32)


class RecordedReply(ReplyText):
    """A reply with the product's text and its tokens, which the product does not expose."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        super().__init__(detokenizer)
        self.tokens: list[int] = []

    def push(self, token_id: int) -> ReplyStep:
        """Take the next token."""
        self.tokens.append(token_id)
        return super().push(token_id)


class MidstreamEngine:
    """A core with its model. `wait` is one step of it."""

    def __init__(self, worker: Worker) -> None:
        self.model: LoadedModel = load(
            EngineOptions(
                model=worker.folder,
                device=worker.device,
                dtype=worker.dtype,
                max_batch=worker.most_at_once,
                kv_bytes=worker.kv_bytes,
            )
        )
        self.core = EngineCore(self.model)
        self._vocabulary = Vocabulary(self.model.tokenizer)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `Contender`."""
        for request in requests:
            self.ask(request)

    def ask(self, request: GenerationRequest) -> RecordedReply:
        """Submit one request; its tokens are recorded as they come."""
        reply = RecordedReply(Detokenizer(self._vocabulary))
        sampled = msgspec.structs.replace(SAMPLED, max_new_tokens=request.new_tokens)
        salt = request.conversation
        self.core.submit(PreparedRequest(request.name, request.prompt, sampled, reply, cache_salt=salt))
        return reply

    def begin(self, name: str, prompt_tokens: int) -> None:
        """Submit a request that fills the window."""
        tokens = prompt(prompt_tokens, self.model.vocabulary, name)
        room = self.model.context_tokens - prompt_tokens
        self.submit([GenerationRequest(name, tokens, room, name)])

    def wait(self) -> Sequence[TokenUpdate]:
        """See `Contender`."""
        return [news for output in self.core.step() for news in _token_updates(output)]

    def cancel(self, name: str) -> None:
        """See `Contender`."""
        self.core.cancel(name)


def _token_updates(output: Output) -> list[TokenUpdate]:
    match output:
        case Chunk():
            return [TokenUpdate(output.request_id, output.tokens, ended=False)]
        case Finished(reason=FinishReason.ERROR):
            raise ContenderFailed(output.error or "a request failed")
        case Finished():
            return [TokenUpdate(output.request_id, 0, ended=True)]
        case _:
            return []


def next_turn(
    engine: MidstreamEngine, *, long_tokens: int, new_tokens: int, added_tokens: int, salt: int = 0
) -> Facts:
    """Run two turns of a conversation, each to its end: how long each took to its first text. Raises ContenderFailed."""
    vocabulary, name = engine.model.vocabulary, f"conversation-{salt}"
    history = prompt(long_tokens, vocabulary, name)
    first_s, tokens, _ = _turn(engine, GenerationRequest(f"{name}-1", history, new_tokens, name))
    longer = [*history, *tokens, *prompt(added_tokens, vocabulary, f"{name}-added")]
    next_s, _, cached = _turn(engine, GenerationRequest(f"{name}-2", longer, new_tokens, name))
    return {"first_s": first_s, "next_s": next_s, "prompt_tokens": len(longer), "cached_tokens": cached}


def _turn(engine: MidstreamEngine, request: GenerationRequest) -> tuple[float, Sequence[int], int]:
    """Run one turn alone; return the seconds until its first text, its tokens, and how many of its prompt were cached."""
    cached, first_s, started = 0, 0.0, time.perf_counter()
    reply = engine.ask(request)
    while engine.core.busy:
        for output in engine.core.step():
            match output:
                case Started():
                    cached = output.cached_tokens
                case Chunk() if not first_s:
                    first_s = time.perf_counter() - started
                case Finished(error=str(error)):
                    raise ContenderFailed(error)
    if not first_s:
        raise ContenderFailed("a turn had no text")
    return first_s, reply.tokens, cached


def cancels(engine: MidstreamEngine, *, at_once: int, prompt_tokens: int, long_tokens: int) -> Facts:
    """Cancel running replies at random moments, then long prompts within their prefill: the most steps after a cancel.

    And the longest step of a long prompt's whole prefill, which a cancel may have to wait for. Raises ContenderFailed.
    """
    draw, names = Random(0), [f"decode-{number}" for number in range(at_once)]
    for name in names:
        engine.begin(name, prompt_tokens)
    decode = [_cancel_after(engine, name, draw.randint(1, MOST_STEPS_BETWEEN)) for name in names]
    prefill, longest = [], 0.0
    for number in range(LONG_PROMPTS):
        engine.begin(f"prefill-{number}", long_tokens)
        prefill.append(_cancel_after(engine, f"prefill-{number}", 1 + number))
        engine.begin(f"whole-{number}", long_tokens)
        begun = False
        while not begun:
            before = time.perf_counter()
            begun = bool(engine.wait())
            longest = max(longest, time.perf_counter() - before)
        _cancel_after(engine, f"whole-{number}", 0)
    return {"decode_steps": max(decode), "prefill_steps": max(prefill), "longest_prefill_step_s": longest}


def _cancel_after(engine: MidstreamEngine, name: str, steps: int) -> int:
    """Cancel a request some steps from now; return the steps that it took after that. Raises ContenderFailed."""
    for _ in range(steps):
        engine.core.step()
    engine.core.cancel(name)
    while engine.core.busy:
        for output in engine.core.step():
            if isinstance(output, Finished) and output.request_id == name:
                return output.steps_after or 0
    raise ContenderFailed("a cancelled request had no end")


def memory(engine: MidstreamEngine, *, turns: int, settled: int, at_once: int) -> Facts:
    """Run many short turns, `at_once` at any moment, some cancelled at random moments: resident memory then and in the end.

    Raises ContenderFailed, or OSError if the system does not report memory.
    """
    draw, submitted, ended, cancelled, settled_bytes = Random(0), 0, 0, 0, 0
    cancel_in: dict[str, int] = {}
    """Remaining steps of the turns that will be cancelled."""
    while ended < turns:
        if ended >= settled and not settled_bytes:
            settled_bytes = _resident_bytes()
        while submitted - ended < at_once:
            name, conversation = f"turn-{submitted}", f"conversation-{draw.randrange(CONVERSATIONS)}"
            # The same conversation begins the same way each time: what the engine kept of it is used again.
            tokens = prompt(draw.randint(*PROMPT_TOKENS), engine.model.vocabulary, conversation)
            new_tokens = draw.randint(*NEW_TOKENS)
            if draw.random() < CANCELLED:
                cancel_in[name] = draw.randint(0, new_tokens)
            engine.submit([GenerationRequest(name, tokens, new_tokens, conversation)])
            submitted += 1
        for name, steps in list(cancel_in.items()):
            cancel_in[name] -= 1
            if steps == 0:
                engine.cancel(name)
                del cancel_in[name]
        for output in engine.core.step():
            if isinstance(output, Finished):
                ended += 1
                cancelled += output.reason is FinishReason.CANCELLED
                cancel_in.pop(output.request_id, None)
    return {"settled_bytes": settled_bytes, "end_bytes": _resident_bytes(), "cancelled": cancelled}


def _resident_bytes() -> int:
    """Return this process's resident memory, as Linux reports it."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


MEASURES: dict[str, Callable[..., Facts]] = {"next_turn": next_turn, "cancels": cancels, "memory": memory}
"""What is measured of our engine alone, each with sizes of its own."""
