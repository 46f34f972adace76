"""The house keeps to its plan: imports point down, torch stays in the engine's process, each library has its one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("engine", "speech", "sessions", "connections", "app")  # from the ground up
STRANGERS = {("speech", "engine"), ("sessions", "speech")}  # stand beside each other
BESIDE = ("midstream", "midstream_server")  # import no layer, and no layer imports them
NOT_SHIPPED = {"specs", "tests", "tools", "page", "distributions"}
EXCEPTIONS = {
    ("app.cli", "midstream"),  # the command has the terminal client in it
    ("midstream_server.__main__", "app"),  # the command
    *((module, "engine") for module in ("speech.process", "speech.espeak")),  # its children's environment
    ("speech.recordings", "engine"),  # the command that installs an extra
    ("midstream_server.filters", "sessions"),
    ("midstream_server.tools", "sessions"),  # what an operator's functions import
}
# What is behind a seam: only its endpoints, and what registers it, may import it. The rest knows a source and a player.
SEAMS = {
    "sessions.translation": ("sessions.replica",),
    "connections.voice": (
        *("connections.native.endpoint", "connections.native.handler", "connections.api.realtime"),
        *("app.routes", "app.speech"),
    ),
    "connections.spoken_reply": ("connections.voice", "connections.api.realtime"),
    "connections.turn_taking": ("connections.voice", "connections.spoken_reply", "connections.api.realtime"),
}
GATEWAY = ("app.cli", "app.service")
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}

# The dialects of `connections/api`: each knows what they share, and none of the others.
DIALECTS = (
    *("openai_chat", "anthropic", "agui", "ai_sdk", "responses", "realtime"),
    *("audio", "account", "admin"),
)

# The subpackages of each layer from the ground up: a package is a folder, or a module that stands beside the folders. A package
# imports itself and those before it.
ORDER = {
    "engine": (
        *("errors", "step_layout", "kv_cache", "vision", "messages", "history", "fair_queue"),
        *("machine", "api", "grammar", "text", "model", "execution", "loading", "prompts"),
        *("scheduling", "process", "served_models", "upstream", "scripted"),
    ),
    "speech": (
        *("errors", "interfaces", "process", "clauses", "samples", "activity"),
        *("recordings", "compression", "alignment", "espeak"),
        *("recognition", "recognition_worker", "pocketsphinx_decoder", "listening_worker"),
        *("model_voice", "model_loading", "recognition_models", "voice_models", "__main__"),
    ),
    "sessions": (
        *(
            "errors",
            "events",
            "records",
            "observer",
            "store_errors",
            "limits",
            "languages",
        ),
        *(
            "filters",
            "tools",
            "store",
            "turn",
            "conversation",
            "generation",
            "titles",
            "running",
            "tool_round",
            "replicas",
        ),
        "commands",
        *("translation", "embedding"),
        *("replica", "service"),
    ),
    "sessions.store": (
        *("pool", "client", "server_config", "embedded", "codec", "ledger"),
        *("journal", "history", "images", "index", "owner_data", "ownership", "storage"),
    ),
    "connections": (
        *("protocol", "http", "images", "middleware", "authentication"),
        *("loop_scheduler", "limiters", "http_protocol", "websocket_protocol"),
        *("outbox", "connection", "manager", "websocket_endpoint"),
        *("turn_taking", "spoken_reply", "voice", "native", "api"),
    ),
    "connections.api": (
        *("requests", "replies", "endpoint", "chat_requests"),
        *DIALECTS,
    ),
    "app": (
        *(
            "settings",
            "server",
            "models",
            "speech",
            "tracing",
            "parts",
        ),
        *("keys", "logs", "memory", "metrics", "es_modules", "page_files", "routes", "service"),
        *("doctor", "cli", "__main__"),
    ),
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    files = [file for package in LAYERS + BESIDE for file in (ROOT / package).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in sorted(files)}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


@cache
def named(module: str) -> frozenset[str]:
    """Whatever a module imports, at its head or later, as dotted names."""
    return frozenset(_named(module))


def _named(module: str) -> Iterator[str]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import hides where it points"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of the product that a module imports."""
    return frozenset(name for name in named(module) if name in modules())


def libraries(module: str) -> set[str]:
    return {name.partition(".")[0] for name in named(module)}


def reached(*starts: str) -> set[str]:
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        if (module := waiting.pop()) not in found:
            found.add(module)
            waiting.extend(imports(module))
    return found


def package(module: str) -> str:
    return module.partition(".")[0]


def astray(module: str) -> set[str]:
    """What a module imports from above or beside its layer, or from what is not shipped."""
    home = package(module)
    allowed = {home} if home in BESIDE else set(LAYERS[: LAYERS.index(home) + 1])
    allowed -= {other for one, other in STRANGERS if one == home}
    allowed |= {imported for importer, imported in EXCEPTIONS if importer == module}
    return libraries(module) & {*LAYERS, *BESIDE, *NOT_SHIPPED} - allowed


def test_imports_point_down() -> None:
    assert {module: wrong for module in modules() if (wrong := astray(module))} == {}


def test_no_module_imports_itself_by_a_detour() -> None:
    try:
        TopologicalSorter({module: imports(module) for module in modules()}).prepare()
    except CycleError as cycle:
        pytest.fail(" imports ".join(reversed(cycle.args[1])))


