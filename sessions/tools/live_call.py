"""One call under way: what its tool may ask and tell, for as long as somebody waits for the call."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from sessions.tools.forms import MESSAGE_CHARS, FormRefused, form_of, misfit
from sessions.tools.patience import Patience
from sessions.tools.places import Place
from sessions.tools.progress_feed import ProgressFeed
from sessions.tools.server_tool import Accepted, Answer, CallContext, Dismissed, Elicitation, ToolFailed

MOST_QUESTIONS = 8
"""That one call may ask its user."""


class LiveCall:
    """A call whose tool runs. Once it is over nothing of its tool reaches anybody."""

    def __init__(self, context: CallContext, *, place: Place, patience: Patience) -> None:
        self.place = place
        self.over = asyncio.Event()
        self._given = context
        self._patience = patience
        self._feed = ProgressFeed(context.progress)
        self._questions = 0
        self._asking: set[asyncio.Future[Answer]] = set()
        self.context: CallContext = msgspec.structs.replace(
            context, elicit=self._elicit, progress=self._feed.tell
        )
        """What the tool is given."""

    def close(self) -> None:
        """Nobody waits any more: what is being asked is dismissed, and no progress is heard."""
        self.over.set()
        self._feed.close()
        for asking in self._asking:
            asking.cancel()

    async def _elicit(self, elicitation: Elicitation) -> Answer:
        """Ask the user, while the call's clock stands still.

        Raises ToolFailed for a form that is not served, for too many questions, and for an answer that does not fit.
        """
        self._questions += 1
        if self._questions > MOST_QUESTIONS:
            raise ToolFailed(f"A call may ask {MOST_QUESTIONS} questions.")
        try:
            form = form_of(elicitation.schema)
        except FormRefused as refusal:
            raise ToolFailed(str(refusal)) from None
        message = elicitation.message.encode("utf-8", "replace").decode()[:MESSAGE_CHARS]
        answer = await self._answer(Elicitation(message=message, schema=elicitation.schema))
        if isinstance(answer, Accepted) and (wrong := misfit(form, answer.content)) is not None:
            raise ToolFailed(f"The user's answer does not fit the form: {wrong}.")
        return answer

    async def _answer(self, elicitation: Elicitation) -> Answer:
        """Wait for an answer; the end of the call dismisses the question, whichever task asks."""
        if self.over.is_set():
            return Dismissed()
        asking: asyncio.Future[Any] = asyncio.ensure_future(self._given.elicit(elicitation))
        self._asking.add(asking)
        try:
            with self._patience.paused():
                await asyncio.wait({asking})
        finally:
            asking.cancel()
            self._asking.discard(asking)
        return Dismissed() if asking.cancelled() else asking.result()
