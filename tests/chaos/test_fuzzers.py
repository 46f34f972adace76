"""The thin client follows RFC 6455; the odd ones send varied input, the same for the same seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from tests.bench.report import Measured
from tests.chaos import fuzz
from tests.chaos.minimal_websocket import framed, take_frame
from tests.chaos.odd_input import WEBSOCKETS, odd_frame, odd_handshake
from tests.chaos.scenario import QUICK, Scenario
from tests.chaos.server_log import unhandled


@given(st.binary(max_size=300) | st.integers(126, 70_000).map(bytes))
def test_a_frame_of_the_thin_client_is_read_by_another_library_and_the_other_way_round(
    payload: bytes,
) -> None:
    server = Protocol(Side.SERVER, max_size=None)
    server.receive_data(framed(payload, opcode=Opcode.BINARY))
    assert server.events_received() == [Frame(Opcode.BINARY, payload)]
    whole = Frame(Opcode.TEXT, payload).serialize(mask=False)
    assert take_frame(bytearray(whole[:-1])) is None
    assert take_frame(bytearray(whole)) == (Opcode.TEXT, payload)


@pytest.mark.parametrize("make", [odd_frame, odd_handshake])
def test_what_is_odd_repeats_with_its_seed(make: Callable[[Random], bytes]) -> None:
    made = [make(Random(seed)) for seed in range(50)]
    assert made == [make(Random(seed)) for seed in range(50)]
    assert len(set(made)) > 40
    assert all(len(endpoint.honest) > 10 for endpoint in WEBSOCKETS)


@pytest.mark.parametrize("fuzz_with", [fuzz.frames, fuzz.handshakes, *fuzz.ENDPOINTS.values()])
async def test_nonsense_leaves_no_error_and_no_connection_without_an_answer(
    fuzz_with: Callable[[Scenario], Awaitable[Sequence[Measured]]], tmp_path: Path
) -> None:
    found = await fuzz_with(Scenario(scale=QUICK, folder=tmp_path, seed=1))
    assert [f"{one.label}: {one.note}" for one in found if one.is_about_faults and not one.met] == []


def test_errors_are_found_in_a_log_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        'Midstream is ready: http://127.0.0.1:1\nreading the weights (10%)\n{"event":"a","level":"warning"}\n\n'
        '{"event":"b","level":"error"}\n{"event":"c","level":"info","exception":"x\\nLookupError"}\nTraceback\n'
    )
    assert unhandled(log) == ["b ", "c LookupError", "Traceback"]
