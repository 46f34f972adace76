"""Checks the machine: Python, torch and its device, memory, the model, open files, the port, certificates, keys."""

from __future__ import annotations

import json
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec
from cryptography import x509

from app.doctor.findings import Finding, bad, good, poor, size
from app.doctor.findings import Verdict as Found
from app.server.descriptors import SPARE
from app.server.network import HTTP_SOCKETS, tls_of
from app.setting_values import SettingsError
from app.settings import Settings
from app.setup.conversion import PACKAGES, check_file, converted_folder, with_folder
from app.setup.local_engines import encoded_options
from app.setup.model_files import in_cache, weights_of
from app.setup.models import check_models
from app.setup.tools import tool_box_of
from app.setup.translator import NAME as TRANSLATOR_NAME
from app.setup.translator import TRANSLATOR, serves_translator
from connections.authentication.api_key_store import file_of
from connections.authentication.api_keys import parse_keys
from connections.protocol.errors import InvalidList
from engine import errors, loading
from engine.errors import EngineError
from engine.loading.preflight import PreflightResult
from engine.machine import free_memory, triton_trouble
from sessions.filters.filter_file import InvalidFilterFile, filters_from

TORCH_S = 60.0
VERDICT_S = 300.0
WAYS_OUT = (
    "Use --engine vllm, name a server that has the model in --upstreams, or choose a model of docs/models.md. "
    "llama-server serves GGUF files."
)
SOON_S = 14 * 86_400
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


class Torch(msgspec.Struct, frozen=True):
    """What torch reports. `device`: the best one; `free`: free bytes of a CUDA device."""

    version: str
    device: str
    name: str
    free: int | None


def machine(settings: Settings) -> Iterator[Finding]:
    """Yield all findings. The one about torch takes some seconds, in a separate process."""
    folder = converted_folder(settings)
    waits = folder is not None and not folder.is_dir()
    settings = settings if waits else with_folder(settings)
    yield _python()
    computes_here = settings.upstreams is None and settings.engine == "midstream"
    torch = None
    if computes_here:
        torch, found = _torch(settings)
        yield found
    yield _waiting_model(settings) if waits else _model(settings)
    if serves_translator(settings):
        yield _translator()
    if computes_here:
        kinds = _kinds(settings, torch)
        yield _kernels(kinds)
        if not waits:
            yield _memory(settings, torch, kinds)
    yield _open_files(settings)
    yield _port(settings)
    yield _authentication(settings)
    if settings.filters is not None or settings.tools or settings.tools_file is not None:
        yield _hooks(settings)
    if settings.tls_cert is not None or settings.tls_key is not None:
        yield _certificate(settings)
    if settings.api_keys is not None:
        yield _keys(settings.api_keys)


def _python() -> Finding:
    here = ".".join(map(str, sys.version_info[:3]))
    return good("Python", f"{here}, Midstream {version('midstream-server')}.")


def _torch(settings: Settings) -> tuple[Torch | None, Finding]:
    try:
        done = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-c", _TORCH], capture_output=True, text=True, check=False, timeout=TORCH_S
        )
    except subprocess.TimeoutExpired:
        return None, bad(
            "torch", f"It was not loaded within {TORCH_S:g} s.", "Check the disk and the driver."
        )
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        return None, bad("torch", f"It can't be loaded: {last}", "Install it anew: make install.")
    torch = msgspec.convert(json.loads(done.stdout), Torch)
    wanted = {device.partition(":")[0] for device in settings.devices} - {"auto", "cpu", torch.device}
    if wanted:
        return torch, bad(
            "torch",
            f"{torch.version} finds no {', '.join(sorted(wanted))} here.",
            "Install the driver and a torch that was built for it, or name another --device.",
        )
    on = f"on {torch.name or torch.device}"
    return torch, good("torch", f"{torch.version}, {on}.")


