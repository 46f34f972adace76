"""The fake CUDA device notices each way of making the host and the device wait for each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.engine.fake_cuda import CUDA, Launches, fake_cuda

Move = Callable[[Tensor, Tensor], object]

FETCHES: dict[str, Move] = {
    "cpu": lambda device, _: device.cpu(),
    "to": lambda device, _: device.to("cpu"),
    "to, not blocking": lambda device, _: device.to("cpu", non_blocking=True),
    "to, with a dtype": lambda device, _: device.to("cpu", torch.float16),
    "to the device of another": lambda device, host: device.to(host),
    "copy_": lambda device, host: host.copy_(device),
}
SENDS: dict[str, Move] = {
    "to": lambda _, host: host.to(CUDA),
    "to the device of another": lambda device, host: host.to(device),
    "copy_": lambda device, host: device.copy_(host),
    "tensor": lambda _device, _host: torch.tensor([1, 2], device=CUDA),
    "an index on the host": lambda device, host: device[host.long()],
}
READS: dict[str, Move] = {
    "item": lambda device, _: device[0].item(),
    "tolist": lambda device, _: device.tolist(),
    "bool": lambda device, _: bool(device[0] > 0),
    "numpy": lambda device, _: device.numpy(),
    "equal": lambda device, _: torch.equal(device, device),
    "a mask as an index": lambda device, _: device[device > 0],
}


def moved(move: Move) -> Launches:
    with fake_cuda():
        device, host = torch.empty(4, device=CUDA), torch.empty(4)
        with Launches() as launches:
            move(device, host)
    return launches


@pytest.mark.parametrize("fetch", FETCHES.values(), ids=FETCHES)
def test_what_is_fetched_is_counted(fetch: Move) -> None:
    launches = moved(fetch)
    assert launches.sent == {"fetched": 1}
    assert launches.total == 0


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_what_is_sent_is_counted(send: Move) -> None:
    assert moved(send).sent == {"sent": 1}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_numbers_on_the_device_cannot_be_read(read: Move) -> None:
    with pytest.raises(RuntimeError):
        moved(read)


def test_what_stays_on_a_device_is_not_counted() -> None:
    launches = moved(lambda device, host: (device.to(CUDA, torch.float16), device + 1, host.cpu(), host + 1))
    assert not launches.sent
    assert launches.total == 2
