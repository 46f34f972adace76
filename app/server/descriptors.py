"""How many sockets this process may have open: systems give far fewer than a server needs unless they are asked."""

from __future__ import annotations

import resource

import structlog

SPARE = 256
"""Descriptors for everything but clients: the store's connections, the engine's, the page's files, the logs."""

_log = structlog.get_logger("midstream.service")


def room_for(sockets: int) -> int:
    """Raises the limit of open files as far as it goes; gives how many of so many sockets there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= sockets + SPARE:
        return sockets
    _log.warning("too few open files are allowed", allowed=soft, needed=sockets + SPARE)
    return max(1, soft - SPARE)
