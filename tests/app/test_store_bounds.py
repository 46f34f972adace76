"""All that may be in the store at once fits into its memory, as it is shipped: who raises a bound beyond that has to raise the memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from app.settings import Settings
from connections.authentication.access import TICKET_S
from connections.images import MAX_BYTES
from sessions.limits.bounds import GROUPS_TIMES, MAX_BODY_BYTES, MAX_FRAME_BYTES
from sessions.limits.shares import ADDRESS, group_limit, owner_limit
from sessions.store.embedded import EMBEDDED_BYTES
from sessions.store.images import IMAGE_COSTS
from sessions.store.ledger import COPIES, GROWTH_PART, MESSAGE_BYTES, ONCE_PART, UNSEEN_PART
from tests.deploy.reverse_proxy import DEPLOY

MIB = 1024**2
SETTINGS = Settings()
LONGEST_REPLY = SETTINGS.reply_tokens
"""Tokens; a sender may ask for more where the window is larger."""
UTF8 = 4
"""Bytes of a character at most."""
TICKET_BYTES = 512
ATTACKERS = 8
"""Addresses that ask for as many tickets as they may."""
CONNECTION_BYTES = 256
"""A connection in the sets of its client and its key."""
JOURNAL_BYTES = 166
"""A token in the journal of a reply that readers may resume (docs/operate.md)."""
STORE_SPARE = 2
"""A store's limit relative to what is kept in it (docs/operate.md)."""
BUFFERS = 8 * MIB
"""Buffers of the replicas' connections to the store, lists of running turns, leases, scripts."""


class Shipped(NamedTuple):
    """A store, and the replicas that it is shipped with."""

    bytes: int
    replicas: int


def shipped() -> dict[str, Shipped]:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["redis"]["command"]
    base = DEPLOY / "kubernetes" / "base"
    stateful = next(one for one in documents(base / "redis.yaml") if one["kind"] == "StatefulSet")
    arguments = " ".join(stateful["spec"]["template"]["spec"]["containers"][0]["args"])
    gateway = next(one for one in documents(base / "gateway.yaml") if one["kind"] == "Deployment")
    return {
        "embedded": Shipped(EMBEDDED_BYTES, 1),
        "compose": Shipped(limit_in(compose), 1),
        "kubernetes": Shipped(limit_in(arguments), gateway["spec"]["replicas"]),
    }


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def limit_in(arguments: str) -> int:
    found = re.search(r"--maxmemory (\d+)mb", arguments)
    assert found is not None
    return int(found[1]) * MIB


def reserve_usage(store: Shipped) -> dict[str, float]:
    """What is written beside, or beyond, what growth may fill, with the most of each."""
    longest_reply = LONGEST_REPLY * JOURNAL_BYTES
    return {
        "growth that other replicas have not measured": store.replicas * store.bytes * UNSEEN_PART,
        "replies that run when the store is full": store.replicas * SETTINGS.max_batch * longest_reply,
        "tickets": ATTACKERS * SETTINGS.limits.read_rate * GROUPS_TIMES * TICKET_S * TICKET_BYTES,
        "connections": store.replicas * SETTINGS.max_connections * CONNECTION_BYTES,
        "buffers, lists and leases": BUFFERS,
    }


@pytest.mark.parametrize("name", shipped())
def test_what_is_written_in_a_full_store_fits_into_the_reserve(name: str) -> None:
    store = shipped()[name]
    needed = reserve_usage(store)
    assert sum(needed.values()) <= (1 - GROWTH_PART) * store.bytes, needed
    assert store.replicas <= ONCE_PART, "together they may write as much at once as is free"


LONGEST_MESSAGE = MESSAGE_BYTES + COPIES * min(UTF8 * SETTINGS.max_content_chars, MAX_BODY_BYTES)
SHARES: dict[str, Callable[[int], int]] = {
    "owner": owner_limit,
    "address": partial(group_limit, f"{ADDRESS}192.0.2.7"),
    "key": partial(group_limit, "key:app"),
}


def largest_share(free: int, most: Callable[[int], int]) -> int:
    """Return what somebody has who takes all that a share allows."""
    low, high = 0, free
    while high - low > 1:
        half = (low + high) // 2
        low, high = (half, high) if half <= most(free - half) else (low, half)
    return low


def growth(name: str) -> int:
    return int(shipped()[name].bytes * GROWTH_PART)


@pytest.mark.parametrize("name", shipped())
def test_those_who_take_all_that_they_may_leave_room_for_any_message_of_a_page(name: str) -> None:
    """Larger ones, which only requests can carry, may find a store that attackers have filled to be full."""
    free = growth(name)
    for greedy in ("key", *["address"] * ATTACKERS):
        free -= largest_share(free, SHARES[greedy])
    assert min(owner_limit(free), free // ONCE_PART) >= MESSAGE_BYTES + COPIES * MAX_FRAME_BYTES


@pytest.mark.parametrize("name", shipped())
def test_a_share_has_room_for_all_that_else_has_a_bound_of_its_own(name: str) -> None:
    alone = largest_share(growth(name), owner_limit)
    image = MAX_BYTES + IMAGE_COSTS
    assert alone >= 2 * image + LONGEST_MESSAGE + LONGEST_REPLY * JOURNAL_BYTES
    assert image <= growth(name) // ONCE_PART


def test_an_application_has_room_for_what_is_estimated_for_its_users() -> None:
    """Its key may be the only one; the guide to operation says how to estimate the memory of the store."""
    limit = 1024 * MIB
    assert largest_share(int(limit * GROWTH_PART), SHARES["key"]) >= limit / STORE_SPARE


def test_alerts_fire_before_growth_stops() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    bounds = {
        rule["alert"]: float(rule["expr"].rpartition("> ")[2])
        for rule in rules
        if "store_memory" in rule["expr"]
    }
    assert bounds["MidstreamStoreFills"] < bounds["MidstreamStoreFull"] < GROWTH_PART
