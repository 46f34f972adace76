"""Remembers the token ids of replies, for prompts that repeat their text.

A text has many tokenizations; cached keys and values are found by the one that the model wrote. Knows no tokenizer.
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
