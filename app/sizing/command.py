"""The command `size` and its options."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click
import msgspec

from app.settings import DEMO_MODEL
from app.sizing.estimate import Assumptions, estimate
from app.sizing.model_shapes import WIDTHS, ShapeUnknown, shape_of
from app.sizing.report import lines, options


class _Finite(click.FloatRange):
    """A finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read an option's text. Raises BadParameter."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _assumptions(command: Callable[..., None]) -> Callable[..., None]:
    """One option for each assumption, of the same name."""
    for name, default, description in reversed(list(options())):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, type=_Finite(), default=default, show_default=True, help=description)(
            command
        )
    return command


@click.command()
@click.option("--users", type=click.IntRange(1, 10**9), required=True, help="How many people use it, in all.")
@click.option(
    "--model",
    default=None,
    help="A Llama-like model's folder, a hub name that is in the cache, smollm2, or a GGUF file that was served before. Default: the demo model.",
)
@click.option(
    "--data-dir",
    envvar="MIDSTREAM_DATA_DIR",
    help="Folder in which `serve` keeps converted models. Default: MIDSTREAM_DATA_DIR, or the usual one.",
)
@click.option(
    "--dtype",
    type=click.Choice(sorted(WIDTHS)),
    default="bfloat16",
    show_default=True,
    help="Number type of weights, keys and values.",
)
@click.option(
    "--engine-tokens-per-s",
    type=_Finite(0, min_open=True),
    help="Tokens a second of one engine, over all its replies, measured under load.",
)
@_assumptions
@click.option("--json", "as_json", is_flag=True, help="Write the figures as JSON.")
def size(
    *,
    users: int,
    model: str | None,
    data_dir: str | None,
    dtype: str,
    engine_tokens_per_s: float | None,
    as_json: bool,
    **assumed: float,
) -> None:
    """Estimate the memory, Redis and engines that a number of users needs, with the assumptions.

    It only reads the model's config.json, and loads nothing.
    """
    try:
        shape = shape_of(model or str(DEMO_MODEL), data_dir)
        given = msgspec.convert(assumed, Assumptions)
        found = estimate(users, shape, given, dtype=dtype, engine_tokens_per_s=engine_tokens_per_s)
    except ShapeUnknown as error:
        raise click.ClickException(str(error)) from error
    except msgspec.ValidationError as error:
        raise click.ClickException(_complaint(error)) from error
    except OverflowError as error:
        raise click.ClickException(
            "With these assumptions the figures become too large to compute."
        ) from error
    if as_json:
        report: dict[str, Any] = {"estimate": found, "model": shape, "dtype": dtype, "assumed": given}
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        click.echo("\n".join(lines(found, shape, given, dtype=dtype)))


def _complaint(error: msgspec.ValidationError) -> str:
    """Return the error of the option that can't be used."""
    what, _, path = str(error).partition(" - at `$.")
    return f"--{path.rstrip('`').replace('_', '-')}: {what}"
