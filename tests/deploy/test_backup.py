"""What deploy/README.md says of backups, run word for word: people talk, all is destroyed, it is put back, and they go on.

The store, the service and the files are real. Docker and systemd have stand-ins, which do here what is asked of them.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.chaos import gateway
from tests.chaos.chat_client import ChatClient, ClientGroup, Device
from tests.chaos.event_checker import Frame
from tests.chaos.store_server import StoreServer
from tests.deploy.reverse_proxy import DEPLOY
from tests.server_process import ServerProcess

SCRIPT = gateway.Script(words=20, pace_s=0.01)
TALKERS = 3
SOME_S = 60.0
PIECES = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
BACK_UP, RESTORE, BACK_UP_EMBEDDED, RESTORE_EMBEDDED = PIECES.findall(
    (DEPLOY / "README.md").read_text().partition("\n## Back up\n")[2]
)
DOCKER = """\
#!/bin/bash
# Stands in for Docker: redis-cli of the store's container, and a container that has the store's volume.
case "$*" in
    "compose -f deploy/compose.yaml exec -T redis redis-cli "*)
        exec 3<>"/dev/tcp/127.0.0.1/$STORE_PORT"
        printf '%s\\r\\nQUIT\\r\\n' "${*:8}" >&3
        cat <&3 ;;
    "run --rm -v midstream_store:/data"*" debian:bookworm-slim sh -c "*)
        command=${@: -1}
        for place in "/data $STORE_FOLDER" "/tmp/store $STORE_FOLDER.copy" "/out $PWD" "/in $PWD"; do
            command=${command//${place% *}/${place#* }}
        done
        exec sh -c "$command" ;;
    *) echo "nobody stands in for: docker $*" >&2; exit 64 ;;
esac
"""


class Machine:
    """A store and a service, and a shell in which Docker has its stand-in. `requested` are commands that the test answers itself."""

    def __init__(self, folder: Path) -> None:
        self.store = StoreServer(_made(folder / "store"))
        environ = {"MIDSTREAM_REDIS_URL": self.store.url, **gateway.UNHURRIED}
        self.service = ServerProcess(_made(folder / "service"), environ, command=gateway.command(SCRIPT))
        self._folder = folder
        docker = _made(folder / "bin") / "docker"
        docker.write_text(DOCKER)
        docker.chmod(0o700)

    def run(self, commands: str) -> None:
        """Runs shell commands as an operator does, who stops at the first that fails."""
        environ = os.environ | {
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            "STORE_PORT": str(self.store.port),
            "STORE_FOLDER": str(self._folder / "store"),
        }
        ended = subprocess.run(
            ["bash", "-euc", commands],
            cwd=self._folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=SOME_S,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout

    def restore(self, commands: Sequence[str]) -> None:
        """Runs the commands of a restore; what compose does to the processes is done here."""
        compose: dict[str, Callable[[], object]] = {
            "down": self.destroy,
            "run --rm midstream restored": self._ready,
            "up -d": self.service.start,
        }
        for command in commands:
            prefix, is_compose, requested = command.partition("docker compose -f deploy/compose.yaml ")
            compose[requested]() if is_compose and not prefix else self.run(command)

    def destroy(self) -> None:
        """Everything is gone that was there."""
        self.service.kill()
        self.store.kill()

    def _ready(self) -> None:
        self.store.start()
        reported = restored(MIDSTREAM_REDIS_URL=self.store.url)
        assert reported == f"{TALKERS} conversations are ready.\n"


def restored(*options: str, **variables: str) -> str:
    """What `midstream restored` says."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")}
    command = [sys.executable, "-m", "app", "restored", *options]
    return subprocess.run(command, env=environ | variables, capture_output=True, text=True, check=True).stdout


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def commands_of(piece: str) -> list[str]:
    """The commands of a piece of shell, one by one."""
    return piece.replace("\\\n", "").strip().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    machine.store.start()
    machine.service.start()
    yield machine
    machine.service.kill()
    machine.store.kill()


@asynccontextmanager
async def clients_running(service: ServerProcess) -> AsyncIterator[ClientGroup]:
    """Some who talk inside the block; behind it each has its last reply."""
    client_group = ClientGroup(
        [ChatClient(f"talker-{number}", lambda: service.ws_url) for number in range(TALKERS)]
    )
    tasks = [asyncio.create_task(chat_client.talk()) for chat_client in client_group.chat_clients]
    yield client_group
    for chat_client in client_group.chat_clients:
        chat_client.stop()
    async with asyncio.timeout(SOME_S):
        await asyncio.gather(*tasks)


