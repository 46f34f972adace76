"""The chain of all filters of a service. They refuse messages and end replies."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.errors import Filtered
from sessions.filters.filter_hook import Filter
from sessions.filters.filtered_reply import FilteredReply


class Filters:
    """A chain of filters."""

    def __init__(self, filters: Sequence[Filter] = ()) -> None:
        self._filters = tuple(filters)

    async def check(self, *texts: str | None) -> None:
        """Check a client's text for the model (None: nothing). Raises Filtered."""
        for text in texts:
            for one in self._filters if text else ():
                if text and await one.refuses(text):
                    raise Filtered("A filter of this server refuses the message.")

    def reply(self) -> FilteredReply:
        """Return a reader of one reply from its first character on; a restarted reply takes a new one."""
        stages = (one.reply() for one in self._filters)
        return FilteredReply([stage for stage in stages if stage is not None])


NO_FILTERS = Filters()
