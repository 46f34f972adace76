"""One attack in a test's own event loop, beside a neighbour who reads a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import closing
from itertools import count

import msgspec

from tests.attack import bystanders
from tests.attack.attack import Attack, TargetKind
from tests.attack.attacker_process import Progress, run_attackers
from tests.attack.client import KB, MB, Outcome
from tests.attack.families import ATTACKS
from tests.attack.target import Target, Targets
from tests.chaos.memory import forget_peak, peak_bytes
from tests.chaos.minimal_websocket import Frame
from tests.chaos.server_log import unhandled

ATTACKERS = 2
WORDS = 20
MOMENT_S, SECONDS = 0.4, 2.0
"""An attack without a guard of its own, and one on a guard; both last longer if a busy machine has answered too little so far."""
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
GUARDED = frozenset({
    *("empty-fragments", "unread-pongs", "echoed-pings", "reads-and-pings", "pipelined-requests", "all-turns"),
    *("many-conversations", "many-clients", "unread-history", "oldest-seq", "long-bodies", "many-messages", "large-items"),
    *("long-messages", "long-heads", "read-chains", "long-chains", "unended-messages"),
})  # fmt: skip
"""Attacks on guards of their own, which have tests of their own."""

Enough = Callable[[Outcome], bool]
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
        return (
            done["type"] == "done"
            and done["reason"] in bystanders.GOOD_ENDS
            and done["chars"] == len(text) > 0
        )


def gets(answer: str, times: int = 1) -> Enough:
    """Whether an answer came so often."""
    return lambda seen: seen.answers.get(answer, 0) >= times


def unguarded(grounds: Collection[TargetKind]) -> list[Attack]:
    """Return the attacks on these servers that have no test of their own."""
    return [one for one in ATTACKS.values() if one.ground in grounds and one.name not in GUARDED]


async def run_attack(
    attack: Attack,
    targets: Targets,
    *,
    attackers: int = 1,
    at_least_s: float = SECONDS,
    at_most_s: float = AT_MOST_S,
    enough: Enough | None = None,
) -> AttackResult:
    """Attack while a neighbour reads a reply, then on until the answers are `enough`, `at_most_s` in all.

    Enough is at least what the attack expects. `at_least_s` is counted from the first bytes that it sends. AssertionError if
    it sends none, the reply is not whole, or the server fails or grows.
    """
    if targets.on(attack.ground).has_grown or attack.name in TAKES_TURNS:
        targets.close()
    target = targets.on(attack.ground)
    enough = enough or (lambda seen: attack.expect in " ".join(seen.answers))
    if attack.warm is not None:
        attack.warm()
    job = await target.job(attack, attackers, at_most_s)
    before = target.resident_bytes()
    forget_peak(target.pid)
    peak_before = peak_bytes(target.pid)
    course = Progress()

    def has_begun(seen: Outcome) -> bool:
        return (seen.opened if attack.name in SILENT else seen.sent_bytes) > 0 or attack.name in IDLE

    async def end() -> None:
        await course.seen(has_begun)
        await asyncio.sleep(at_least_s)
        await course.seen(enough)
        course.over.set()

    attacking, ending = asyncio.create_task(run_attackers(attack, job, course)), asyncio.create_task(end())
    reply = await read_a_reply(target)
    outcome = await attacking
    ending.cancel()
    grown, peak = target.resident_bytes() - before, peak_bytes(target.pid) - peak_before
    seen = AttackResult(outcome, reply, grown, peak)
    assert has_begun(outcome), "the attack did nothing"
    assert seen.is_whole, reply
    assert enough(outcome), outcome.answers
    assert grown <= OWN_BYTES + outcome.sockets * max(attack.cost.limit_bytes, 512 * KB)
    assert "HTTP 500" not in outcome.answers
    assert unhandled(target.server.log) == []
    return seen


async def read_a_reply(target: Target) -> list[Frame]:
    """Connect, ask and read to the end. Raises Refused, Dropped, TimeoutError."""
    key = target.own_keys[0] if target.own_keys else None
    frames: list[Frame] = []
    async with asyncio.timeout(PATIENCE_S):
        with closing(await bystanders.come(target.port, group=next(_groups), number=0, key=key)) as person:
            await bystanders.send(person, "read", "m", WORDS)
            while not frames or frames[-1]["type"] not in ("done", "error"):
                frames.append(await person.get())
    return frames
