"""A request prepared for the step loop, the text of its reply, and the memory of the tokens that replies were written in.

Prompts repeat replies. A text has many tokenizations, and cached keys and values are found by the one that the model
wrote, so prompts are rewritten to it. A replacement that might change the text is not made: for example, if a reply has
special tokens and the prompt has others. A token's log-probability leaves with its text, and not before.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

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
    """A request has the id of one that is still served. That one continues unchanged."""


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

    @property
    def takes_the_likeliest(self) -> bool:
        """Whether each token is the likeliest one by the model alone."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return not (self.do_sample or penalties or self.logit_bias or self.min_tokens)


class Reply(Protocol):
    """Turns one reply's tokens into pieces: text, reasoning, calls."""

    def push(self, token_id: int) -> ReplyStep:
        """Take the next token."""

    def flush(self) -> Sequence[Piece]:
        """Return the held-back rest, once, at the reply's end."""

    @property
    def written(self) -> str:
        """The reply so far as the model wrote it, if its text is not all of that; else empty."""

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply; None if none did."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request for the core: everything is looked up, rendered and tokenized.

    `shared_tokens`: how many of the prompt's first tokens everyone may share. `logprobs`: where the reply's tokens are
    scored, which `reply` tells what it makes of them; None where nobody asked. `grammar`: what the reply has to be;
    None where it is free. `source`: what is translated; the prompt is then what the translation begins with. `shown`: its
    images, in order. `draft`: how its reply may begin; `ahead`: how many tokens it has behind what is right of that, at most.
    The rest as in `messages.Request`.
    """

    request_id: str
    prompt: Sequence[int]
    sampling: SamplingParams
    reply: Reply
    cache_salt: str = ""
    client: str = ""
    priority: int = 0
    shared_tokens: int = 0
    logprobs: ReplyLogprobs | None = None
    grammar: GrammarSource | None = None
    source: Sequence[int] = ()
    shown: Sequence[PlacedImage] = ()
    draft: Sequence[int] = ()
    ahead: int | None = None
    trace: Trace = NO_TRACE

    @property
    def named(self) -> str:
        """Its name in the log."""
        facts = ", ".join(f"{name} {value}" for name, value in self.trace.facts.items())
        return f"{self.request_id} ({facts})" if facts else self.request_id


def request_error(request: PreparedRequest, *, context_tokens: int, vocabulary: int) -> str | None:
    """Return why a model with this window and vocabulary can't serve a request; None if it can."""
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
    """Return the invalid sampling value of a request, if any. Bounds are those of OpenAI's API."""
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

    A request with a temperature but no `do_sample` samples with it; temperature 0 is greedy.
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


class _Gap(NamedTuple):
    """A gap: after the first `at` characters of the text, the next `chars` decoded ones are not part of it."""

    at: int
    chars: int


