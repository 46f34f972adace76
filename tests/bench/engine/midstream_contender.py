"""Midstream's engine as a contender: its core, stepped on the calling thread as in the engine's own process."""

from __future__ import annotations

from collections.abc import Sequence

from engine.execution.executor import LoadedModel
from engine.loading.loader import load
from engine.messages import Chunk, Finished, FinishReason, Output
from engine.scheduling.core import EngineCore
from engine.text.detokenizer import detokenizers_for
from engine.text.reply_text import Piece, PreparedRequest, ReplyStep, ReplyText, SamplingParams
from tests.bench.engine.contender import TEMPERATURE, TOP_P, ContenderFailed, GenerationRequest, TokenUpdate
from tests.bench.engine.registry import Worker


class RecordedReply:
    """A reply with the product's text and its tokens, which the product does not expose."""

    def __init__(self, text: ReplyText) -> None:
        self._text = text
        self.written = text.written
        self.tokens: list[int] = []

    def push(self, token_id: int) -> ReplyStep:
        """Take the next token."""
        self.tokens.append(token_id)
        return self._text.push(token_id)

    def flush(self) -> tuple[Piece, ...]:
        """Release the text that was held back."""
        return self._text.flush()


class MidstreamEngine:
    """A core with its model. `wait` is one step of it."""

    def __init__(self, worker: Worker) -> None:
        self.model: LoadedModel = load(
            worker.folder,
            device=worker.device,
            dtype=worker.dtype,
            max_batch=worker.most_at_once,
            kv_bytes=worker.kv_bytes,
        )
        self.core = EngineCore(self.model)
        self._detokenizers = detokenizers_for(self.model.tokenizer)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `Contender`."""
        for request in requests:
            self.ask(request)

    def ask(self, request: GenerationRequest) -> RecordedReply:
        """Submit one request; its tokens are recorded as they come."""
        reply = RecordedReply(ReplyText(self._detokenizers()))
        self.core.submit(
            PreparedRequest(
                request.name,
                request.prompt,
                sampling(request.new_tokens),
                reply,
                cache_salt=request.conversation,
            )
        )
        return reply

    def wait(self) -> Sequence[TokenUpdate]:
        """See `Contender`."""
        return [news for output in self.core.step() for news in _token_updates(output)]

    def cancel(self, name: str) -> None:
        """See `Contender`."""
        self.core.cancel(name)

    def close(self) -> None:
        """See `Contender`: nothing runs outside this thread."""


def sampling(new_tokens: int) -> SamplingParams:
    """Return the sampling parameters of all contenders."""
    return SamplingParams(
        max_new_tokens=new_tokens,
        do_sample=True,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        top_k=0,
        repetition_penalty=1.0,
        seed=None,
        max_time_s=None,
    )


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
