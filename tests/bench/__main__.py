"""`make bench`: Midstream and two other servers of the same model, in turns; a table, JSON and a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from app.settings import DEMO_MODEL
from engine.model.devices import choose_device, choose_dtype
from tests.bench.endpoints import measure_endpoints
from tests.bench.engine.plan import FULL as FULL_PLAN
from tests.bench.engine.plan import QUICK as QUICK_PLAN
from tests.bench.engine.report import Figure
from tests.bench.engine.runner import run_measurements
from tests.bench.engine.shapes import SMALL, TINY
from tests.bench.engine.table import table as engine_table
from tests.bench.engine.worker_pool import assembled
from tests.bench.machine import this_machine
from tests.bench.report import DEMO_TITLE, Report, encode, medians_of
from tests.bench.rounds import Setup, rounds
from tests.bench.servers import CONTENDERS, Contender
from tests.bench.table import table
from tests.bench.workload import FULL, QUICK

ENDPOINTS = "endpoints"
RESULTS = Path(__file__).parent.parent.parent / "docs" / "bench"
SHAPES = {shape.name: shape for shape in (TINY, SMALL)}


def main() -> int:
    """Measure; return 0 if everything was measured."""
    options = _options()
    if options.engine_share:
        return _engine_share(options)
    contenders = [one for one in CONTENDERS if one.name in options.only]
    if missing := sorted({name for one in contenders for name in one.missing()}):
        install = f"{sys.executable} -m pip install --constraint constraints.txt --editable midstream --editable '.[bench]'"
        print(f"Not installed: {', '.join(missing)}. Run: {install}", file=sys.stderr)
        return 2
    report = _measure(contenders, options)
    print(f"\n{table(report)}")
    if options.out:
        _write(report, options.out)
    return 0 if report.is_whole else 1


def _options() -> argparse.Namespace:
    names = [*(one.name for one in CONTENDERS), ENDPOINTS]
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that all of it works")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, help="what to measure: servers, and our endpoints"
    )
    parser.add_argument(
        "--model",
        default=str(DEMO_MODEL),
        help="folder of the model (the demo model), or random weights: tiny, small",
    )
    parser.add_argument(
        "--engine-share",
        action="store_true",
        help="Midstream alone: sockets beside its engine, with random weights",
    )
    parser.add_argument("--device", default="auto", help="as Midstream's --device")
    parser.add_argument("--dtype", default="auto", help="as Midstream's --dtype; the same for all servers")
    parser.add_argument("--out", type=Path, help="folder for results (docs/bench; with --quick: none)")
    options = parser.parse_args()
    if options.engine_share and options.model not in SHAPES:
        parser.error(f"--engine-share needs --model {' or '.join(SHAPES)}")
    if options.out is None and not options.quick and options.model == str(DEMO_MODEL):
        options.out = RESULTS
    return options


def _engine_share(options: argparse.Namespace) -> int:
    """Measure tokens per second over sockets, compared with the engine alone."""
    plan = msgspec.structs.replace(
        QUICK_PLAN if options.quick else FULL_PLAN, models=(SHAPES[options.model],)
    )
    with assembled() as crew:
        report = run_measurements(plan, {Figure.SOCKETS}, crew, progress=partial(print, flush=True))
    print(f"\n{engine_table(report)}")
    return 1 if report.failures else 0


@contextmanager
def _model(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the folder of the model; random weights exist only inside the block. Raises MeasurementFailed."""
    if options.model not in SHAPES:
        yield Path(options.model).resolve()
        return
    with assembled() as crew:
        yield crew.model(SHAPES[options.model])


def _measure(contenders: list[Contender], options: argparse.Namespace) -> Report:
    machine = this_machine()
    if machine.warning:
        print(machine.warning, flush=True)
    device = choose_device(options.device)
    workload = QUICK if options.quick else FULL
    with _model(options) as folder:
        setup = Setup(
            model=str(folder),
            device=str(device),
            dtype=str(choose_dtype(options.dtype, device)).removeprefix("torch."),
        )
        progress = partial(print, flush=True)
        turns = rounds(contenders, workload, setup, progress=progress)
        endpoint_results = (
            measure_endpoints(CONTENDERS[0], workload, msgspec.structs.asdict(setup), progress=progress)
            if ENDPOINTS in options.only
            else None
        )
    return Report(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        device=setup.device,
        dtype=setup.dtype,
        workload=workload,
        titles={one.name: one.title for one in contenders},
        turns=turns,
        medians=medians_of(turns),
        doors=endpoint_results,
        model=DEMO_TITLE if options.model == str(DEMO_MODEL) else Path(options.model).name,
    )


def _write(report: Report, folder: Path) -> None:
    """Write a report; a report of endpoints alone keeps the servers' figures."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("bench.json" if report.titles else "endpoints.json")
    file.write_bytes(encode(report))
    print(f"Written: {file}")
    if report.titles:
        from tests.bench.chart import draw  # noqa: PLC0415 - matplotlib is slow to load and only drawing needs it

        draw(report, folder / "bench.png")
        print(f"Written: {folder / 'bench.png'}")


if __name__ == "__main__":
    sys.exit(main())
