"""Runs attacks, each by one attacker and by many: first on a bare socket, as a calm baseline, then on the server."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from itertools import count, product, starmap
from pathlib import Path

import msgspec
import uvloop

from tests.attack import bare_socket
from tests.attack.attack import Attack
from tests.attack.attacker_process import attack_here, set_up
from tests.attack.bystanders import Bystanders, Latencies
from tests.attack.client import Job, Outcome
from tests.attack.report import GIVEN_BACK_S, OWN_BYTES, AttackReport, Figures, Memory, Trial
from tests.attack.target import Target, Targets
from tests.bench.report import Failure, say
from tests.server_process import serving

SETTLE_S = 0.3
LOOK_S = 0.1
LIMIT_S = 300.0
"""Seconds for one attack by so many attackers, with its start and end."""


def run_attacks(attacks: Sequence[Attack], attackers: Sequence[int], seconds: float) -> AttackReport:
    """Run attacks by so many attackers each, for so long, and a calm of that length before."""
    report, started = AttackReport(seconds=seconds), time.monotonic()
    say(report.machine.warning)
    with (
        tempfile.TemporaryDirectory(prefix="midstream-sink-") as folder,
        closing(Targets()) as targets,
        serving(Path(folder), command=bare_socket.COMMAND) as bare,
    ):
        trials = _Trials(targets, bare.port, seconds)
        for result in starmap(trials.run, product(attacks, attackers)):
            if isinstance(result, Trial):
                report.trials.append(result)
            else:
                report.failures.append(result)
    report.took_s = round(time.monotonic() - started, 1)
    return report


class _Trials:
    """The observation of trials, one after the other. `bare`: the bare socket's port."""

    def __init__(self, targets: Targets, bare: int, seconds: float) -> None:
        self._targets, self._bare, self._seconds = targets, bare, seconds
        self._groups: Iterator[int] = count(1)

    def run(self, attack: Attack, attackers: int) -> Trial | Failure:
        """Attack a server that is as it was before the last attack."""
        name = f"{attack.name} by {attackers}"
        try:
            trial = uvloop.run(self._trial(self._targets.on(attack.ground), attack, attackers))
        except Exception as error:  # noqa: BLE001 - an attack's boundary: the other attacks still run
            say(traceback.format_exc())
            self._targets.close()
            return Failure(name, f"{type(error).__name__}: {error}")
        say(f"{name}: {trial.progress}")
        if trial.left_something:
            self._targets.close()
        return trial

    async def _trial(self, target: Target, attack: Attack, attackers: int) -> Trial:
        """Attack the bare socket, then the server. Raises TimeoutError, and OSError if the server has ended."""
        spawn = multiprocessing.get_context("spawn")
        job = await target.job(attack, attackers, self._seconds)
        with ProcessPoolExecutor(1, spawn, set_up, (attack.name,)) as pool:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.wrap_future(pool.submit(int))  # once it is set up
                on_bare = msgspec.structs.replace(job, port=self._bare)
                calm, *_ = await self._beside(target, pool, on_bare)
                noticed, outcome, (before, peak) = await self._beside(target, pool, job)
                given_back_s = await self._given_back(target, before)
        return Trial(
            attack=attack.name,
            attackers=attackers,
            cost=attack.cost,
            calm=Figures.of(calm),
            attacked=Figures.of(noticed),
            memory=Memory(before=before, peak=peak, given_back_s=given_back_s, counted=outcome.sockets),
            told=outcome.answers,
        )

    async def _beside(
        self, target: Target, pool: ProcessPoolExecutor, job: Job
    ) -> tuple[Latencies, Outcome, tuple[int, int]]:
        """Return what the neighbours notice, the outcome, and the server's memory before and at its peak."""
        neighbours = Bystanders(target.port, target.own_keys, group=next(self._groups))
        sizes = [target.resident_bytes()]

        async def watch() -> None:
            while True:
                await asyncio.sleep(LOOK_S)
                sizes.append(target.resident_bytes())

        watching = None
        try:
            await neighbours.come()
            await asyncio.sleep(SETTLE_S)
            sizes[:] = [target.resident_bytes()]
            watching = asyncio.create_task(watch())
            attacking = asyncio.wrap_future(pool.submit(attack_here, job))
            noticed = await neighbours.notice(self._seconds)
            outcome = await attacking
            sizes.append(target.resident_bytes())
            return noticed, outcome, (sizes[0], max(sizes))
        finally:
            if watching is not None:
                watching.cancel()
            await neighbours.leave()

    async def _given_back(self, target: Target, before: int) -> float | None:
        """Return the seconds until memory was about back, or None if it was not in time."""
        started = time.monotonic()
        while target.resident_bytes() > before + OWN_BYTES:
            if time.monotonic() - started > GIVEN_BACK_S:
                return None
            await asyncio.sleep(LOOK_S)
        return round(time.monotonic() - started, 1)