async def settled_history(chat_client: ChatClient) -> list[Frame]:
    """The history so far, but for what still runs."""
    history = await chat_client.device.history()
    return [one for one in history if one["status"] != "running"][: 2 * chat_client.ended]


async def send_message(device: Device, words: str) -> str:
    """Say something, and wait for the whole reply; gives the message's id."""
    answer = await device.ask(
        type="send", conversation_id="c", client_msg_id=words, content=words, params={"max_new_tokens": 20}
    )
    assert answer["type"] == "accepted", answer
    turn_id, turns = answer["turn_id"], device.event_checker.turns
    assert await device.until(lambda: turns[turn_id].done is not None)
    return str(answer["message_id"])


async def go_beyond(service: ServerProcess, chat_client: ChatClient) -> None:
    """Another device of the same person goes on, until there are more events than the first one had ever seen."""
    other, numbers = Device(chat_client.device.client_id), count()
    await other.come(service.ws_url)
    while other.event_checker.seq <= chat_client.device.event_checker.seq:
        await send_message(other, f"other-{next(numbers)}")
    assert other.event_checker.faults == []
    await other.leave()


async def comes_back(service: ServerProcess, chat_client: ChatClient, before: list[Frame]) -> None:
    """What was in the backup is there as it was, what was not is told to be gone, and the talk goes on."""
    device = chat_client.device
    gaps = device.event_checker.gaps
    await device.come(service.ws_url)
    history = await device.history()
    assert history[: len(before)] == before
    assert device.event_checker.gaps == gaps + 1
    assert device.event_checker.faults == []
    ids = [one["message_id"] for one in history]
    assert len(set(ids)) == len(ids)
    assert await send_message(device, "behind") not in ids
    assert device.event_checker.faults == []
    assert chat_client.faults == []


async def test_a_backup_under_talk_is_put_back_and_who_saw_more_is_told_so(machine: Machine) -> None:
    async with clients_running(machine.service) as client_group:
        await client_group.go_on()
        before = [await settled_history(chat_client) for chat_client in client_group.chat_clients]
        await asyncio.to_thread(machine.run, BACK_UP)
        await client_group.go_on()
        await client_group.go_on()
    seen = [chat_client.device.event_checker.seq for chat_client in client_group.chat_clients]
    await asyncio.to_thread(machine.restore, commands_of(RESTORE))
    for chat_client, seq in zip(client_group.chat_clients, seen, strict=True):
        assert chat_client.device.event_checker.seq == seq
        await go_beyond(machine.service, chat_client)
    for chat_client, history in zip(client_group.chat_clients, before, strict=True):
        assert len(history) >= 2
        await comes_back(machine.service, chat_client, history)
        await chat_client.leave()


async def test_the_embedded_store_is_copied_and_put_back_while_the_service_is_stopped(tmp_path: Path) -> None:
    service = ServerProcess(tmp_path, gateway.UNHURRIED, command=gateway.command(SCRIPT))
    service.start()
    data = str(tmp_path / "data")

    def run(piece: str) -> None:
        systemd: dict[str, Callable[[], object]] = {"start": service.start, "stop": service.stop}
        for command in commands_of(piece.replace("/var/lib/midstream", data)):
            if requested := re.fullmatch(r"systemctl (\w+) midstream", command):
                systemd[requested[1]]()
            elif command.startswith("systemd-run "):
                output = restored(*command.partition(" /opt/midstream/bin/midstream restored ")[2].split())
                assert output == f"{TALKERS} conversations are ready.\n"
            else:
                subprocess.run(["bash", "-euc", command], cwd=tmp_path, check=True)

    try:
        async with clients_running(service) as client_group:
            await client_group.go_on()
            before = [await settled_history(chat_client) for chat_client in client_group.chat_clients]
        await asyncio.to_thread(run, BACK_UP_EMBEDDED)
        for chat_client in client_group.chat_clients:
            await chat_client.device.come(service.ws_url)
            await send_message(chat_client.device, "one more")
        await asyncio.to_thread(run, RESTORE_EMBEDDED)
        for chat_client, history in zip(client_group.chat_clients, before, strict=True):
            await comes_back(service, chat_client, history)
            await chat_client.leave()
    finally:
        service.kill()
