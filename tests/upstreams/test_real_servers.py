"""Another process of this service as an upstream; the other servers are in `make test-upstreams`."""

from __future__ import annotations

from tests.server_process import ServerProcess
from tests.upstreams.real_servers import CANCELS, measure_peer, peer_of


async def test_another_midstream_replies_and_has_nothing_to_do_after_each_cancel(
    server: ServerProcess,
) -> None:
    result = await measure_peer(peer_of(server))
    assert result.text.startswith("I am a small demo model")
    assert result.tokens == 17, "as it told"
    assert len(result.idle_s) == CANCELS