def _model(settings: Settings) -> Finding:
    try:
        check_models(settings)
    except (EngineError, SettingsError) as error:
        return bad("model", str(error), "Name a folder with a model, or a model of the hub, by --model.")
    if settings.upstreams is not None:
        return good("model", f"Replies are made by what {settings.upstreams} names.")
    path = Path(settings.model_path)
    if path.is_dir() and not weights_of(path) and not settings.pickled_weights:
        return bad("model", f"{path} has no weights (*.safetensors).", "Copy the whole folder of the model.")
    if not settings.is_bundled and settings.engine == "midstream":
        return _verdict(settings)
    if not path.exists() and not in_cache(settings.model_path):
        words = f"{settings.model_path} is fetched at the start."
        return poor("model", words, "The hub must be reachable then.")
    weights = f"{size(weights_of(path))} of weights" if path.is_dir() else "which is on this machine"
    return good("model", f"{settings.model_name}, {weights}.")


def _waiting_model(settings: Settings) -> Finding:
    """Check a model that `serve` will fetch or convert."""
    if (package := PACKAGES.get(settings.model or "")) is not None:
        words = f"{settings.model} is fetched at the start ({size(package.bytes)}) and converted."
        return poor("model", words, "The package index must be reachable then.")
    try:
        check_file(settings)
    except EngineError as error:
        return bad("model", str(error), "Name a GGUF file by --model.")
    found = _verdict(settings)
    return (
        good("model", f"It is converted at the start. {found.words}")
        if found.verdict is Found.GOOD
        else found
    )


def _verdict(settings: Settings) -> Finding:
    """Ask a process with torch whether the model runs here, by its configuration and its tokenizer."""
    try:
        done = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-P", "-m", loading.__package__ or "", encoded_options(settings)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=VERDICT_S,
        )
    except subprocess.TimeoutExpired:
        return bad("model", f"Its configuration was not examined within {VERDICT_S:g} s.", "Is the hub slow?")
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        return bad("model", f"It can't be examined: {last}", "Please report this.")
    verdict = msgspec.json.decode(done.stdout, type=PreflightResult)
    if not verdict.serves:
        return bad("model", verdict.words, WAYS_OUT)
    folder = Path(settings.model_path)
    kept = folder if folder.exists() else in_cache(settings.model_path)
    if kept is None or not (kept.is_file() or weights_of(kept) or settings.pickled_weights):
        return poor(
            "model",
            f"{verdict.words} Its weights are fetched at the start.",
            "The hub must be reachable then.",
        )
    return good("model", verdict.words)


def _translator() -> Finding:
    words = (
        f"{TRANSLATOR_NAME}, {size(weights_of(TRANSLATOR))} of weights; its process starts with its first use"
    )
    return good("translator", f"{words} (--no-translator leaves it out).")


def _kinds(settings: Settings, torch: Torch | None) -> set[str]:
    """Return the kinds of devices that would compute."""
    best = "cpu" if torch is None else torch.device
    named = {device.partition(":")[0] for device in settings.devices}
    return {best if kind == "auto" else kind for kind in named}


def _kernels(kinds: set[str]) -> Finding:
    if "cuda" in kinds and (trouble := triton_trouble()):
        reason, remedy = trouble
        return bad("kernels", f"{reason}, so kernels for CUDA can't be compiled.", remedy)
    if "cpu" not in kinds:
        return good("kernels", f"Those for {', '.join(sorted(kinds))}.")
    if find_spec("._cpu_kernels", errors.__package__) is None:
        return poor(
            "kernels",
            "The kernels for CPUs were not compiled: replies take several times as long.",
            "Install gcc and libc6-dev, then install Midstream anew.",
        )
    return good("kernels", "The kernels for CPUs are compiled.")


