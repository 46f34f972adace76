"""Raises the limit of open sockets: by default systems allow far fewer than a server needs."""

from __future__ import annotations

import resource

import structlog

SPARE = 256
"""Descriptors that are not clients: the store's connections, the engine's, the page's files, the logs."""

_log = structlog.get_logger("midstream.service")


def raise_file_limit(sockets: int) -> int:
    """Raise the limit of open files as far as allowed; return how many of the wanted sockets fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= sockets + SPARE:
        return sockets
    _log.warning("open file limit too low", allowed=soft, needed=sockets + SPARE)
    return max(1, soft - SPARE)