def subpackage(layer: str, module: str) -> str | None:
    """The package of a layer that a module stands in; None where it stands elsewhere, or is the layer's own `__init__`."""
    inside = module.removeprefix(f"{layer}.")
    name = inside.partition(".")[0]
    return None if inside == module or name == "__init__" else name


def imports_from_above(layer: str, module: str) -> set[str]:
    """The subpackages behind its own that a module imports."""
    order = ORDER[layer]
    here = subpackage(layer, module)
    if here is None:
        return set()
    seen = {other for name in imports(module) if (other := subpackage(layer, name)) is not None}
    return {other for other in seen if order.index(other) > order.index(here)}


@pytest.mark.parametrize("layer", ORDER)
def test_the_packages_of_a_layer_form_a_line(layer: str) -> None:
    assert {name for module in modules() if (name := subpackage(layer, module)) is not None} == set(
        ORDER[layer]
    )
    assert {module: behind for module in modules() if (behind := imports_from_above(layer, module))} == {}


def test_no_dialect_imports_another() -> None:
    crossing = {
        (module, other)
        for module in modules()
        if (home := subpackage("connections.api", module)) in DIALECTS
        for name in imports(module)
        if (other := subpackage("connections.api", name)) in DIALECTS and other != home
    }
    assert not crossing


@pytest.mark.parametrize("home", SEAMS)
def test_what_is_behind_a_seam_is_imported_by_its_endpoints_alone(home: str) -> None:
    importers = [module for module in modules() if any(is_in(name, home) for name in imports(module))]
    assert [one for one in importers if not any(is_in(one, may) for may in (home, *SEAMS[home]))] == []


def is_in(module: str, package: str) -> bool:
    """Whether a module is this one, or in this package."""
    return f"{module}.".startswith(f"{package}.")


def test_every_layer_has_its_packages_in_order() -> None:
    assert set(LAYERS) <= set(ORDER)


def test_torch_is_out_of_the_gateways_reach() -> None:
    """Whatever the gateway imports, now or when it runs, names neither torch nor transformers."""
    assert [module for module in sorted(reached(*GATEWAY)) if libraries(module) & TORCH] == []


def test_torch_is_imported_by_processes_of_models_alone() -> None:
    """The engine's, and those that hear and speak."""
    process = reached(
        "engine.process.__main__",
        "engine.loading.__main__",
        "speech.__main__",
    )
    assert [module for module in modules() if libraries(module) & TORCH and module not in process] == []


def test_the_gateway_runs_without_torch_and_without_what_is_optional() -> None:
    # of OpenTelemetry redis imports what is about metrics, wherever it is installed
    heavy = {
        "torch",
        "transformers",
        "soxr",
        "av",
        "pocketsphinx",
        "mcp",
        "jsonschema",
        "pydantic",
        "opentelemetry.sdk.trace",
        "opentelemetry.exporter",
    }
    look = f"import sys, app.cli, app.service; print({heavy} & set(sys.modules))"
    reported = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert reported.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("prometheus_client", {"app.metrics"}),
        ("uvicorn", {"connections.http_protocol", "app.server", "connections.websocket_protocol"}),
        ("triton", {"engine.model.cuda.kernels"}),
        ("opentelemetry", {"app.tracing"}),
        ("uvloop", {"app.cli"}),
        ("brotli", {"app.page_files"}),
        (
            "httpx",
            {
                "engine.upstream.engine",
                "engine.upstream.http_client",
                "engine.upstream.monitor",
            },
        ),
        ("httpx2", {"sessions.tools.mcp_server"}),
        ("jsonschema", {"sessions.tools.mcp_options"}),
        ("mcp", {"sessions.tools.mcp_server"}),
        (
            "click",
            {
                "app.cli",
                "app.keys",
                "midstream.__main__",
                "midstream.terminal.__init__",
                "app.doctor",
                "app.models",
            },
        ),
        (
            "llguidance",
            {
                "engine.grammar",
                "engine.execution.guide",
            },
        ),
        ("pocketsphinx", {"speech.listening_worker", "speech.pocketsphinx_decoder"}),
        ("soxr", {"speech.samples"}),
        ("av", {"speech.compression"}),
        ("jwt", {"connections.authentication.json_web_tokens"}),
    ],
)
def test_a_library_has_its_place(library: str, home: set[str]) -> None:
    assert {module for module in modules() if library in libraries(module)} == home


def test_only_the_sessions_layer_and_its_composition_know_redis() -> None:
    users = {module for module in modules() if "redis" in libraries(module)}
    assert {module for module in users if package(module) != "sessions"} <= {
        "app.service",
        "app.parts",
        "app.metrics",
        "app.doctor",
        "connections.authentication.access",
    }


def test_the_environment_is_read_in_few_places() -> None:
    """Settings come from one object. The engine's process inherits an environment; the terminal client is not served."""
    readers = {
        module
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
    }
    assert readers <= {
        "app.settings",
        "app.cli",
        "engine.process.__main__",
        "engine.machine",
        "engine.upstream.vllm",
        "midstream.terminal.session",
    }


def test_nothing_is_raised_while_a_group_is_sorted() -> None:
    """Python 3.11.0 to 3.11.3, and so Debian 12's, puts what is raised in `except*` into a group."""
    raising = {
        module
        for module in modules()
        for tried in ast.walk(tree(module))
        if isinstance(tried, ast.TryStar)
        for handler in tried.handlers
        if any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    }
    assert not raising
