"""Whether an engine can follow what is asked of it. Pure."""

from __future__ import annotations

from engine.messages import ModelFacts, Params

_NEUTRAL: dict[str, float] = {"top_k": 0, "repetition_penalty": 1.0}
"""What changes nothing, and may be asked of everyone."""


def not_served(params: Params, facts: ModelFacts) -> str | None:
    """Return the first field that the engine would have to drop; None where it can follow all of them."""
    for name in facts.lacks:
        asked = getattr(params, name)
        if asked is not None and asked != _NEUTRAL.get(name):
            return name
    return None
