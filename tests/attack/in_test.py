"""One attack in a test's own event loop, beside a neighbour who reads a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count

import msgspec

from tests.attack.attack import KB, MB, Attack
from tests.attack.attacker_process import Progress, run_attackers
from tests.attack.bystanders import GOOD_ENDS, Bystander, Latencies
from tests.attack.client import Job, Outcome
from tests.attack.registry import ATTACKS
from tests.attack.target import Target, Targets
from tests.chaos.minimal_websocket import Frame

ATTACKERS = 2
WORDS = 20
MOMENT_S = 0.4
SECONDS = 2.0
"""An attack on a guard; both last longer if a busy machine has answered too little so far."""
AT_MOST_S = 26.0
"""Seconds of an attack that has not been answered enough: a busy machine makes no guard wrong."""
PATIENCE_S = 60.0
"""Seconds that a reply may take beside an attack: a busy machine makes no service wrong."""
OWN_BYTES = 24 * MB
"""Bytes that memory may grow by without any attack, on a machine that does other work too."""
TAKES_TURNS = ("all-turns", "many-clients")
IDLE = ("nobody", "nobody-at-the-model")
SILENT = ("silent-sockets", "connect-storm")
"""Attacks whose sockets send nothing."""

_groups = count(200)


class AttackResult(msgspec.Struct, frozen=True):
    """`reply`: all frames of the neighbour's turn; `grown_bytes`: growth of the server's memory from start to end.

    `peak_bytes`: the gateway's peak memory meanwhile, above that of the start.
    """

    outcome: Outcome
    reply: list[Frame]
    grown_bytes: int
    peak_bytes: int

    @property
    def is_whole(self) -> bool:
        """True if the neighbour's reply ended well, and all of its text came before."""
        done, text = self.reply[-1], "".join(one["text"] for one in self.reply if one["type"] == "delta")
        return done["type"] == "done" and done["reason"] in GOOD_ENDS and done["chars"] == len(text) > 0


async def run_beside_reader(
    attack: Attack,
    target: Target,
    *,
    at_least_s: float = MOMENT_S,
    at_most_s: float = AT_MOST_S,
    attackers: int = ATTACKERS,
    enough: Callable[[Outcome], bool] = lambda _: True,
) -> AttackResult:
    """Attack for a moment while a neighbour reads a reply, then on until the answers are `enough`, `at_most_s` in all.

    The moment is counted from the first bytes that the attack sends. AssertionError if it sends none.
    """
    if attack.warm is not None:
        attack.warm()
    job = Job(
        attack=attack.name,
        port=target.port,
        attackers=attackers,
        seconds=at_most_s,
        keys=target.keys[:attackers],
        note=await target.prepared(attack),
    )
    before, peak_before = target.resident_bytes(), target.gateway_peak(anew=True)
    course = Progress()
    attacking = asyncio.create_task(run_attackers(attack, job, course))
    ending = asyncio.create_task(_end(course, partial(_has_begun, attack), at_least_s, enough))
    reply = await read_a_reply(target)
    outcome = await attacking
    ending.cancel()
    assert _has_begun(attack, outcome), "the attack did nothing"
    return AttackResult(outcome, reply, target.resident_bytes() - before, target.gateway_peak() - peak_before)


async def run_attack(
    name: str,
    targets: Targets,
    *,
    attackers: int = 1,
    at_least_s: float = SECONDS,
    at_most_s: float = AT_MOST_S,
    enough: Callable[[Outcome], bool] = lambda _: True,
) -> AttackResult:
    """Run one attack on a fresh server; the neighbour's reply must be complete."""
    if targets.on(ATTACKS[name].ground).has_grown or name in TAKES_TURNS:
        targets.close()
    target = targets.on(ATTACKS[name].ground)
    seen = await run_beside_reader(
        ATTACKS[name],
        target,
        at_least_s=at_least_s,
        at_most_s=at_most_s,
        attackers=attackers,
        enough=enough,
    )
    assert seen.is_whole, seen.reply
    assert enough(seen.outcome), seen.outcome.answers
    return seen


def _has_begun(attack: Attack, seen: Outcome) -> bool:
    if attack.name in SILENT:
        return seen.opened > 0
    return seen.sent_bytes > 0 or attack.name in IDLE


async def _end(
    course: Progress,
    has_begun: Callable[[Outcome], bool],
    at_least_s: float,
    enough: Callable[[Outcome], bool],
) -> None:
    await course.seen(has_begun)
    await asyncio.sleep(at_least_s)
    await course.seen(enough)
    course.over.set()


async def read_a_reply(target: Target) -> list[Frame]:
    """Connect, ask and read to the end. Raises Refused, Dropped, TimeoutError."""
    person = Bystander(next(_groups), 0, target.own_keys[0] if target.own_keys else None, Latencies())
    frames: list[Frame] = []
    with closing(person):
        async with asyncio.timeout(PATIENCE_S):
            await person.come(target.port)
            await person.send("read", "m", WORDS)
            while not frames or frames[-1]["type"] not in ("done", "error"):
                frames.append(await person.socket.get())
    return frames


def most_bytes(attack: Attack, outcome: Outcome) -> int:
    """Return how much the memory may grow."""
    return OWN_BYTES + outcome.sockets * max(attack.cost.limit_bytes, 512 * KB)
