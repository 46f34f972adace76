"""Every shipped alert with its own times, on series that promtool makes up: it fires in trouble, and not in a calm hour."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.prometheus import PROMTOOL, RULES, rules

pytestmark = pytest.mark.skipif(
    PROMTOOL is None,
    reason="promtool is NOT INSTALLED: the alerts' times go untested (apt install prometheus)",
)

HERE = 'job="midstream", instance="one"'
HOUR = 240  # looks, one in 15 s


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    more = "".join(f', {label}="{value}"' for label, value in labels.items())
    return {"series": f"{name}{{{HERE}{more}}}", "values": values}


def always(value: float) -> str:
    return f"{value}+0x{HOUR}"


def growing(step: float) -> str:
    return f"0+{step}x{HOUR}"


STORE = {"midstream_store_memory_used_bytes": "{}", "midstream_store_memory_limit_bytes": "100"}


def buckets(metric: str, bound: float) -> dict[str, str]:
    """A histogram that grows by a hundred a minute, of which so many are within a bound."""
    named = {le: f'{metric}_bucket{{le="{le}"}}' for le in (bound, 2 * bound, "+Inf")}
    return {name: "0+{}" if le == bound else "0+100" for le, name in named.items()}


LEVELS: dict[str, tuple[dict[str, str], float, float]] = {
    "MidstreamTurnsConnectionsAway": ({'midstream_refusals_total{reason="full"}': "0+{}"}, 1.1, 0.9),
    "MidstreamRepliesWait": ({"midstream_engine_queue": "{}"}, 1, 0),
    "MidstreamFirstTokenLate": (buckets("midstream_first_token_seconds", 5), 94, 96),
    "MidstreamFewFilesLeft": (
        {'process_open_fds{job="midstream"}': "{}", 'process_max_fds{job="midstream"}': "100"},
        *(81, 79),
    ),
    "MidstreamDeltasLate": (buckets("midstream_delta_delay_seconds", 0.5), 98, 99.5),
    "MidstreamStoreSlow": (buckets("midstream_store_call_seconds", 0.25), 98, 99.5),
    "MidstreamStoreFills": (STORE, 61, 59),
    "MidstreamStoreFull": (STORE, 79, 77),
    "MidstreamStoreFails": ({"midstream_store_errors_total": "0+{}"}, 2.1, 1.9),
    "MidstreamTurnsReaped": ({"midstream_reaped_turns_total": "0+{}"}, 1, 0),
}
"""Alerts for what takes minutes: series, each minute's value or growth, and levels that are too high, and just not."""
TROUBLE: dict[str, list[dict[str, str]]] = {
    "MidstreamDown": [series("up", always(0))],
    "MidstreamEngineDown": [series("midstream_engine_up", always(0))],
    "MidstreamEngineRestarted": [series("midstream_engine_restarts_total", f"0+0x200 1+0x{HOUR - 200}")],
    "MidstreamTurnsFail": [
        series("midstream_turns_total", growing(1), reason="interrupted"),
        series("midstream_turns_total", growing(10), reason="stop"),
    ],
    "MidstreamStoreStalled": [
        series("midstream_store_call_seconds_bucket", always(1000), client="replies", le="1.0"),
        series("midstream_store_call_seconds_count", growing(4), client="replies"),
    ],
    "MidstreamRepliesUnsaved": [series("midstream_turns_unsaved", always(2))],
    "MidstreamSheds": [series("midstream_errors_total", growing(1), api="native", code="overloaded")],
    "MidstreamEventLoopLate": [
        series("midstream_event_loop_lag_seconds_bucket", always(0), le="0.25"),
        series("midstream_event_loop_lag_seconds_bucket", growing(30), le="30.0"),
        series("midstream_event_loop_lag_seconds_bucket", growing(30), le="+Inf"),
    ],
    "MidstreamReadersTooSlow": [series("midstream_bounds_reached_total", growing(1), bound="outbox")],
    "MidstreamDrainsForLong": [series("midstream_draining", always(1))],
}
CALM = [
    series("up", always(1)),
    series("midstream_engine_up", always(1)),
    series("midstream_engine_restarts_total", always(2)),
    series("midstream_turns_total", growing(1), reason="interrupted"),
    series("midstream_turns_total", growing(100), reason="stop"),
    series("midstream_store_calls_running", always(1), client="replies"),
    series("midstream_store_call_seconds_count", growing(30), client="replies"),
    series("midstream_store_call_seconds_bucket", growing(30), le="0.005"),
    series("midstream_store_call_seconds_bucket", growing(30), le="+Inf"),
    series("midstream_store_errors_total", always(7), client="requests", error="ConnectionError"),
    series("midstream_store_memory_used_bytes", always(50), server="0"),
    series("midstream_store_memory_limit_bytes", always(100), server="0"),
    series("midstream_turns_unsaved", f"0+0x100 1 0+0x{HOUR - 102}"),
    series("midstream_errors_total", always(50), api="native", code="overloaded"),
    series("midstream_refusals_total", always(50), reason="full"),
    series("midstream_engine_queue", "0 3 " * (HOUR // 2)),
    series("midstream_bounds_reached_total", always(50), bound="outbox"),
    series("midstream_reaped_turns_total", always(4)),
    series("midstream_draining", f"0+0x{HOUR - 3} 1 1 1"),
    series("process_open_fds", always(100)),
    series("process_max_fds", always(1000)),
]


def test_every_alert_has_its_trouble() -> None:
    assert sorted([*TROUBLE, *LEVELS]) == sorted(rule["alert"] for rule in rules())


def test_each_fires_in_its_trouble_beyond_its_threshold_alone_and_none_in_a_calm_hour(tmp_path: Path) -> None:
    cases = [case(name, TROUBLE[name], fires=True) for name in TROUBLE]
    cases += [case(name, CALM, fires=False) for name in (*TROUBLE, *LEVELS)]
    for name, (named, above, below) in LEVELS.items():
        for level, fires in ((above, True), (below, False)):
            given = [{"series": one, "values": f"{values.format(level)}x30"} for one, values in named.items()]
            cases.append(case(name, given, fires=fires) | {"interval": "1m"})
            cases[-1]["promql_expr_test"][0]["eval_time"] = "25m"
    (tmp_path / "alerts.yml").write_text(RULES.read_text())
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": cases}))
    tested = subprocess.run(
        [str(PROMTOOL), "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def case(name: str, given: list[dict[str, str]], *, fires: bool) -> dict[str, Any]:
    """One test of promtool's: what fires after most of an hour. It compares labels and sentences, so those are counted instead."""
    firing = f'sum(ALERTS{{alertname="{name}", alertstate="firing"}} >= bool 0) or vector(0)'
    return {
        "name": f"{name} {'in trouble' if fires else 'in calm'}",
        "interval": "15s",
        "input_series": given,
        "promql_expr_test": [
            {"expr": firing, "eval_time": "59m", "exp_samples": [{"labels": "{}", "value": int(fires)}]}
        ],
    }
