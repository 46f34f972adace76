"""Puts the way of a message in together: from its arrival to what is to run."""

from __future__ import annotations

from sessions.commands.accepting import Acceptor
from sessions.commands.dequeuing import Dequeuer
from sessions.commands.preflight import Preflight
from sessions.commands.queueing import Queue
from sessions.commands.repeating import Repeater
from sessions.commands.sending import Sender
from sessions.observer import Observer
from sessions.replicas.forwarding import Forwarder
from sessions.replicas.watching import Watching
from sessions.running.announcing import Announcer
from sessions.running.ending import EndTeller
from sessions.store.storage import Storage
from sessions.turn.policy import Policy
from sessions.turn.prompt import Prompts


def sender_of(
    storage: Storage,
    *,
    prompts: Prompts,
    policy: Policy,
    observer: Observer,
    watching: Watching,
    forwarder: Forwarder,
) -> Sender:
    """The sender of one replica."""
    history, unsettled = storage.history, storage.unsettled
    announcer = Announcer(ownership=storage.ownership, index=storage.index)
    queue = Queue(
        history=history,
        prompts=prompts,
        announcer=announcer,
        teller=EndTeller(observer),
        at_most=policy.max_queued,
        unsettled=unsettled,
    )
    return Sender(
        preflight=Preflight(history=history, prompts=prompts, filters=policy.filters),
        repeater=Repeater(history=history, watching=watching, unsettled=unsettled),
        acceptor=Acceptor(
            history=history,
            announcer=announcer,
            prompts=prompts,
            replica=storage.ownership.replica,
            unsettled=unsettled,
        ),
        queue=queue,
        dequeuer=Dequeuer(history=history, prompts=prompts, queue=queue),
        forwarder=forwarder,
    )
