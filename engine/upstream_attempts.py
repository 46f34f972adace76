"""Attempts at requests: each in its turn, once the upstream is there, and noted in what is known and counted of it."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import EngineBusy, EngineError
from engine.open_request import OpenRequest
from engine.places import Places
from engine.upstream_counts import UpstreamCounts
from engine.upstream_errors import RequestRefused
from engine.upstream_exchange import Exchange, Wanted
from engine.upstream_options import UpstreamOptions
from engine.upstream_reply import Completion
from engine.upstream_watch import UpstreamWatch


class Attempts:
    """Asks one upstream, no more at once than it runs well. Knows nothing of what comes behind a failure."""

    def __init__(
        self, exchange: Exchange, watch: UpstreamWatch, counts: UpstreamCounts, options: UpstreamOptions
    ) -> None:
        """Take who asks, who keeps in mind what the answers say of the upstream, and where failures are counted."""
        self._exchange = exchange
        self._watch = watch
        self._counts = counts
        self._patience_s = options.timeouts.patience_s
        self._places: Places[OpenRequest] = Places(options.max_requests, OpenRequest.wait_at)

    async def make(self, opened: OpenRequest) -> None:
        """Ask once, and tell what comes. Raises EngineError where that is not a whole reply, RequestRefused."""
        try:
            await self._watch.life.ready(self._patience_s)
            await self._places.enter(opened)
            try:
                with self._watch.attempt() as circuit:
                    await self._ask(opened, circuit.answered)
            finally:
                self._places.leave(opened)
        except RequestRefused:
            raise
        except EngineError as error:
            self._counts.failures += opened.sent and not isinstance(error, EngineBusy)
            self._counts.shed += opened.sent and isinstance(error, EngineBusy)
            opened.sent = False
            raise

    async def _ask(self, opened: OpenRequest, answered: Callable[[], None]) -> None:
        opened.sent = True

        def hear(chunk: Completion) -> Wanted:
            wanted = opened.hear(chunk)
            if opened.said:
                answered()
            return wanted

        try:
            await self._exchange.reply(opened.request, opened.reply.max_new_tokens, hear)
        except EngineError:
            if not opened.reply.ended:
                raise