class LogprobQueue:
    """Holds back the log-probabilities of a reply's tokens.

    A token of which only a part leaves is never reported, since its name would show the rest. That holds for a token in which
    the reply is cut, and for one that reaches into a gap.
    """

    __slots__ = ("_begin", "_gaps", "_left", "_skipped", "_start", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[ChosenToken] = deque()
        self._gaps: deque[_Gap] = deque()
        self._left = 0
        self._skipped = 0
        self._begin = 0  # of the first waiting token, among all that was decoded
        self._start = 0  # of the text after the last gap, likewise

    def put(self, tokens: Iterable[ChosenToken]) -> None:
        """Add the next tokens of the reply. Their `end` counts all that was decoded, gaps included."""
        self._waiting += tokens

    def skip(self, at: int, chars: int) -> None:
        """Note a gap: after `at` characters of text, the next `chars` decoded ones never leave."""
        self._gaps.append(_Gap(at, chars))

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next text leaves; return its tokens, none without text.

        Their `end` counts text alone.
        """
        if not text:
            return ()
        leaving: list[ChosenToken] = []
        end = self._left + len(text)
        while self._gaps and self._gaps[0].at < end:
            gap = self._gaps.popleft()
            leaving += self._up_to(gap.at)
            self._skipped += gap.chars
            self._start = gap.at + self._skipped
        leaving += self._up_to(end)
        self._left = end
        return tuple(leaving)

    def _up_to(self, end: int) -> list[ChosenToken]:
        """Take the tokens that end within the first `end` characters of text; return those that are all text."""
        taken: list[ChosenToken] = []
        while self._waiting and self._waiting[0].end <= end + self._skipped:
            token = self._waiting.popleft()
            if self._begin >= self._start:
                taken.append(self._counted(token))
            self._begin = token.end
        return taken

    def _counted(self, token: ChosenToken) -> ChosenToken:
        if not self._skipped:
            return token
        return msgspec.structs.replace(token, end=token.end - self._skipped)


class ScoredToken(NamedTuple):
    """A sampled token with log-probabilities: its own, and those of the likeliest tokens, in order."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class ReplyLogprobs:
    """Gets scores from the step loop, and texts from the detokenizer.

    The joined bytes of the reported tokens are the text, if it is valid UTF-8: in the text other bytes are U+FFFD.
    """

    def __init__(self, spell: Callable[[int], Spelled]) -> None:
        """Take the function that returns a token's text."""
        self._spell = spell
        self._scored: deque[ScoredToken] = deque()
        self._open: list[tuple[ScoredToken, Spelled]] = []
        self._queue = LogprobQueue()
        self._made = 0

    def score(self, scored: ScoredToken) -> None:
        """Add the next token; its text is `made` later."""
        self._scored.append(scored)

    def made(self, text: str, *, holds: bool) -> None:
        """Note the text that the first token without any gave. `holds`: a part of the token became no text yet."""
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
        """Note the text of the held rest at the reply's end."""
        self._made += len(text)
        self._close()

    def skip(self, at: int, chars: int) -> None:
        """Note that after the first `at` characters of text the next `chars` decoded ones are not part of it."""
        self._queue.skip(at, chars)

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next text leaves; return its tokens."""
        return self._queue.leave(text)

    def _close(self) -> None:
        self._queue.put(
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
    """A complete call. `arguments`: the text of a JSON object, as the model wrote it."""

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


class StopStep(NamedTuple):
    """The text that may be shown after a push, and the stop string that ended the reply, or None."""

    text: str
    stop: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether the reply ends here."""
        return self.stop is not None


class StopStrings:
    """Passes text on, except a stop string or its possible beginning.

    The first complete stop string wins; of several at the same place, the longest. So the result does not depend on how the
    text was split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the stop strings, none of them empty."""
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> StopStep:
        """Take more text and return what may be shown of all the text so far. After a stop, push no more."""
        if not self._stops:
            return StopStep(text)
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            self._held = ""
            return StopStep(text[:start], stop)
        cut = len(text) - self._beginning_of_a_stop(text)
        self._held = text[cut:]
        return StopStep(text[:cut])

    def flush(self) -> str:
        """Return the held-back rest: the reply ended, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _beginning_of_a_stop(self, text: str) -> int:
        """Return the length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class ShownText:
    """Passes text on as far as it may be shown. `stop`: the complete stop string; add no more text then."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Take the stop strings, none of them empty."""
        self.stop: str | None = None
        self._stops = StopStrings(stops) if stops else None
        self._waiting = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self.stop is not None

    def push(self, text: str) -> str:
        """Take more text; return the whole characters that may be shown now, possibly none.

        At a stop string that is all text before it.
        """
        if self._stops is not None:
            text, self.stop = self._stops.push(text)
        waiting = self._waiting + text
        cut = len(waiting) if self.stopped else whole_length(waiting)
        self._waiting = waiting[cut:]
        return waiting[:cut]

    def flush(self) -> str:
        """Return the held-back rest: the passage of text has ended."""
        rest, self._waiting = self._waiting, ""
        return rest if self._stops is None else rest + self._stops.flush()


class ReplyText:
    """A reply that is not parsed: it passes through the detokenizer and stop strings, and leaves in whole characters.

    `written` is empty, since the text is all that the model wrote.
    """

    written = ""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        notes: ReplyRecorder | None = None,
        logprobs: ReplyLogprobs | None = None,
    ) -> None:
        """Take a fresh detokenizer, the request's stop strings, and the recorder of the reply, if any.

        `logprobs`: is told each token's text; it must have a score for each.
        """
        self._detokenizer = detokenizer
        self._shown = ShownText(stops)
        self._notes = notes
        self._logprobs = logprobs

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply; None if none did."""
        return self._shown.stop

    def push(self, token_id: int) -> ReplyStep:
        """Take the next token. After a stop, push no more."""
        text = self._detokenizer.push(token_id)
        if self._notes is not None:
            self._notes.add(token_id, text)
        if self._logprobs is not None:
            self._logprobs.made(text, holds=self._detokenizer.holds)
        shown = self._shown.push(text)
        if self._shown.stopped:
            self._close_notes()
            return ReplyStep((shown,) if shown else (), stopped=True)
        return ReplyStep((shown,)) if shown else NOTHING

    def resume(self, token_ids: Sequence[int]) -> None:
        """Take the first tokens of a continued reply: they are recorded, but not returned."""
        for token_id in token_ids:
            text = self._detokenizer.push(token_id)
            if self._notes is not None:
                self._notes.add(token_id, text)

    def flush(self) -> tuple[Piece, ...]:
        """Return the held-back rest, at the reply's end. After a stop there is none."""
        if self._shown.stopped:
            return ()
        text = self._detokenizer.flush()
        self._close_notes(text)
        if self._logprobs is not None:
            self._logprobs.finish(text)
        last = self._shown.push(text)
        if not self._shown.stopped:
            last += self._shown.flush()
        return (last,) if last else ()

    def _close_notes(self, rest: str = "") -> None:
        if self._notes is not None:
            self._notes.close(rest)


