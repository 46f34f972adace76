"""Many concurrent conversations: a constant number, or random arrivals. Bounded in number and in time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from itertools import count
from time import monotonic
from typing import Any

from midstream.bench.plan import Plan, arrivals, script
from midstream.bench.results import Results
from midstream.bench.simulated_user import Server, run_conversation

BETWEEN_S = 0.005
"""Seconds between the first connections of a constant number: all at once would only measure their arrival."""
LOOK_S = 0.1


class LoadGenerator:
    """Conversations with one server, according to a plan. Run it once."""

    def __init__(self, url: str, key: str | None, plan: Plan) -> None:
        self._plan = plan
        self._closing = asyncio.Event()
        self._hurry = asyncio.Event()
        self.results = Results(monotonic())
        self._server = Server(url=url, key=key, plan=plan, results=self.results, closing=self._closing)
        self._run = f"bench-{secrets.token_hex(4)}"
        self._numbers = count()
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """End it now: send no more messages, and give up running replies."""
        self._closing.set()
        self._hurry.set()

    async def run(self) -> None:
        """Talk until the time is over, then let replies end. Leaves no task behind."""
        self.results.begun = monotonic()
        closing = asyncio.get_running_loop().call_later(self._plan.duration_s, self._closing.set)
        sampling = asyncio.create_task(self._sample_lag())
        try:
            await self._come()
            await self._closing.wait()
            self.results.ended_at = max(self.results.ended_at, monotonic())
            await self._leave()
        finally:
            closing.cancel()
            sampling.cancel()
            await self._give_up()

    async def _come(self) -> None:
        if self._plan.rate is not None:
            await self._arrive(self._plan.rate)
            return
        for _ in range(self._plan.concurrency or 1):
            self._begin(self._one_after_the_other())
            if not await self._server.pause(BETWEEN_S):
                return

    async def _arrive(self, rate: float) -> None:
        """Begin conversations as a Poisson process, however slow the server is: waiting for it would lower the load.

        Who was due while this program lagged comes late, or is left out as others are; after the end nobody comes.
        """
        random, due = arrivals(self._plan), self.results.begun
        ends = due + self._plan.duration_s
        while (due := due + random.expovariate(rate)) < ends:
            begins = await self._server.pause(due - monotonic())
            if self._hurry.is_set():
                return
            if len(self._tasks) >= self._plan.at_most:
                self.results.left_out += 1
            elif begins:
                self._begin(self._next())

    async def _one_after_the_other(self) -> None:
        while not self._closing.is_set():
            await self._next()

    async def _next(self) -> None:
        number = next(self._numbers)
        await run_conversation(self._server, f"{self._run}-{number}", script(self._plan, number))

    def _begin(self, conversation: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(conversation)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self) -> None:
        """Wait for running replies, as long as the plan says, or until the run is stopped."""
        if self._tasks and not self._hurry.is_set():
            gone = asyncio.create_task(_all_done(self._tasks))
            hurry = asyncio.create_task(self._hurry.wait())
            await asyncio.wait((gone, hurry), timeout=self._plan.drain_s, return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, hurry):
                task.cancel()

    async def _give_up(self) -> None:
        left = list(self._tasks)
        self.results.unfinished = len(left)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _sample_lag(self) -> None:
        """Measure this program's own lag, and count the conversations."""
        while True:
            due = monotonic() + LOOK_S
            await asyncio.sleep(LOOK_S)
            now = monotonic()
            self.results.durations.own_lag.add(max(0.0, now - due))
            self.results.sample(now)


async def _all_done(tasks: set[asyncio.Task[None]]) -> None:
    await asyncio.wait(set(tasks))
