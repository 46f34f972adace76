"""The page of all settings, from their descriptions."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from app.cli import GROUPS, metavar
from app.settings import PREFIX, described, option_defaults, option_kinds

_COLUMNS = 100
_HEAD = """\
# Settings

<!-- Generated from app/settings.py by `make specs`. -->

Each setting is an environment variable, an option of `midstream serve`, and a key of the file that
`--config` names. `MIDSTREAM_DRAIN_TIMEOUT=30s`, `--drain-timeout 30s` and `drain_timeout = "30s"`
mean the same. An option overrides a variable, and a variable overrides the file. If a name is
unknown, the service does not start.

- **Durations** may have a unit: `500ms`, `10s`, `5m`, `12h`, `30d`. Without one, they are seconds.
- **Sizes** may have a unit: `500MB`, `2GiB`. Without one, they are bytes.
- **Lists** are separated by commas in a variable. In the file, they are arrays.

The image and the files in [deploy](../deploy/README.md) change some defaults.

The file may also have these tables ([example](../deploy/midstream.toml)):

- `[[upstream]]`, `[[engine]]`, `[[model]]` and `[[embedder]]`: [models and servers](upstreams.md)
- `[[mcp_server]]`: [tools](tools.md#mcp-servers)
- `[filters]` and `[limits]`

The file is read at startup. When the file changes, and after SIGHUP, the service rereads only
`[limits]`, except `key_connections`. After SIGHUP, it also rereads the files that `api_keys`,
`allowed_origins` and `tls_cert` name.
"""
_LIMITS = """\
Example: `--limits message_rate=100,key_connections=50`. Limits that you don't name keep their defaults.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_entries()])


def _entries() -> Iterator[str]:
    defaults = option_defaults()
    for name, kind in option_kinds().items():
        if name in GROUPS:
            yield f"## {GROUPS[name]}\n"
        is_flag = metavar(kind) == "FLAG"
        option = f"--{'no-' if is_flag and defaults[name] else ''}{name.replace('_', '-')}"
        value = "" if is_flag else f" {metavar(kind)}"
        words = f"- **`{PREFIX}{name.upper()}`** (`{option}{value}`): {described(kind, defaults[name])}"
        yield (
            "\n".join(
                wrap(words, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
            )
            + "\n"
        )
        if name == "limits":
            yield "\n".join(wrap(_LIMITS, _COLUMNS, break_on_hyphens=False)) + "\n"
