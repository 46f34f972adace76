"""How long a prompt is: counted by the upstream where it can, else estimated."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine.errors import EngineError, PromptRejected
from engine.messages import ErrorCode, Message
from engine.upstream_errors import RequestRefused
from engine.upstream_exchange import Exchange
from engine.upstream_options import UpstreamOptions

log = logging.getLogger(__name__)


async def counted_tokens(
    exchange: Exchange, options: UpstreamOptions, messages: Sequence[Message], path: str, estimate: int
) -> int:
    """Return what the upstream counts at `path`; where it fails to, the estimate: it may serve the request all the same.

    Raises PromptRejected where it refuses the messages.
    """
    try:
        return await exchange.count(tuple(messages), path)
    except RequestRefused as refusal:
        if refusal.code is ErrorCode.CONTEXT_OVERFLOW:
            return max(estimate, options.context_tokens)
        raise PromptRejected(str(refusal)) from refusal
    except EngineError as error:
        log.warning("a prompt's length is estimated, not counted: %s", error)
        return estimate
