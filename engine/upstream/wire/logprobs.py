"""The log-probabilities that an upstream sends, which leave together with their text. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.messages import ChosenToken, TokenLogprob
from engine.text.logprobs import LogprobQueue

NO_LOGPROBS = msgspec.Raw(b"null")

Byte = Annotated[int, Meta(ge=0, le=255)]


class _Likely(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[Byte, ...] | None = None

    def as_logprob(self) -> TokenLogprob:
        return TokenLogprob(self.token, self.logprob, None if self.bytes is None else bytes(self.bytes))


class _Chosen(_Likely, frozen=True):
    top_logprobs: tuple[_Likely, ...] | None = None

    @property
    def size(self) -> int:
        return len(self.token.encode() if self.bytes is None else self.bytes)


class _Logprobs(msgspec.Struct, frozen=True):
    """A chat's log-probabilities are in `content`, a completion's in `tokens` and the other two."""

    content: tuple[_Chosen, ...] | None = None
    tokens: tuple[str, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None

    def chosen(self) -> tuple[_Chosen, ...]:
        if self.content is not None:
            return self.content
        return tuple(self._by_place())

    def _by_place(self) -> Iterator[_Chosen]:
        rows = zip_longest(self.tokens or (), self.token_logprobs or (), self.top_logprobs or ())
        for token, logprob, top in rows:
            if token is not None and logprob is not None:
                likely = tuple(_Likely(*one) for one in (top or {}).items())
                yield _Chosen(token, logprob, None, likely)


_decode = msgspec.json.Decoder(_Logprobs | None).decode


class UpstreamLogprobs:
    """Takes text and tokens in whichever chunks they come. A token waits until the text is as long as its bytes say.

    So tokens don't reveal text that an upstream holds back, as vLLM does before a stop string.
    """

    def __init__(self) -> None:
        self._queue = LogprobQueue()
        self._early: deque[tuple[int, _Chosen]] = (
            deque()
        )  # with the text's length in bytes up to the token's end
        self._named = 0
        self._heard = 0
        self._chars = 0

    def add(self, text: str, logprobs: msgspec.Raw) -> None:
        """Take the text and the log-probabilities of a chunk. Those in another shape than OpenAI's are ignored."""
        for one in _read(logprobs):
            self._named += one.size
            self._early.append((self._named, one))
        self._heard += len(text.encode(errors="surrogatepass"))
        self._chars += len(text)
        while self._early and self._early[0][0] <= self._heard:
            _, one = self._early.popleft()
            top = tuple(other.as_logprob() for other in one.top_logprobs or ())
            self._queue.put([ChosenToken(one.as_logprob(), top, self._chars)])

    def pass_over(self, text: str) -> None:
        """Take text whose tokens must not be told, since they name more than the text, such as reasoning."""
        size = len(text.encode(errors="surrogatepass"))
        self._named += size
        self._heard += size
        self._chars += len(text)

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next text leaves; return the tokens that go with it."""
        return self._queue.leave(text)


def _read(logprobs: msgspec.Raw) -> tuple[_Chosen, ...]:
    try:
        parsed = _decode(logprobs)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ()
    return parsed.chosen() if parsed is not None else ()
