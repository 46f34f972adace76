"""Fixtures for every floor: a real store, a real server."""

from __future__ import annotations

import os
import ssl
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import certifi
import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis
from xdist.remote import Producer

from sessions.limits import quotas
from sessions.running import runner
from sessions.store import journal
from sessions.store.client import connect
from sessions.store.embedded import embedded_store
from sessions.tools import function_tools
from tests.coverage_tracing import coverage_enabled, disable_coverage
from tests.debian_packages import missing
from tests.server_process import ServerProcess, serving
from tests.xdist_scheduling import SharedServerScheduling

for name in ("NO_PROXY", "no_proxy"):  # a proxy may be needed for packages; loopback is no business of its
    os.environ[name] = "127.0.0.1,localhost"

if not Path(
    "/dev/nvidiactl"
).exists():  # said before torch imports Triton: without a device its kernels are interpreted
    os.environ["TRITON_INTERPRET"] = "1"


# Rich shows the locals of each frame, which takes a second for a service's.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback

# A machine that is busy with other things makes no property false. `make test` tries fewer examples than the CI.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("any pace"), max_examples=30)
settings.load_profile("any pace")

HERE = Path(__file__).parent
MOST_WORKERS = 4
"""Each has torch, and servers and a browser beside it: some 2 GB."""
LONG = frozenset(
    {
        "attack",
        "bench",
        "browser",
        "chaos",
        "deploy",
        "e2e",
        "test_fleet.py",
        "upstream",
        "loading",
        "process",
        "upstreams",
    }
)
"""Folders whose tests wait for processes and pages. Begun last, one file of them would keep a worker busy alone."""

TAKE_LONG = frozenset(
    {
        "app/test_bundled_translator.py",
        "app/test_cli.py",
        "app/test_conversion.py",
        "app/test_memory.py",
        "app/test_realtime_audio.py",
        "app/test_speech_models.py",
        "app/test_voice.py",
        "attack/test_attacks_on_every_endpoint.py",
        "attack/test_attacks_on_the_gateway.py",
        "attack/test_guards.py",
        "bench/engine/test_engine.py",
        "bench/test_peers.py",
        "bench/test_smoke.py",
        "browser/test_ai_sdk.py",
        "browser/test_axe.py",
        "browser/test_embedding.py",
        "browser/test_streaming_markdown.py",
        "browser/test_images.py",
        "browser/test_live_translation.py",
        "browser/test_over_tls.py",
        "browser/test_reload.py",
        "browser/test_voice.py",
        "chaos/test_fuzzers.py",
        "chaos/test_replicas.py",
        "clients/test_realtime_voice_clients.py",
        "demo_translator/test_checkpoint.py",
        "deploy/test_backup.py",
        "deploy/test_gateway_wheel.py",
        "deploy/test_monitoring.py",
        "deploy/test_release.py",
        "deploy/test_rolling_restart.py",
        "deploy/test_smuggling.py",
        "deploy/test_wheel.py",
        "e2e/test_crashes.py",
        "e2e/test_continue.py",
        "e2e/test_full_store.py",
        "e2e/test_images.py",
        "e2e/test_replicas.py",
        "e2e/test_speech.py",
        "e2e/test_status.py",
        "engine/loading/test_equivalence.py",
        "engine/model/test_cpu_kernels.py",
        "engine/model/test_cuda_compiling.py",
        "engine/model/test_cuda_kernels.py",
        "engine/execution/test_cuda_core.py",
        "engine/test_fleet.py",
        "engine/upstream/test_launched.py",
        "engine/process/test_client.py",
        "engine/prompts/test_worker.py",
        "midstream/terminal/test_pipe.py",
        "sessions/tools/test_rogue_servers.py",
        "speech/models/test_streaming_recognizers.py",
    }
)
"""What takes a quarter of a minute of a processor or more: `make test-long` and the CI run it, `make test` does not."""


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: about half of the time tests wait for processes that wait for something, too.

    Another one gains 2 % on two cores, which are full then, and delays what tests wait for.
    """
    return min((os.cpu_count() or 1) + 1, MOST_WORKERS)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedServerScheduling | None:
    """Have one worker start the server that many files share, where whole files are given to workers."""
    return SharedServerScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long are marked, and begun first, so that all workers end at about the same time."""
    for item in items:
        if item.path.relative_to(HERE).as_posix() in TAKE_LONG:
            item.add_marker("long")
    tests_of = Counter(item.path for item in items)
    items.sort(
        key=lambda item: (LONG.isdisjoint(item.path.relative_to(HERE).parts), -tests_of[item.path], item.path)
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say last what was not tested, and which packages would change that."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = [report.longrepr for report in reporter.stats.get("skipped", ())]
    reasons = Counter(str(why[2]).removeprefix("Skipped: ") for why in skipped if isinstance(why, tuple))
    if reasons:
        listed = "; ".join(f"{count} of “{reason[:80]}”" for reason, count in reasons.most_common())
        reporter.write_line(f"Not tested: {listed}.")
    if reasons and (packages := [*missing()]):
        reporter.write_line(f"Packages for more of them: sudo apt-get install {' '.join(packages)}")


@pytest.fixture(scope="session", autouse=True)
def trace_selected() -> None:
    """Coverage follows those processes alone that say so."""
    disable_coverage()


@pytest.fixture(scope="session", autouse=True)
def installed_once() -> Iterator[None]:
    """What is installed is looked up once for each path: thousands of tests start a service, and a look takes 9 ms."""
    look_up = cache(lambda group, _: entry_points(group=group))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(function_tools, "entry_points", lambda *, group: look_up(group, tuple(sys.path)))
        yield


@pytest.fixture(scope="session", autouse=True)
def trusted_once() -> Iterator[None]:
    """The certificates that HTTP clients trust are read once: each of thousands of clients would take 46 ms for them."""
    create, trusted = ssl.create_default_context, {"cafile": certifi.where()}
    once = cache(lambda: create(cafile=certifi.where()))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            ssl,
            "create_default_context",
            lambda *named, **given: once() if given == trusted and not named else create(*named, **given),
        )
        yield


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow store, but where a test is about slow ones."""
    for module in (runner, journal):
        monkeypatch.setattr(module, "PATIENCE_S", 10.0)
    monkeypatch.setattr(quotas, "TIMEOUT_S", 10.0)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server with the demo model, shared by tests that leave it as it is. Use a `client_id` of your own."""
    with ExitStack() as stack:
        with coverage_enabled():
            shared = stack.enter_context(serving(tmp_path_factory.mktemp("server")))
        yield shared


@pytest.fixture(scope="session")
def restartable_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server behind `own_server`."""
    with serving(tmp_path_factory.mktemp("own_server")) as hardy:
        yield hardy


@pytest.fixture
def own_server(restartable_server: ServerProcess) -> ServerProcess:
    """A running server that the test may stop, kill and restart. Others did so before: use a `client_id` of your own."""
    restartable_server.bring_back()
    return restartable_server


@pytest.fixture
def client_id() -> str:
    """An id that no other test has."""
    return f"test-{uuid.uuid4().hex}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_store_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The URL of the embedded store behind `store_url`."""
    async with embedded_store(tmp_path_factory.mktemp("shared")) as url:
        yield url


@pytest.fixture
async def store_url(shared_store_url: str) -> str:
    """The URL of an empty store that is left running, and set as it was."""
    async with connect(shared_store_url) as client:
        await client.flushall()
        await client.script_flush()
    return shared_store_url


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Redis]:
    """A client of an empty store."""
    async with connect(store_url) as client:
        yield client
