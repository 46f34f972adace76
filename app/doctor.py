"""`midstream doctor`: checks everything that the service needs, before it starts or while it runs, and says how to fix it."""

from __future__ import annotations

import asyncio
import shutil
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from enum import Enum
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec
from redis.exceptions import RedisError

from app.models import (
    PACKAGES,
    check_file,
    check_models,
    check_reader,
    converted_folder,
    encoded_options,
    in_cache,
    server_key,
    tables_of,
    weights_of,
    with_folder,
    with_upstreams,
)
from app.parts import durability_of, tool_box_of, web_tokens_of
from app.server import bind, tls_of
from app.settings import Settings, SettingsError, called, in_bytes
from connections.authentication.api_keys import ApiKeyStore, file_of
from connections.protocol.errors import InvalidList
from engine import errors, loading
from engine.errors import EngineError
from engine.loading.preflight import PreflightResult
from engine.machine import free_memory, printable, triton_trouble
from engine.upstream.http_client import http_client
from engine.upstream.monitor import health_error
from engine.upstream.options import UpstreamOptions
from sessions.errors import StoreDown
from sessions.filters.list_filter import InvalidFilters, filters_from
from sessions.store.client import Durability, DurabilityUnsupported, connect
from sessions.store.embedded import EmbeddedStoreFailed, binary
from sessions.store.server_config import checked_server_configs, config_warnings

TORCH_S = 60.0
VERDICT_S = 300.0
ALTERNATIVES = (
    "Use --engine vllm, name a server that has the model by --upstream, or choose a model from docs/models.md. "
    "llama-server serves GGUF files."
)
_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "device": "cuda" if cuda else "cpu",
    "name": torch.cuda.get_device_name() if cuda else "",
    "free": torch.cuda.mem_get_info()[0] if cuda else None,
}))
"""
PATIENCE_S = 5.0


class Verdict(Enum):
    """With `POOR` the service works, with a warning. With `BAD` it does not start, or can't answer."""

    GOOD = "ok"
    POOR = "warning"
    BAD = "error"


class Finding(msgspec.Struct, frozen=True):
    """`subject`: a word or two; `words`: a sentence; `fix`: what to do about it, if anything."""

    subject: str
    verdict: Verdict
    words: str
    fix: str = ""


