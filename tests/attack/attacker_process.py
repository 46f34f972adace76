"""All attackers of one attack: in a test's event loop, or in a process of their own.

An attack is the life of one socket: whenever the server ends it, it rests and begins again. Attackers can reach loopback
alone, and stop after the job's `seconds`, whatever happens.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from itertools import count

import uvloop

from tests.attack.attack import Attack
from tests.attack.client import Attacker, Job, Outcome
from tests.attack.families import ATTACKS
from tests.chaos.minimal_websocket import Dropped, Refused

FIRST_CLOSE_CODE = 1000
REST_S = 0.1
"""Rest of a socket that was ended before it comes back."""
BACKSTOP_S = 20
"""Seconds after the job's time; then a signal ends the process."""
NICENESS = 10
"""Attackers give way to the server: the measurement is of the server, not of the fight for a core."""


class Progress:
    """An attack under way: its outcome so far. It ends with its time, or once it is `over`."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.over = asyncio.Event()
        self._news = asyncio.Event()

    async def seen(self, enough: Callable[[Outcome], bool]) -> None:
        """Wait until the outcome so far is enough."""
        while not enough(self.outcome):
            self._news.clear()
            await self._news.wait()

    def on_news(self) -> None:
        """Note that something was counted."""
        self._news.set()


async def run_attackers(attack: Attack, job: Job, course: Progress | None = None) -> Outcome:
    """Attack for as long as the job says, or until the course is over. The attack is warm."""
    course = course or Progress()
    async with asyncio.TaskGroup() as group:
        lives = []
        for number in range(job.attackers):
            for place in range(attack.sockets_of(job.attackers)):
                make = partial(
                    Attacker, job, course.outcome, number=number, place=place, on_news=course.on_news
                )
                lives.append(group.create_task(_live(attack, make, course.over)))
        with suppress(TimeoutError):
            async with asyncio.timeout(job.seconds):
                await course.over.wait()
        course.over.set()
        for life in lives:
            life.cancel()
    return course.outcome


async def _live(attack: Attack, make: Callable[..., Attacker], over: asyncio.Event) -> None:
    """Run one socket after the other, until the end."""
    lives = count()
    # A task group whose task failed forgets that it was cancelled (Python 3.11), so the end is looked at as well.
    while not over.is_set():
        with closing(make(life=next(lives))) as me:
            try:
                await attack.run(me)
                me.count("done")
            except* Refused as refusals:
                _note(me, refusals)
            except* (Dropped, OSError):
                me.count("dropped")
        await asyncio.sleep(REST_S)


def _note(me: Attacker, refusals: ExceptionGroup[Refused]) -> None:
    for one in refusals.exceptions:
        if isinstance(one, ExceptionGroup):
            _note(me, one)
        else:
            me.count(f"{'HTTP' if one.code < FIRST_CLOSE_CODE else 'closed'} {one.code}")


def set_up(name: str) -> None:
    """Make this process the attackers' of one attack: of low priority, with as many files as it may open, and warm."""
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if (warm := ATTACKS[name].warm) is not None:
        warm()


def attack_here(job: Job) -> Outcome:
    """Attack in this process."""
    signal.alarm(int(job.seconds) + BACKSTOP_S)
    try:
        return uvloop.run(run_attackers(ATTACKS[job.attack], job))
    finally:
        signal.alarm(0)