def _memory(settings: Settings, torch: Torch | None, kinds: set[str]) -> Finding:
    """Check the memory. It is at most a warning: a running service has taken its part already, and weights may be quantized."""
    on_card = torch is not None and kinds == {"cuda"}
    free = torch.free if torch is not None and on_card else free_memory()
    path = Path(settings.model_path)
    folder = path if path.is_dir() else in_cache(settings.model_path)
    weights = weights_of(folder) if folder is not None else 0
    if free is None:
        return poor("memory", "The system does not say how much is free.")
    wanted = weights * settings.engines + (settings.kv_bytes or 0)
    where = " on the device" if on_card else ""
    words = f"{size(free)} are free{where}, the weights take {size(weights)}"
    if free < wanted:
        return poor(
            "memory",
            f"{words}: that may not fit.",
            "Choose a smaller model, --quantize int8, or a smaller --kv-bytes.",
        )
    if free < 2 * wanted:
        return poor("memory", f"{words}: little is left for conversations.", "Set --kv-bytes, or free some.")
    return good("memory", f"{words}.")


def _open_files(settings: Settings) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + settings.max_pending_connections + HTTP_SOCKETS + SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return poor(
            "open files",
            f"{hard} may be open, but {wanted} are needed for --max-connections {settings.max_connections}.",
            "Raise the limit (LimitNOFILE, ulimit -n), or lower --max-connections.",
        )
    return good("open files", f"Enough for {settings.max_connections} connections.")


def _port(settings: Settings) -> Finding:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            return poor(
                "port",
                f"{settings.host}:{settings.port} can't be taken: {(error.strerror or str(error)).lower()}.",
                "That is right if the service runs already; otherwise choose another --port.",
            )
    return good("port", f"{settings.host}:{settings.port} is free.")


def _authentication(settings: Settings) -> Finding:
    if settings.authenticates:
        return good("entrance", "Clients must authenticate.")
    if settings.insecure:
        return poor(
            "entrance", "Anybody who can reach the port may chat.", "Make keys: midstream keys add --help."
        )
    return good("entrance", "There is no authentication, but it listens on this machine alone.")


def _hooks(settings: Settings) -> Finding:
    """Check the operator's own files and modules that the start loads."""
    try:
        tools = tool_box_of(settings)
        if settings.filters is not None:
            filters_from(Path(settings.filters).expanduser())
    except (SettingsError, InvalidFilterFile) as error:
        return bad("filters and tools", str(error), "Mend the file or module that is named.")
    return good("filters and tools", f"They can be loaded; {len(tools.offered())} tools are functions here.")


def _certificate(settings: Settings) -> Finding:
    try:
        tls_of(settings)
    except SettingsError as error:
        return bad("TLS", str(error), "Give a certificate and its key in PEM files.")
    until = _last_second(settings.tls_cert or "")
    left = until - time.time()
    day = time.strftime("%Y-%m-%d", time.gmtime(until))
    if left <= 0:
        return bad("TLS", f"The certificate has expired on {day}.", "Renew it.")
    if left < SOON_S:
        return poor("TLS", f"The certificate expires on {day}.", "Renew it, and restart the service.")
    return good("TLS", f"The certificate holds until {day}.")


def _last_second(certificate: str) -> float:
    """Return when a chain's first certificate expires, in seconds since the epoch. TLS has read it before."""
    chain = x509.load_pem_x509_certificates(Path(certificate).read_bytes())
    return min(one.not_valid_after_utc.timestamp() for one in chain)


def _keys(source: str) -> Finding:
    path = file_of(source)
    if path is None:
        return good("keys", "They are in the setting.")
    try:
        found = parse_keys(path.read_text(encoding="utf-8").splitlines())
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError, InvalidList) as error:
        return bad(
            "keys", f"{path} can't be used: {error}.", "midstream keys add NAME --file makes such a file."
        )
    if not found:
        return poor("keys", f"{path} has none: nobody can connect.", f"midstream keys add NAME --file {path}")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return poor("keys", f"Others may write {path}.", f"chmod go-w {path}")
    return good("keys", f"{len(found)} in {path}.")