def good(subject: str, words: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(subject, Verdict.GOOD, words)


def poor(subject: str, words: str, fix: str = "") -> Finding:
    """Return a finding that is a warning."""
    return Finding(subject, Verdict.POOR, words, fix)


def bad(subject: str, words: str, fix: str = "") -> Finding:
    """Return a finding that keeps the service from working."""
    return Finding(subject, Verdict.BAD, words, fix)


def checked(subject: str, check: Callable[[], str | Finding], fix: str = "") -> Finding:
    """Return what a check finds: `check` returns a finding, or words if all is well. Its errors keep the service from working."""
    try:
        found = check()
    except (SettingsError, EngineError, EmbeddedStoreFailed, InvalidFilters, InvalidList, OSError) as error:
        return bad(subject, str(error), fix)
    return good(subject, found) if isinstance(found, str) else found


_COLOURS = {Verdict.GOOD: "green", Verdict.POOR: "yellow", Verdict.BAD: "red"}
_WIDTH = max(len(verdict.value) for verdict in Verdict)


async def report(settings: Settings, *, as_json: bool) -> bool:
    """Print the findings; return whether the service could serve."""
    found = []

    def note(finding: Finding) -> None:
        found.append(finding)
        if not as_json:
            _print_finding(finding)

    for finding in machine(settings):
        note(finding)
    async for finding in network(settings):
        note(finding)
    counts = Counter(finding.verdict for finding in found)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    elif counts[Verdict.BAD] or counts[Verdict.POOR]:
        click.echo(f"{counts[Verdict.BAD]} errors, {counts[Verdict.POOR]} warnings.")
    else:
        click.echo("No errors and no warnings: ready for midstream serve.")
    return not counts[Verdict.BAD]


def _print_finding(finding: Finding) -> None:
    mark = click.style(f"{finding.verdict.value:{_WIDTH}}", fg=_COLOURS[finding.verdict])
    click.echo(f"{mark}  {finding.subject}: {printable(finding.words)}")
    if finding.fix:
        click.echo(f"{'':{_WIDTH}}  → {printable(finding.fix)}")


class Torch(msgspec.Struct, frozen=True):
    """What torch reports. `device`: the best one; `free`: free bytes of a CUDA device."""

    version: str
    device: str
    name: str
    free: int | None


def machine(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about this machine. The finding about torch takes some seconds, in a separate process."""
    folder = converted_folder(settings)
    is_unconverted = folder is not None and not folder.is_dir()
    settings = settings if is_unconverted else with_folder(settings)
    yield good("Python", f"{'.'.join(map(str, sys.version_info[:3]))}, Midstream {version('midstream')}.")
    computes_here = not (settings.lists_models or settings.runs_vllm)
    torch = None
    if computes_here:
        torch, found = _torch(settings)
        yield found
    yield checked("model", partial(_unconverted_model if is_unconverted else _model, settings))
    if computes_here:
        best = "cpu" if torch is None else torch.device
        named = {device.partition(":")[0] for device in settings.devices}
        kinds = {best if kind == "auto" else kind for kind in named}
        yield _kernels(kinds)
        if not is_unconverted:
            yield _memory(settings, torch, kinds)
    yield _port(settings)
    yield checked("authentication", partial(_authentication, settings))
    if settings.tools or settings.tables.keys() & {"filters", "mcp_server"}:
        yield checked("filters and tools", partial(_hooks, settings), "Fix the named file or module.")
    if settings.tls_cert is not None or settings.tls_key is not None:
        yield checked("TLS", partial(_certificate, settings), "Pass a certificate and its key as PEM files.")
    if settings.api_keys is not None:
        fix = "midstream keys add NAME --file FILE makes a file of keys."
        yield checked("keys", partial(_keys, settings.api_keys, fix), fix)


def _run_python(subject: str, *arguments: str, within_s: float, remedy: str) -> str | Finding:
    """Return the output of this Python, or why there is none. `remedy`: what helps if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired:
        why = f"It was not examined within {within_s:g} s."
        return bad(subject, why, "Check the disk, the driver and the network.")
    if done.returncode != 0:
        return bad(subject, f"It can't be loaded: {done.stderr.strip().rpartition(chr(10))[2]}", remedy)
    return done.stdout


def _torch(settings: Settings) -> tuple[Torch | None, Finding]:
    remedy = "Install it: pip install midstream-server; in a checkout: make install."
    output = _run_python("torch", "-c", _TORCH, within_s=TORCH_S, remedy=remedy)
    if isinstance(output, Finding):
        return None, output
    torch = msgspec.json.decode(output, type=Torch)
    wanted = {device.partition(":")[0] for device in settings.devices} - {"auto", "cpu", torch.device}
    if wanted:
        return torch, bad(
            "torch",
            f"{torch.version} finds no {', '.join(sorted(wanted))} here.",
            "Install the driver and a torch that was built for it, or name another --device.",
        )
    return torch, good("torch", f"{torch.version}, on {torch.name or torch.device}.")


def _model(settings: Settings) -> str | Finding:
    check_models(settings)
    if settings.lists_models:
        return f"Replies come from what {settings.config or called('upstream')} names."
    path = Path(settings.model_path)
    if path.is_dir() and not weights_of(path) and not settings.pickled_weights:
        return bad("model", f"{path} has no weights (*.safetensors).", "Copy the model's whole folder.")
    if not (settings.is_bundled or settings.runs_vllm):
        return _verdict(settings)
    if not path.exists() and not in_cache(settings.model_path):
        words = f"{settings.model_path} is fetched at the start."
        return poor("model", words, "The hub must be reachable then.")
    weights = f"{in_bytes(weights_of(path))} of weights" if path.is_dir() else "which is on this machine"
    return f"{settings.model_name}, {weights}."


def _unconverted_model(settings: Settings) -> Finding:
    """Check a model that `serve` will fetch or convert."""
    check_reader(settings.model or "")
    if (package := PACKAGES.get(settings.model or "")) is not None:
        words = f"{settings.model} is fetched at the start ({in_bytes(package.bytes)}) and converted."
        return poor("model", words, "The package index must be reachable then.")
    check_file(settings)
    found = _verdict(settings)
    is_good = found.verdict is Verdict.GOOD
    return good("model", f"It is converted at the start. {found.words}") if is_good else found


def _verdict(settings: Settings) -> Finding:
    """Ask a process with torch whether the model's configuration and tokenizer can be served here."""
    arguments = ("-P", "-m", loading.__package__ or "", "check", encoded_options(settings))
    output = _run_python("model", *arguments, within_s=VERDICT_S, remedy="Please report this.")
    if isinstance(output, Finding):
        return output
    verdict = msgspec.json.decode(output, type=PreflightResult)
    if not verdict.serves:
        return bad("model", verdict.words, ALTERNATIVES)
    folder = Path(settings.model_path)
    kept = folder if folder.exists() else in_cache(settings.model_path)
    if kept is None or not (kept.is_file() or weights_of(kept) or settings.pickled_weights):
        return poor(
            "model",
            f"{verdict.words} Its weights are fetched at the start.",
            "The hub must be reachable then.",
        )
    return good("model", verdict.words)


def _kernels(kinds: set[str]) -> Finding:
    if "cuda" in kinds and (trouble := triton_trouble()):
        reason, remedy = trouble
        return bad("kernels", f"{reason}, so kernels for CUDA can't be compiled.", remedy)
    if "cpu" not in kinds:
        return good("kernels", "The kernels for CUDA can be compiled.")
    if find_spec("._cpu_kernels", errors.__package__) is None:
        return poor(
            "kernels",
            "The kernels for CPUs were not compiled: replies take several times as long.",
            "Install gcc and libc6-dev, then reinstall Midstream.",
        )
    return good("kernels", "The kernels for CPUs are compiled.")


def _memory(settings: Settings, torch: Torch | None, kinds: set[str]) -> Finding:
    """Check the memory. Too little is only a warning: a running service has taken its part already, and weights may be quantized."""
    on_card = torch is not None and kinds == {"cuda"}
    free = torch.free if torch is not None and on_card else free_memory()
    path = Path(settings.model_path)
    folder = path if path.is_dir() else in_cache(settings.model_path)
    weights = weights_of(folder) if folder is not None else 0
    if free is None:
        return poor("memory", "The system does not say how much is free.")
    wanted = weights * len(settings.devices) + (settings.kv_memory or 0)
    where = " on the device" if on_card else ""
    words = f"{in_bytes(free)} free{where}, {in_bytes(weights)} of weights"
    if free < wanted:
        return poor(
            "memory",
            f"{words}: that may not fit.",
            "Choose a smaller model, --quantize int8, or a smaller --kv-memory.",
        )
    if free < 2 * wanted:
        return poor("memory", f"{words}: little is left for conversations.", "Set --kv-memory, or free some.")
    return good("memory", f"{words}.")


def _port(settings: Settings) -> Finding:
    try:
        bind(settings.host, settings.port).close()
    except SettingsError as error:
        return poor("port", str(error), "That is expected if the service is running.")
    return good("port", f"{settings.host}:{settings.port} is free.")


def _authentication(settings: Settings) -> str | Finding:
    web_tokens_of(settings)
    if settings.insecure and not settings.authenticates:
        words = "Anybody who can reach the port may chat."
        return poor("authentication", words, "Make keys: midstream keys add --help.")
    if settings.authenticates:
        return "Clients must authenticate."
    return "There is no authentication, but only this machine can connect."


def _hooks(settings: Settings) -> str:
    """Load the operator's own files and modules."""
    tools = tool_box_of(settings)
    if "filters" in settings.tables:
        filters_from(settings.tables["filters"])
    return f"They can be loaded. Tools that are functions: {len(tools.offered())}."


def _certificate(settings: Settings) -> str:
    tls_of(settings)
    return "The certificate and its key can be used."


def _keys(source: str, fix: str) -> str | Finding:
    found, path = ApiKeyStore(source).keys, file_of(source)
    if path is not None and path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return poor("keys", f"Others may write to {path}.", f"chmod go-w {path}")
    return f"There are {len(found)}." if found else poor("keys", "There are none: nobody can connect.", fix)


async def network(settings: Settings) -> AsyncIterator[Finding]:
    """Yield the findings about the store and the upstreams."""
    if settings.redis_url is None:
        yield checked("store", partial(_embedded, settings))
    else:
        async for finding in _store(settings, settings.redis_url):
            yield finding
    if settings.lists_models:
        try:
            settings = await asyncio.to_thread(with_upstreams, settings)
            upstreams = tables_of(settings).upstream
        except SettingsError as error:
            yield bad("upstreams", str(error))
            return
        for finding in await asyncio.gather(*(_upstream(one) for one in upstreams)):
            yield finding


def _embedded(settings: Settings) -> str | Finding:
    folder, program = Path(settings.data_dir).expanduser(), Path(binary()).name
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        return bad("store", str(error), "Choose another folder with --data-dir.")
    words = f"The embedded one ({program}), in {folder} with {in_bytes(shutil.disk_usage(there).free)} free."
    if durability_of(settings) is Durability.MEMORY:
        words += " A power failure can lose the last two seconds of acknowledged messages."
        return poor("store", words, "Set --store-durability disk.")
    return words


async def _store(settings: Settings, url: str) -> AsyncIterator[Finding]:
    try:
        client = connect(url)
    except ValueError as error:
        yield bad("store", f"{error}.", "See MIDSTREAM_REDIS_URL in docs/settings.md.")
        return
    async with client:
        try:
            async with asyncio.timeout(PATIENCE_S):
                pending: Any = client.ping()
                await pending
        except (TimeoutError, RedisError, OSError, StoreDown) as error:
            why = "It does not answer" if isinstance(error, TimeoutError) else f"It can't be reached: {error}"
            yield bad("store", f"{why.rstrip('.')}.", "Check its address, its password, and firewalls.")
            return
        try:
            yield good("store", "It answers.")
            durability = durability_of(settings)
            sentences = config_warnings(await checked_server_configs(client, durability), durability)
            for sentence in sentences:
                yield poor("durability", sentence)
            if not sentences:
                yield good("durability", f"As {durability.value} requires.")
        except (SettingsError, DurabilityUnsupported) as error:
            yield bad("durability", str(error), "Choose another --store-durability, or another store.")
        except (RedisError, OSError, StoreDown) as error:
            yield bad("store", f"It refuses a command: {error}.", "Check its ACL and its log.")


async def _upstream(upstream: UpstreamOptions) -> Finding:
    """Ask an upstream as the service does."""
    subject = f"upstream {upstream.name}"
    try:
        async with http_client(upstream, server_key(upstream)) as client:
            trouble = await health_error(client, upstream)
    except (SettingsError, OSError) as error:
        trouble = str(error)
    if trouble is not None:
        return bad(subject, trouble, f"Check {upstream.url}, its API key, `model` and `ca_file`.")
    return good(subject, f"{upstream.url} answers.")
