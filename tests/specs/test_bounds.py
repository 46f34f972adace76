"""Each bound is written once: PROTOCOL.md's tables have all of them, and the settings' defaults."""

from __future__ import annotations

from operator import attrgetter

import pytest

from app.settings import Settings
from sessions.limits.bounds import BURST_S, Bound
from specs.bounds import CONNECTION_BOUNDS, SHARED_BOUNDS, protocol
from tests.docs.documents import PROTOCOL


def test_the_protocol_shows_the_bounds_of_the_code() -> None:
    text = PROTOCOL.read_text()
    assert protocol(text) == text
    assert protocol(text.replace("| a message | 64 KiB⁷ |", "| a message | 1 KiB |")) == text


def test_a_protocol_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table"):
        protocol("# Wire protocol")


def test_every_bound_that_is_counted_is_shown() -> None:
    assert {bound for *_, bound in CONNECTION_BOUNDS} == {None, *Bound}


@pytest.mark.parametrize(("what", "whose", "shown", "setting", "beyond"), SHARED_BOUNDS)
def test_what_is_shown_is_the_default_of_its_setting(
    what: str, whose: str, shown: str, setting: str, beyond: str
) -> None:
    assert all((what, whose, beyond))
    if not setting or shown.startswith("as many"):
        return
    default = attrgetter(setting)(Settings())
    if setting.endswith("_rate"):
        assert shown == f"{default:g} a second, {default * BURST_S:g} at once"
    else:
        assert shown.partition(", in shares")[0] == ("none" if default is None else f"{default:,}")
