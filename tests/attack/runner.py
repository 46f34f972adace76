"""Runs attacks, each by one attacker and by many: first on a bare socket, as a calm baseline, then on the server."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from tests.attack import bare_socket
from tests.attack.attack import Attack
from tests.attack.attacker_process import serve
from tests.attack.bystanders import Bystanders, Latencies
from tests.attack.client import Job, Outcome
from tests.attack.report import GIVEN_BACK_S, OWN_BYTES, AttackReport, Memory, Trial, figures
from tests.attack.table import progress_line
from tests.attack.target import Target, Targets
from tests.bench.report import Failure, this_machine
from tests.server_process import serving

_SPAWN = multiprocessing.get_context("spawn")
SETTLE_S = 0.3
LOOK_S = 0.1
RAID_S = 30.0
"""Seconds that a raid has to start, and again to end after its time, before it is killed."""
LIMIT_S = 300.0
"""Seconds for one attack by so many attackers, with its start and end."""

Log = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `seconds`: duration of each attack, and of each calm before it."""

    attacks: tuple[Attack, ...]
    attackers: tuple[int, ...]
    seconds: float


def run_attacks(plan: Plan, log: Log) -> AttackReport:
    """Run the attacks; `log` gets a line for each."""
    machine, started = this_machine(), time.monotonic()
    if machine.warning:
        log(machine.warning)
    with (
        tempfile.TemporaryDirectory(prefix="midstream-sink-") as folder,
        closing(Targets()) as targets,
        serving(Path(folder), command=bare_socket.COMMAND) as bare,
    ):
        results = list(_results(plan, bare.port, targets, log))
    return AttackReport(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        seconds=plan.seconds,
        took_s=round(time.monotonic() - started, 1),
        trials=tuple(one for one in results if isinstance(one, Trial)),
        failures=tuple(one for one in results if isinstance(one, Failure)),
    )


def _results(plan: Plan, bare: int, targets: Targets, log: Log) -> Iterator[Trial | Failure]:
    groups = count(1)
    for attack in plan.attacks:
        for attackers in plan.attackers:
            name = f"{attack.name} by {attackers}"
            try:
                stand = _TrialRun(targets.on(attack.ground), bare, groups, plan.seconds)
                trial = uvloop.run(stand.trial(attack, attackers))
            except Exception as error:  # noqa: BLE001 - an attack's boundary: the other attacks still run
                log(traceback.format_exc())
                yield Failure(name, f"{type(error).__name__}: {error}")
                targets.close()
                continue
            log(f"{name}: {progress_line(trial)}")
            if trial.left_something:
                targets.close()
            yield trial


class _TrialRun:
    """The observation of one trial."""

    def __init__(self, target: Target, bare: int, groups: Iterator[int], seconds: float) -> None:
        self._place = target
        self._bare = bare
        self._groups = groups
        self._seconds = seconds

    async def trial(self, attack: Attack, attackers: int) -> Trial:
        """Attack the bare socket, then the server. Raises TimeoutError, and OSError if the server has ended."""
        async with asyncio.timeout(LIMIT_S):
            note = await self._place.prepared(attack)
            job = Job(
                attack=attack.name,
                port=self._place.port,
                attackers=attackers,
                seconds=self._seconds,
                keys=self._place.keys[:attackers],
                note=note,
            )
            raid = await _AttackerProcess.ready(job)
            try:
                calm, bare, _ = await self._beside(raid, self._bare)
                noticed, outcome, (before, peak) = await self._beside(raid, self._place.port)
            finally:
                await raid.end()
            given_back_s, after = await self._given_back(before)
        return Trial(
            attack=attack.name,
            attackers=attackers,
            cost=attack.cost,
            calm=figures(calm),
            attacked=figures(noticed),
            memory=Memory(
                before=before, peak=peak, after=after, given_back_s=given_back_s, counted=outcome.sockets
            ),
            told=outcome.answers,
            sent_bytes=outcome.sent_bytes,
            calm_sent_bytes=bare.sent_bytes,
            opened=outcome.opened,
        )

    async def _beside(self, raid: _AttackerProcess, port: int) -> tuple[Latencies, Outcome, tuple[int, int]]:
        """Return what the neighbours notice, the outcome, and the server's memory before and at its peak."""
        neighbours = Bystanders(self._place.port, self._place.own_keys, group=next(self._groups))
        try:
            await neighbours.come()
            await asyncio.sleep(SETTLE_S)
            watch = _Watch(self._place)
            raid.go(port)
            noticed = await neighbours.notice(self._seconds)
            outcome = await raid.over()
            return noticed, outcome, await watch.over()
        finally:
            await neighbours.leave()

    async def _given_back(self, before: int) -> tuple[float | None, int]:
        """Return the seconds until memory was about back, or None if it was not in time; and the memory by then."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while (now := self._place.resident_bytes()) > before + OWN_BYTES:
            if loop.time() - started > GIVEN_BACK_S:
                return None, now
            await asyncio.sleep(LOOK_S)
        return round(loop.time() - started, 1), now


class _Watch:
    """Watches the server's memory during a block."""

    def __init__(self, target: Target) -> None:
        self._place = target
        self._before = self._peak = target.resident_bytes()
        self._looking = asyncio.create_task(self._look())

    async def over(self) -> tuple[int, int]:
        """Memory before, and at its peak. Raises OSError if the server has ended."""
        if not self._looking.done():
            self._looking.cancel()
        await asyncio.wait([self._looking])
        if not self._looking.cancelled():
            self._looking.result()
        return self._before, max(self._peak, self._place.resident_bytes())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._peak = max(self._peak, self._place.resident_bytes())


class _AttackerProcess:
    """The attackers' process."""

    def __init__(self, job: Job) -> None:
        self._line, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=serve, args=(theirs, job), daemon=True)
        self._process.start()
        theirs.close()

    @classmethod
    async def ready(cls, job: Job) -> _AttackerProcess:
        """Start attackers that wait for `go`. Raises TimeoutError, EOFError."""
        made = cls(job)
        await made._receive()
        return made

    def go(self, port: int) -> None:
        """Begin to attack a port, after the one before."""
        self._line.send(port)

    async def over(self) -> Outcome:
        """Return the outcome. Raises TimeoutError, EOFError."""
        outcome: Outcome = await self._receive()
        return outcome

    async def _receive(self) -> Any:
        if not await asyncio.to_thread(self._line.poll, RAID_S):
            raise TimeoutError("the attackers did not answer")
        return self._line.recv()

    async def end(self) -> None:
        """End the process."""
        self._process.kill()
        await asyncio.to_thread(self._process.join)
        self._line.close()
