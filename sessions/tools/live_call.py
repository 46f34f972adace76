"""A call while its tool runs: the tool may ask the user and report progress while somebody waits."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from sessions.tools.forms import MESSAGE_CHARS, UnsupportedForm, form_of, validation_error
from sessions.tools.pausable_timeout import PausableTimeout
from sessions.tools.progress_feed import ProgressFeed
from sessions.tools.server_tool import Accepted, Answer, CallContext, Dismissed, Elicitation, ToolFailed
from sessions.tools.slots import Slot

MOST_QUESTIONS = 8
"""Questions that one call may ask its user."""


class LiveCall:
    """A call whose tool runs. Once it is over, its tool reaches nobody."""

    def __init__(self, context: CallContext, *, slot: Slot, time_limit: PausableTimeout) -> None:
        self.slot = slot
        self.over = asyncio.Event()
        self._context = context
        self._time_limit = time_limit
        self._feed = ProgressFeed(context.progress)
        self._questions = 0
        self._open_questions: set[asyncio.Future[Answer]] = set()
        self.context: CallContext = msgspec.structs.replace(
            context, elicit=self._elicit, progress=self._feed.report
        )
        """The context for the tool."""

    def close(self) -> None:
        """End the call, since nobody waits for it: open questions are dismissed, and progress is ignored."""
        self.over.set()
        self._feed.close()
        for question in self._open_questions:
            question.cancel()

    async def _elicit(self, elicitation: Elicitation) -> Answer:
        """Ask the user, and stop the call's clock meanwhile.

        Raises ToolFailed for an unsupported form, for too many questions, and for an answer that does not fit.
        """
        self._questions += 1
        if self._questions > MOST_QUESTIONS:
            raise ToolFailed(f"A call may ask {MOST_QUESTIONS} questions at most.")
        try:
            form = form_of(elicitation.schema)
        except UnsupportedForm as refusal:
            raise ToolFailed(str(refusal)) from None
        message = elicitation.message.encode("utf-8", "replace").decode()[:MESSAGE_CHARS]
        answer = await self._answer(Elicitation(message=message, schema=elicitation.schema))
        if isinstance(answer, Accepted) and (wrong := validation_error(form, answer.content)) is not None:
            raise ToolFailed(f"The user's answer does not fit the form: {wrong}.")
        return answer

    async def _answer(self, elicitation: Elicitation) -> Answer:
        """Wait for an answer. The end of the call dismisses the question, whichever task asks it."""
        if self.over.is_set():
            return Dismissed()
        question: asyncio.Future[Any] = asyncio.ensure_future(self._context.elicit(elicitation))
        self._open_questions.add(question)
        try:
            with self._time_limit.paused():
                await asyncio.wait({question})
        finally:
            question.cancel()
            self._open_questions.discard(question)
        return Dismissed() if question.cancelled() else question.result()