MOST_REPLIES = 4096

MOST_TOKENS = 1_000_000
"""Some 15 bytes each."""

_AROUND = 8
"""Tokens that are decoded on either side of a reply: more than can form one character with it."""

_ATTEMPTS = 8
"""The most places of a reply, and ends of its known part, that are tried."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenReply:
    """A reply as it was written: after `token_ids[: n + 1]` the first `ends[n]` characters of `text` were certain.

    `text` is all that was decoded, including a stop string and what a cancel cut.
    """

    text: str
    token_ids: array[int]
    ends: array[int]


class ReplyRecorder:
    """Records one running reply. For one thread; closed once, at the reply's end."""

    def __init__(self, keep: Callable[[WrittenReply], None]) -> None:
        """Take the receiver of the finished reply."""
        self._keep = keep
        self._token_ids: list[int] = []
        self._pieces: list[str] = []

    def add(self, token_id: int, text: str) -> None:
        """Record a token, and the text that became certain by it."""
        self._token_ids.append(token_id)
        self._pieces.append(text)

    def close(self, rest: str = "") -> None:
        """Pass the reply on, unless it is empty. `rest` is text that belongs to no single token."""
        text = "".join(self._pieces) + rest
        if text:
            ends = array("i", accumulate(map(len, self._pieces)))
            self._keep(WrittenReply(text, array("i", self._token_ids), ends))


class ReplyCache:
    """The newest replies by salt and text, bounded in number and tokens; the least recently used is dropped first.

    Of equal texts under one salt the last one counts. Thread-safe.
    """

    def __init__(self, *, most_replies: int = MOST_REPLIES, most_tokens: int = MOST_TOKENS) -> None:
        """Take the bounds."""
        self._most_replies = most_replies
        self._most_tokens = most_tokens
        self._tokens = 0
        self._kept: OrderedDict[tuple[str, str], WrittenReply] = OrderedDict()
        self._texts: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def tokens(self) -> int:
        """How many tokens are remembered."""
        return self._tokens

    def of(self, salt: str) -> TenantReplies | None:
        """Return the replies of a salt, or None."""
        return TenantReplies(self, salt) if salt in self._texts else None

    def notes(self, salt: str) -> ReplyRecorder:
        """Return the recorder of a new reply."""
        return ReplyRecorder(lambda reply: self.keep(salt, reply))

    def keep(self, salt: str, reply: WrittenReply) -> None:
        """Remember a reply, and drop others for it if needed."""
        with self._lock:
            self._drop((salt, reply.text))
            self._kept[salt, reply.text] = reply
            self._tokens += len(reply.token_ids)
            insort(self._texts.setdefault(salt, []), reply.text)
            while len(self._kept) > self._most_replies or self._tokens > self._most_tokens:
                self._drop(next(iter(self._kept)))

    def recall(self, salt: str, text: str) -> WrittenReply | None:
        """Return the reply of this text, else one that begins with it (the text of a cut reply), or None."""
        with self._lock:
            texts = self._texts.get(salt, [])
            # among all that begin with a text, the text itself sorts first
            place = bisect_left(texts, text)
            if not text or place == len(texts) or not (found := texts[place]).startswith(text):
                return None
            self._kept.move_to_end((salt, found))
            return self._kept[salt, found]

    def forget(self, salt: str, reply: WrittenReply) -> None:
        """Drop a reply, if it is still the one that is remembered for its text."""
        with self._lock:
            if self._kept.get((salt, reply.text)) is reply:
                self._drop((salt, reply.text))

    def _drop(self, key: tuple[str, str]) -> None:
        reply = self._kept.pop(key, None)
        if reply is None:
            return
        salt, text = key
        self._tokens -= len(reply.token_ids)
        texts = self._texts[salt]
        del texts[bisect_left(texts, text)]
        if not texts:
            del self._texts[salt]


