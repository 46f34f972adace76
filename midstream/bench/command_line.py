"""The command `bench` and its options. What it runs is imported when it runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from midstream.bench.plan import PROMPTS, Plan, PlanError, prompts_of

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--url",
    default="127.0.0.1:8000",
    show_default=True,
    help="The page's URL, the WebSocket's, or HOST:PORT.",
)
@click.option(
    "--key", envvar="CHAT_KEY", show_envvar=True, help="An API key or a JWT, if the server requires one."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    help="A constant number of concurrent conversations. Default: 8.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Instead: new conversations a second (Poisson).",
)
@click.option(
    "--at-most",
    type=click.IntRange(1, 10_000),
    default=1000,
    show_default=True,
    help="Most concurrent conversations with --rate.",
)
@click.option(
    "--turns", type=click.IntRange(1, 1000), default=4, show_default=True, help="Messages of a conversation."
)
@click.option(
    "--think-s",
    type=click.FloatRange(0, 3600),
    default=1.0,
    show_default=True,
    help="Mean pause before the next one.",
)
@click.option(
    "--cancel",
    "cancels",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of replies to stop.",
)
@click.option("--prompts", type=_FILE, help="A file of messages, one a line. Default: eight of our own.")
@click.option(
    "--duration-s",
    type=click.FloatRange(0.1, 86_400),
    default=30.0,
    show_default=True,
    help="Seconds in which messages are sent.",
)
@click.option(
    "--drain-s",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the last replies.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed sends the same messages.")
@click.option(
    "--max-new-tokens", type=click.IntRange(1), help="Most tokens of a reply. Default: the server's."
)
@click.option("--model", help="Which of the server's models. Default: its own default.")
@click.option("--keep", is_flag=True, help="Leave the conversations on the server.")
@click.option(
    "--json", "json_file", type=_FILE, help="Also write the report as JSON; - is the standard output."
)
@click.option("--html", "html_file", type=_FILE, help="Also write it as a page with plots.")
def bench(
    *,
    url: str,
    key: str | None,
    concurrency: int | None,
    rate: float | None,
    at_most: int,
    turns: int,
    think_s: float,
    cancels: float,
    prompts: Path | None,
    duration_s: float,
    drain_s: float,
    seed: int,
    max_new_tokens: int | None,
    model: str | None,
    keep: bool,
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Simulate many users of a Midstream server, and report what they saw: first text, gaps, stops, errors.

    Each conversation has its own connection and client id, and is deleted after its last message. Ctrl-C ends the run early,
    with the report. The exit status is 1 if no reply ended.
    """
    if rate is not None and concurrency is not None:
        raise click.UsageError("--rate and --concurrency exclude each other: give one.")
    try:
        plan = Plan(
            rate=rate,
            concurrency=None if rate is not None else concurrency or 8,
            at_most=at_most,
            turns=turns,
            think_s=think_s,
            cancels=cancels,
            prompts=PROMPTS if prompts is None else prompts_of(prompts),
            duration_s=duration_s,
            drain_s=drain_s,
            seed=seed,
            max_new_tokens=max_new_tokens,
            model=model,
            keeps=keep,
        )
    except PlanError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(_run(url, key, plan, json_file, html_file))


def _run(url: str, key: str | None, plan: Plan, json_file: Path | None, html_file: Path | None) -> int:
    from midstream.bench import files, runner  # noqa: PLC0415 - `--help` needs none of it

    try:
        files.check(json_file, html_file)
        report, curves = asyncio.run(runner.bench(url, key, plan))
        files.write(report, curves, json_file, html_file)
    except (runner.BenchError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        return 130
    return 0 if report["replies"] else 1
