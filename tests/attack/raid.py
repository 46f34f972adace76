"""`python -m tests.attack.raid JOB`: all attackers of one attack, in a process of their own.

An attack is the life of one socket: whenever the server ends it, it rests and begins again. Attackers can reach loopback
alone, and stop after the job's `seconds`, whatever happens.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from itertools import count

import msgspec
import uvloop

from tests.attack.attack import Attack
from tests.attack.attacker import Attacker, Job, Outcome
from tests.attack.registry import ATTACKS
from tests.chaos.thin_socket import Dropped, Refused

COMMAND = "tests.attack.raid"
READY = b"ready\n"
FIRST_CLOSE_CODE = 1000
REST_S = 0.1
"""Rest of a socket that was ended before it comes back."""
BACKSTOP_S = 20
"""Seconds after the job's time; then a signal ends the process."""
NICENESS = 10
"""Attackers give way to the server: the measurement is of the server, not of the fight for a core."""


async def assail(attack: Attack, job: Job) -> Outcome:
    """Attack for as long as the job says."""
    if attack.warm is not None:
        attack.warm()
    outcome = Outcome()
    end = asyncio.get_running_loop().time() + job.seconds
    async with asyncio.TaskGroup() as lives:
        for number in range(job.attackers):
            for place in range(attack.sockets_of(job.attackers)):
                make = partial(Attacker, job, outcome, number=number, place=place)
                lives.create_task(_live(attack, make, end))
    return outcome


async def _live(attack: Attack, make: Callable[..., Attacker], end: float) -> None:
    """Run one socket after the other, until the end."""
    loop, lives = asyncio.get_running_loop(), count()
    with suppress(TimeoutError):
        async with asyncio.timeout_at(end):
            # A task group whose task failed forgets that it was cancelled (Python 3.11), so the time is looked at as well.
            while loop.time() < end:
                with closing(make(life=next(lives))) as me:
                    await _lived(attack, me)
                await asyncio.sleep(REST_S)


async def _lived(attack: Attack, me: Attacker) -> None:
    try:
        await attack.run(me)
        me.told("done")
    except* Refused as refusals:
        _note(me, refusals)
    except* (Dropped, OSError):
        me.told("dropped")


def _note(me: Attacker, refusals: ExceptionGroup[Refused]) -> None:
    for one in refusals.exceptions:
        if isinstance(one, ExceptionGroup):
            _note(me, one)
        else:
            me.told(f"{'HTTP' if one.code < FIRST_CLOSE_CODE else 'closed'} {one.code}")


def _make_room() -> None:
    """Raise the limit of open files to the most that the system allows this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Say ready, wait for a line, attack, and print the outcome."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    signal.alarm(int(job.seconds) + BACKSTOP_S)
    os.nice(NICENESS)
    _make_room()
    if (warm := ATTACKS[job.attack].warm) is not None:
        warm()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    if sys.stdin.readline():
        outcome = uvloop.run(assail(ATTACKS[job.attack], job))
        sys.stdout.buffer.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
