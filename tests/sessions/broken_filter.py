"""An operator's own filter, with a defect."""

from __future__ import annotations

from typing import Self

from sessions.filters.chain import Filter, Passed


class Broken(Filter):
    """Fails at the first text of a reply."""

    def reply(self) -> Self:
        return self

    def feed(self, text: str) -> Passed:
        raise LookupError(text)

    def finish(self) -> Passed:
        return Passed("")
