"""`make bench`: Midstream beside two other servers of the same model, in turns; a table, JSON and a picture."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from app.settings import DEMO_MODEL
from engine.devices import choose_device, choose_dtype
from tests.bench.contenders import CONTENDERS, Contender
from tests.bench.machine import this_machine
from tests.bench.report import Report, encode, medians_of
from tests.bench.table import table
from tests.bench.turns import Setup, rounds
from tests.bench.workload import FULL, QUICK

RESULTS = Path(__file__).parent.parent.parent / "docs" / "bench"
BUSY = 0.7


def main() -> int:
    """Measure; gives 0 when every turn of every server was measured."""
    options = _options()
    contenders = [one for one in CONTENDERS if one.name in options.only]
    if missing := sorted({name for one in contenders for name in one.missing()}):
        install = f"{sys.executable} -m pip install --constraint constraints.txt --editable '.[bench]'"
        print(f"Not installed: {', '.join(missing)}. Run: {install}", file=sys.stderr)
        return 2
    report = _measure(contenders, options)
    print(f"\n{table(report)}")
    if options.out:
        _write(report, options.out)
    return 1 if any(turn.failures for turn in report.turns) else 0


def _options() -> argparse.Namespace:
    names = [one.name for one in CONTENDERS]
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that all of it works")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="servers to measure")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder of the model (the demo model)")
    parser.add_argument("--device", default="auto", help="as Midstream's --device")
    parser.add_argument("--dtype", default="auto", help="as Midstream's --dtype; the same for all servers")
    parser.add_argument("--out", type=Path, help="folder for results (docs/bench; with --quick: none)")
    options = parser.parse_args()
    if options.out is None and not options.quick:
        options.out = RESULTS
    return options


def _measure(contenders: list[Contender], options: argparse.Namespace) -> Report:
    machine = this_machine()
    if machine.load_before > BUSY:
        print(f"This machine is busy (load {machine.load_before}): the figures will be too.", flush=True)
    device = choose_device(options.device)
    setup = Setup(
        model=str(Path(options.model).resolve()),
        device=str(device),
        dtype=str(choose_dtype(options.dtype, device)).removeprefix("torch."),
    )
    workload = QUICK if options.quick else FULL
    turns = rounds(contenders, workload, setup, say=lambda line: print(line, flush=True))
    return Report(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        device=setup.device,
        dtype=setup.dtype,
        workload=workload,
        titles={one.name: one.title for one in contenders},
        turns=turns,
        medians=medians_of(turns),
    )


def _write(report: Report, folder: Path) -> None:
    from tests.bench.picture import draw  # noqa: PLC0415 - matplotlib is slow to load and only drawing needs it

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_bytes(encode(report))
    draw(report, folder / "bench.png")
    print(f"Written: {folder / 'bench.json'}, {folder / 'bench.png'}")


if __name__ == "__main__":
    sys.exit(main())
