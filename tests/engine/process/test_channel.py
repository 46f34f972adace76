"""Messages come out of the socket as they went in, however its bytes are split."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import (
    BlockingChannel,
    Cancel,
    CountRequest,
    Message,
    Params,
    Ping,
    Pong,
    Request,
    ToEngine,
    Unpacker,
    pack,
)

messages = st.one_of(
    st.builds(Cancel, st.text()),
    st.builds(Ping, st.integers(0, 1 << 60)),
    st.builds(CountRequest, st.integers(0, 9), st.tuples(st.builds(Message, st.just("user"), st.text()))),
)
decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)


@given(st.lists(messages), st.integers(1, 50))
def test_any_split_of_the_bytes_gives_the_same_messages(sent: list[ToEngine], size: int) -> None:
    stream = b"".join(pack(message) for message in sent)
    unpacker = Unpacker()
    received = [
        decoder.decode(body)
        for start in range(0, len(stream), size)
        for body in unpacker.feed(stream[start : start + size])
    ]
    assert received == sent


def test_a_lone_surrogate_does_not_leave_the_gateway() -> None:
    with pytest.raises(UnicodeEncodeError):
        pack(Cancel("\ud800"))


def test_a_request_crosses_a_real_socket_and_the_end_is_told() -> None:
    gateway, engine = socket.socketpair()
    request = Request("r", (Message("user", "x" * 1_000_000),), Params(stop=("a",), seed=3))
    with gateway, engine:
        received: list[ToEngine] = []
        channel = BlockingChannel(engine, decoder)
        reader = threading.Thread(target=lambda: received.extend(channel.receive()))
        reader.start()
        gateway.sendall(pack(request))
        gateway.shutdown(socket.SHUT_WR)
        reader.join()
        channel.send(Pong(1))
        assert gateway.recv(100) == pack(Pong(1))
    assert received == [request]
