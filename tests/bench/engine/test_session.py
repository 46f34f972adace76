"""Rounds, failures and the time budget, with a clock of the test."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.bench.engine.budget import Budget
from tests.bench.engine.plan import FULL
from tests.bench.engine.report import Failure
from tests.bench.engine.session import Session
from tests.bench.engine.worker_pool import WorkerPool
from tests.bench.processes import MeasurementFailed


def session(folder: Path, **changes: float) -> Session:
    plan = msgspec.structs.replace(FULL, **changes)
    return Session(plan, WorkerPool(folder), Budget(plan.budget_s, lambda: 0.0), lambda _line: None)


def test_a_budget_lets_everything_run_once_and_again_while_it_fits() -> None:
    now = 0.0
    budget = Budget(10.0, lambda: now)
    assert budget.allows("long")
    budget.took("long", 6.0)
    assert budget.allows("long")
    now = 5.0
    assert not budget.allows("long")
    assert budget.left_s == 5.0
    budget.took("long", 2.0)
    assert budget.allows("long", kept_s=3.0)
    assert not budget.allows("long", kept_s=3.5)
    assert budget.allows("new")


def test_all_rounds_are_done_in_turns(tmp_path: Path) -> None:
    done: list[tuple[str, int]] = []
    session(tmp_path, rounds=2).turns("race", ("a", "b"), lambda who, number: done.append((who, number)))
    assert done == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_without_time_each_gets_one_round_and_that_is_said(tmp_path: Path) -> None:
    poor = session(tmp_path, budget_s=-1.0)
    assert poor.rounds("walk", lambda number: number) == [0]
    assert poor.cuts == ["walk: 1 of 3 rounds"]


def test_what_took_long_is_not_repeated(tmp_path: Path) -> None:
    assert session(tmp_path, repeat_s=-1.0).rounds("walk", lambda number: number) == [0]


def test_one_that_fails_is_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    done: list[str] = []

    def act(who: str, number: int) -> None:
        if who == "a":
            raise MeasurementFailed("it fell")
        done.append(who)

    race = session(tmp_path)
    race.turns("race", ("a", "b"), act)
    assert race.failures == [Failure("a, race", "it fell")]
    assert done == ["b"] * FULL.rounds
    assert race.once("walk", lambda: 5) == 5
