"""A request prepared for the step loop, and the text of its reply.

A token's log-probability is sent with its text, never before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from engine.errors import EngineError
from engine.messages import NO_TRACE, REPLY_TOKENS, ChosenToken, Params, TokenLogprob, Trace
from engine.text.detokenizer import Detokenizer, Spelled, whole_length
from engine.vision.image import PlacedImage

if TYPE_CHECKING:  # it imports llguidance, which the gateway does not need
    from engine.grammar import GrammarSource

T = TypeVar("T")

MOST_BIASES = 300
LARGEST_BIAS = 100
LARGEST_PENALTY = 2


class DuplicateRequest(EngineError):
    """A request has the id of a running one, which continues unchanged."""


class SamplingParams(msgspec.Struct, frozen=True):
    """The sampling parameters, all resolved.

    `top_k` 0, `top_p` 1 and `min_p` 0 mean: no such limit. `max_time_s` counts from the moment of submission.
    """

    max_new_tokens: int
    do_sample: bool
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: int | None
    max_time_s: float | None
    top_logprobs: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request for the core: everything is looked up, rendered and tokenized.

    `shared_tokens`: how many of the prompt's first tokens all clients may share. `grammar`: constrains the reply; None if it
    is free. `source`: the tokens to translate; `prompt` is then the beginning of the translation. `shown`: the prompt's
    images, in order. The rest as in `messages.Request`.
    """

    request_id: str
    prompt: Sequence[int]
    sampling: SamplingParams
    reply: ReplyText
    cache_salt: str = ""
    client: str = ""
    priority: int = 0
    shared_tokens: int = 0
    grammar: GrammarSource | None = None
    source: Sequence[int] = ()
    shown: Sequence[PlacedImage] = ()
    trace: Trace = NO_TRACE

    @property
    def named(self) -> str:
        """The request's name in the log."""
        facts = ", ".join(f"{name} {value}" for name, value in self.trace.facts.items())
        return f"{self.request_id} ({facts})" if facts else self.request_id


def request_error(request: PreparedRequest, *, context_tokens: int, vocabulary: int) -> str | None:
    """Return why a model with this window and vocabulary size can't serve a request; None if it can."""
    prompt = request.prompt
    if not prompt:
        return "The prompt has no tokens."
    if len(prompt) >= context_tokens:
        return f"The prompt has {len(prompt)} tokens; with its reply it must fit into {context_tokens}."
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        return f"The prompt has a token id outside of the vocabulary of {vocabulary}."
    if request.sampling.max_new_tokens < 1:
        return "max_new_tokens must be at least 1."
    return None


def sampling_error(sampling: SamplingParams, *, vocabulary: int) -> str | None:
    """Return the rule that `sampling` breaks, if any. Bounds are those of OpenAI's API."""
    biases = sampling.logit_bias
    most = f"from -{LARGEST_PENALTY} to {LARGEST_PENALTY}"
    rules = {
        f"logit_bias may have at most {MOST_BIASES} entries.": len(biases) <= MOST_BIASES,
        f"logit_bias takes token ids below {vocabulary}.": all(
            0 <= token < vocabulary for token, _ in biases
        ),
        f"logit_bias takes values from -{LARGEST_BIAS} to {LARGEST_BIAS}.": all(
            abs(value) <= LARGEST_BIAS for _, value in biases
        ),
        "min_p must be from 0 to 1.": 0 <= sampling.min_p <= 1,
        f"presence_penalty must be {most}.": abs(sampling.presence_penalty) <= LARGEST_PENALTY,
        f"frequency_penalty must be {most}.": abs(sampling.frequency_penalty) <= LARGEST_PENALTY,
        "min_tokens must be from 0 to max_new_tokens.": 0 <= sampling.min_tokens <= sampling.max_new_tokens,
    }
    return next((rule for rule, holds in rules.items() if not holds), None)


