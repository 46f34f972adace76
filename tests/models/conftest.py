"""The real model, fetched and converted as `midstream serve --model smollm2` does it, and the table of what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from app.models import convert, with_folder
from app.settings import Settings
from tests.models.reference import Reference
from tests.server_process import ServerProcess, serving

CACHE = Path(__file__).parents[2] / ".cache"
"""A data folder: `models` in it has the converted models."""


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct."""
    settings = Settings(model="smollm2", data_dir=str(CACHE))
    convert(settings)
    return Path(with_folder(settings).model_path)


@pytest.fixture(scope="session")
def reference(smollm2: Path) -> Reference:
    """transformers' model, in float32."""
    return Reference(smollm2)


@pytest.fixture(scope="session")
def service(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`midstream serve --model smollm2` in float32, over the model that was converted before."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "data" / "models").mkdir(parents=True)
    (folder / "data" / "models" / "smollm2").symlink_to(smollm2)
    environ = {"MIDSTREAM_DTYPE": "float32", "MIDSTREAM_TITLES": "words", "MIDSTREAM_KV_MEMORY": str(2**30)}
    with serving(folder, environ, command=("app", "serve", "--model", "smollm2")) as started:
        yield started


@pytest.fixture(autouse=True)
def named(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """The test is a row of the table, or a part of one: its docstring says what it shows."""
    record_property("what", (request.function.__doc__ or request.function.__name__).partition("\n")[0])


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say what was measured, for the table."""
    return lambda words: record_property("figure", words)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print the table: a row for each test function."""
    rows: dict[str, tuple[list[bool], list[str]]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            properties = report.user_properties
            for what in [value for name, value in properties if name == "what"]:
                passed, figures = rows.setdefault(str(what), ([], []))
                passed.append(outcome == "passed")
                figures += [str(value) for name, value in properties if name == "figure"]
    if not rows:
        return
    terminalreporter.write_line("\n| | What | Outcome | Figure |\n|--:|---|---|---|")
    for number, (what, (passed, figures)) in enumerate(rows.items(), start=1):
        outcome = "passed" if all(passed) else f"FAILED: {passed.count(False)} of {len(passed)}"
        found = "; ".join(figures) or f"{passed.count(True)} of {len(passed)}"
        terminalreporter.write_line(f"| {number} | {what} | {outcome} | {found} |")