class TenantReplies:
    """The replies of one salt: only prompts of that salt use them."""

    def __init__(self, memory: ReplyCache, salt: str) -> None:
        self._memory = memory
        self._salt = salt

    def recall(self, text: str) -> WrittenReply | None:
        """See `ReplyCache.recall`."""
        return self._memory.recall(self._salt, text)

    def forget(self, reply: WrittenReply) -> None:
        """See `ReplyCache.forget`."""
        self._memory.forget(self._salt, reply)


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A rendered prompt and its tokens: each covers the characters from its `start` to its `end`."""

    text: str
    token_ids: list[int]
    starts: list[int]
    ends: list[int]

    def border(self, at: int) -> int | None:
        """Return how many tokens are before a character; None if a token reaches over that place."""
        place = bisect_left(self.starts, at)
        return None if place and self.ends[place - 1] > at else place


@dataclass(frozen=True, slots=True)
class Letters:
    """Decodes token ids. `special`: ids of tokens that mean more than their text."""

    decode: Callable[[Sequence[int]], str]
    special: frozenset[int]


class Passage(NamedTuple):
    """A message's content, and the remembered reply that it is, or begins."""

    content: str
    reply: WrittenReply | None


class Change(NamedTuple):
    """The prompt's tokens from `start` to `end` become `token_ids`, which are the whole reply, or its beginning."""

    start: int
    end: int
    token_ids: list[int]
    reply: WrittenReply


def changes(prompt: Tokenized, passages: Sequence[Passage], letters: Letters) -> Iterator[Change]:
    """Yield, in order, the replacements for remembered replies of a prompt; some may change nothing.

    `passages` are all messages in order: each is searched after those before it.
    """
    behind = 0
    for passage in passages:
        # Many templates trim what they write.
        for content in (passage.content, passage.content.rstrip()):
            places = list(islice(_places(prompt.text, content, behind), _ATTEMPTS))
            if not places:
                continue
            behind = places[0] + len(content)
            if passage.reply is not None:
                change = _first_change(prompt, places, len(content), passage.reply, letters)
                if change is not None:
                    behind = prompt.ends[change.end - 1]
                    yield change
            break


def spelled(token_ids: Sequence[int], changed: Sequence[Change]) -> list[int]:
    """Return token ids with the changes, which are in order and do not overlap."""
    made: list[int] = []
    done = 0
    for change in changed:
        made += token_ids[done : change.start]
        made += change.token_ids
        done = change.end
    return [*made, *token_ids[done:]]


def _places(text: str, content: str, behind: int) -> Iterator[int]:
    """Yield the places of a content: a short one may also occur in the template's own text."""
    at = text.find(content, behind)
    while at >= 0:
        yield at
        at = text.find(content, at + 1)


def _first_change(
    prompt: Tokenized, places: Sequence[int], length: int, reply: WrittenReply, letters: Letters
) -> Change | None:
    """Return the change at the first possible place, if any."""
    found = (_longest_change(prompt, at, length, reply, letters) for at in places)
    return next((change for change in found if change is not None), None)


def _longest_change(
    prompt: Tokenized, at: int, length: int, reply: WrittenReply, letters: Letters
) -> Change | None:
    """Return the longest possible change by a reply to the text from `at` on, if any."""
    start = prompt.border(at)
    if start is None:
        return None
    possible = (
        Change(start, end, reply.token_ids[:count].tolist(), reply)
        for count in range(bisect_right(reply.ends, length), 0, -1)
        if (end := prompt.border(at + reply.ends[count - 1])) is not None and end > start
    )
    tried = islice(possible, _ATTEMPTS)
    return next((each for each in tried if _decodes_alike(prompt.token_ids, each, letters)), None)


def _decodes_alike(token_ids: list[int], change: Change, letters: Letters) -> bool:
    before = token_ids[max(0, change.start - _AROUND) : change.start]
    plain = token_ids[change.start : change.end]
    after = token_ids[change.end : change.end + _AROUND]
    if plain == change.token_ids:
        return True
    if not _has_same_special_tokens(plain, change.token_ids, letters):
        return False
    return letters.decode(before + plain + after) == letters.decode(before + change.token_ids + after)


def _has_same_special_tokens(plain: list[int], written: list[int], letters: Letters) -> bool:
    """Return whether two spellings have the same special tokens, with the same text between them."""
    here, there = (_apart(token_ids, letters.special) for token_ids in (plain, written))
    if [token for _, token in here] != [token for _, token in there]:
        return False
    between = zip(here, there, strict=True)
    return len(here) == 1 or all(
        letters.decode(one) == letters.decode(other) for (one, _), (other, _) in between
    )


def _apart(token_ids: list[int], special: frozenset[int]) -> list[tuple[list[int], int | None]]:
    """Return the stretches of a spelling, each with the special token that ends it; the last has none."""
    stretches: list[tuple[list[int], int | None]] = []
    begin = 0
    for place, token in enumerate(token_ids):
        if token in special:
            stretches.append((token_ids[begin:place], token))
            begin = place + 1
    return [*stretches, (token_ids[begin:], None)]