def resolve_sampling(params: Params, defaults: Params) -> SamplingParams:
    """Take each value from the request, else from the model's defaults, else from transformers'.

    A temperature without `do_sample` turns sampling on; temperature 0 is greedy.
    """
    temperature = _first(params.temperature, defaults.temperature, 1.0)
    do_sample = params.do_sample
    if do_sample is None and params.temperature is not None:
        do_sample = True
    return SamplingParams(
        max_new_tokens=_first(params.max_new_tokens, defaults.max_new_tokens, REPLY_TOKENS),
        do_sample=_first(do_sample, defaults.do_sample, False) and temperature > 0,
        temperature=temperature,
        top_p=_first(params.top_p, defaults.top_p, 1.0),
        top_k=_first(params.top_k, defaults.top_k, 50),
        repetition_penalty=_first(params.repetition_penalty, defaults.repetition_penalty, 1.0),
        seed=_first(params.seed, defaults.seed, None),
        max_time_s=_first(params.max_time_s, defaults.max_time_s, None),
        top_logprobs=params.top_logprobs,
        min_p=_first(params.min_p, defaults.min_p, 0.0),
        presence_penalty=_first(params.presence_penalty, defaults.presence_penalty, 0.0),
        frequency_penalty=_first(params.frequency_penalty, defaults.frequency_penalty, 0.0),
        logit_bias=params.logit_bias or defaults.logit_bias,
        min_tokens=_first(params.min_tokens, defaults.min_tokens, 0),
        ignore_eos=_first(params.ignore_eos, defaults.ignore_eos, False),
    )


def _first(requested: T | None, default: T | None, fallback: T) -> T:
    if requested is not None:
        return requested
    return fallback if default is None else default


_INVALID = "\ufffd"


class LogprobQueue:
    """Holds back log-probabilities until the text of their tokens is sent. A token that is cut off is never reported."""

    def __init__(self) -> None:
        self._waiting: deque[ChosenToken] = deque()
        self._left = 0

    def put(self, tokens: Iterable[ChosenToken]) -> None:
        """Add the next tokens of the reply."""
        self._waiting += tokens

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next `text` is sent; return its tokens, none if it is empty."""
        self._left += len(text)
        leaving: list[ChosenToken] = []
        while text and self._waiting and self._waiting[0].end <= self._left:
            leaving.append(self._waiting.popleft())
        return tuple(leaving)


class ScoredToken(NamedTuple):
    """A sampled token with log-probabilities: its own, and those of the likeliest tokens, in order."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class ReplyLogprobs(LogprobQueue):
    """Pairs scores from the step loop with texts from the detokenizer.

    Only tokens that are entirely text are reported: not those of reasoning, calls and delimiters, or that reach into one.
    The joined bytes of the reported tokens are the text, except that invalid UTF-8 is U+FFFD in the text.
    """

    def __init__(self, spell: Callable[[int], Spelled]) -> None:
        """Take the function that returns a token's text."""
        super().__init__()
        self._spell = spell
        self._scored: deque[ScoredToken] = deque()
        self._open: list[tuple[ScoredToken, Spelled]] = []
        self._decoded: deque[ChosenToken] = deque()  # their `end` counts all decoded characters
        self._made = 0
        self._parsed = 0  # how many of these are parsed
        self._begin = 0  # where the first token of `_decoded` begins
        self._text_begin = 0  # where the text begins that was parsed last
        self._no_text = 0  # how many of the parsed characters are not text

    def score(self, scored: ScoredToken) -> None:
        """Add the next token; `made` adds its text later."""
        self._scored.append(scored)

    def made(self, text: str, *, holds: bool) -> None:
        """Note the `text` of the first token that lacks one. `holds`: part of the token has not become text yet."""
        scored = self._scored.popleft()
        spelled = self._spell(scored.token)
        if spelled.raw is not None and not (self._open or holds) and _INVALID not in text:
            # In context a token's text may differ: at the front it may lose its space.
            spelled = Spelled(text, text.encode())
        self._made += len(text)
        if text:
            # what was held before begins this text
            self._close()
        self._open.append((scored, spelled))
        if not holds:
            self._close()

    def finish(self, text: str) -> None:
        """Note the last text, which was held until the reply's end."""
        self._made += len(text)
        self._close()

    def parsed(self, chars: int, *, is_text: bool) -> None:
        """Note that the next `chars` decoded characters are text, or are not."""
        self._parsed += chars
        while self._decoded and self._decoded[0].end <= self._parsed:
            token = self._decoded.popleft()
            if is_text and self._begin >= self._text_begin:
                self.put([msgspec.structs.replace(token, end=token.end - self._no_text)])
            self._begin = token.end
        if not is_text:
            self._no_text += chars
            self._text_begin = self._parsed

    def _close(self) -> None:
        self._decoded.extend(
            ChosenToken(
                _as_logprob(spelled, scored.logprob),
                tuple(_as_logprob(self._spell(token), logprob) for token, logprob in scored.top),
                self._made,
            )
            for scored, spelled in self._open
        )
        self._open.clear()


