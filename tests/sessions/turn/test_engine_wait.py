"""The engine has its time to confirm a stop once, however often it is asked to stop."""

from __future__ import annotations

import pytest

from sessions.turn.turn import EngineWait


async def test_a_timeout_of_something_else_is_not_taken_for_an_unconfirmed_stop() -> None:
    async def late() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await EngineWait().in_time(late())
