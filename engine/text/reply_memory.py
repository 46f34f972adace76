"""Remembers how the model spelled its replies: the token ids behind a text, for prompts that repeat the text.

The same text has many tokenizations; kept keys and values are found by the one that the model wrote. Knows no tokenizer.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

MOST_REPLIES = 4096
MOST_TOKENS = 1_000_000
"""Some 15 bytes each."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenReply:
    """A reply as it was written: after `token_ids[: n + 1]` the first `ends[n]` characters of `text` were certain.

    `text` is all that was decoded, so at least what anybody saw: a stop string and what a cancel cut away included.
    """

    text: str
    token_ids: array[int]
    ends: array[int]


class ReplyNotes:
    """One running reply's notebook. For one thread; closed once, at the reply's end."""

    def __init__(self, keep: Callable[[WrittenReply], None]) -> None:
        """Take what is told of the reply when it has ended."""
        self._keep = keep
        self._token_ids: list[int] = []
        self._pieces: list[str] = []

    def add(self, token_id: int, text: str) -> None:
        """Note a token, and the text that became certain by it."""
        self._token_ids.append(token_id)
        self._pieces.append(text)

    def close(self, rest: str = "") -> None:
        """Tell what was written, `rest` being text that belongs to no token alone. Nothing is told of no text."""
        text = "".join(self._pieces) + rest
        if text:
            ends = array("i", accumulate(map(len, self._pieces)))
            self._keep(WrittenReply(text, array("i", self._token_ids), ends))


class ReplyMemory:
    """The newest replies by salt and text, up to a number of them and of their tokens; the longest unused goes first.

    Of equal texts under one salt the last one counts. For any thread.
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

    def of(self, salt: str) -> OwnReplies | None:
        """Return the replies of a salt, None where there are none."""
        return OwnReplies(self, salt) if salt in self._texts else None

    def notes(self, salt: str) -> ReplyNotes:
        """Return the notebook of a reply that begins."""
        return ReplyNotes(lambda reply: self.keep(salt, reply))

    def keep(self, salt: str, reply: WrittenReply) -> None:
        """Remember a reply, in place of what has to go for it."""
        with self._lock:
            self._drop((salt, reply.text))
            self._kept[salt, reply.text] = reply
            self._tokens += len(reply.token_ids)
            insort(self._texts.setdefault(salt, []), reply.text)
            while len(self._kept) > self._most_replies or self._tokens > self._most_tokens:
                self._drop(next(iter(self._kept)))

    def recall(self, salt: str, text: str) -> WrittenReply | None:
        """Return the reply of this text, else one that begins with it, as a cut reply's does; None where there is none."""
        with self._lock:
            texts = self._texts.get(salt, [])
            # Of all that begin with a text, that text itself is sorted first.
            place = bisect_left(texts, text)
            if not text or place == len(texts) or not (found := texts[place]).startswith(text):
                return None
            self._kept.move_to_end((salt, found))
            return self._kept[salt, found]

    def forget(self, salt: str, reply: WrittenReply) -> None:
        """Give a reply up, if it is still the one that is remembered for its text."""
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


class OwnReplies:
    """What is remembered under one salt: nobody else's prompt is spelled by it."""

    def __init__(self, memory: ReplyMemory, salt: str) -> None:
        self._memory = memory
        self._salt = salt

    def recall(self, text: str) -> WrittenReply | None:
        """See `ReplyMemory.recall`."""
        return self._memory.recall(self._salt, text)

    def forget(self, reply: WrittenReply) -> None:
        """See `ReplyMemory.forget`."""
        self._memory.forget(self._salt, reply)