def _as_logprob(spelled: Spelled, logprob: float) -> TokenLogprob:
    return TokenLogprob(spelled.token, logprob, spelled.raw)


class Thought(NamedTuple):
    """Whole characters of reasoning."""

    text: str


class Call(NamedTuple):
    """A complete call. `arguments`: the text of a JSON object."""

    name: str
    arguments: str


Piece = str | Thought | Call
"""A plain string is text that may be shown: whole characters, never empty."""


class ReplyStep(NamedTuple):
    """The effect of one token: the pieces that became ready, in order, and whether the reply ended."""

    pieces: tuple[Piece, ...]
    stopped: bool = False


NOTHING = ReplyStep(())
"""The effect of a token without a ready piece."""


class ShownText:
    """Passes whole characters on, except a stop string or its possible beginning. `stop`: the stop string that was found.

    The first complete stop string wins; of several at the same place, the longest. So the result does not depend on how the
    text was split. After a stop, push no more.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Take the stop strings, none of them empty."""
        self.stop: str | None = None
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._waiting = ""  # for the rest of its character
        self._held = ""  # since it may begin a stop string

    def push(self, text: str) -> str:
        """Take more text; return what may be shown now, possibly nothing. A stop string releases all text before it."""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, end, self.stop = min(found)
            return self._waiting + text[:end]
        end = len(text) - self._beginning_of_a_stop(text)
        waiting, self._held = self._waiting + text[:end], text[end:]
        cut = whole_length(waiting)
        self._waiting = waiting[cut:]
        return waiting[:cut]

    def flush(self) -> str:
        """Return the held-back rest: the passage of text has ended."""
        rest, self._waiting, self._held = self._waiting + self._held, "", ""
        return rest

    def _beginning_of_a_stop(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class ReplyText:
    """A reply that is not parsed: it passes through the detokenizer and stop strings, and is returned in whole characters."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        logprobs: ReplyLogprobs | None = None,
    ) -> None:
        """Take a fresh detokenizer, and the request's stop strings.

        `logprobs`: gets each token's text, after its score.
        """
        self._detokenizer = detokenizer
        self.logprobs = logprobs
        self._text = ShownText(stops)
        self._stopped = False

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply; None if none did."""
        return self._text.stop

    def push(self, token_id: int) -> ReplyStep:
        """Take the next token. After a stop, push no more."""
        text = self._detokenizer.push(token_id)
        if self.logprobs is not None:
            self.logprobs.made(text, holds=self._detokenizer.holds)
        pieces = self._take(text) if text else ()
        return ReplyStep(pieces, self._stopped) if pieces or self._stopped else NOTHING

    def resume(self, token_ids: Sequence[int]) -> None:
        """Take the first tokens of a continued reply. Their text is not returned again."""
        self._begin("".join(map(self._detokenizer.push, token_ids)))

    def flush(self) -> tuple[Piece, ...]:
        """Return the held-back rest, at the reply's end. After a stop there is none."""
        if self._stopped:
            return ()
        text = self._detokenizer.flush()
        if self.logprobs is not None:
            self.logprobs.finish(text)
        return self._end(text)

    def _begin(self, text: str) -> None:
        """Take text that was sent before."""

    def _take(self, text: str) -> tuple[Piece, ...]:
        """Take more text; return the pieces that are ready."""
        self._note_text(text)
        shown = self._text.push(text)
        self._stopped = self._text.stop is not None
        return (shown,) if shown else ()

    def _end(self, text: str) -> tuple[Piece, ...]:
        """Take the last text; return everything that was held back."""
        self._note_text(text)
        last = self._text.push(text)
        if self._text.stop is None:
            last += self._text.flush()
        return (last,) if last else ()

    def _note_text(self, text: str) -> None:
        if self.logprobs is not None:
            self.logprobs.parsed(len(text), is_text=True)
