"""An operator's settings for tools: a mistake stops the start, and the error says where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.parts import tool_box_of
from app.settings import Settings, SettingsError, read_file

SERVER = '[[mcp_server]]\nname = "shop"\nurl = "http://127.0.0.1:9/mcp"\ntools = ["price"]\n'


def settings(path: Path, text: str) -> Settings:
    file = path / "tools.toml"
    file.write_text(text)
    return Settings.read({"MIDSTREAM_CONFIG": str(file)})


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("nowhere:f", "nowhere:f can't be loaded: ModuleNotFoundError"),
        ("json", "'json' does not name a function"),
        ("string:capwords", "string:capwords: capwords can't be a tool: parameter s has no type hint"),
    ],
)
def test_a_function_that_can_not_be_a_tool_stops_the_start(named: str, words: str) -> None:
    with pytest.raises(SettingsError) as failure:
        tool_box_of(Settings.read({"MIDSTREAM_TOOLS": named}))
    assert str(failure.value).startswith(f"MIDSTREAM_TOOLS (--tools): {words}")


FILES = [
    (f"{SERVER}[[mcp_server\n", "line 5"),
    (f"{SERVER}colour = 3\n", "unknown field `colour` - at `$[0]`"),
    (f"{SERVER}never_asked = []\n", "Did you mean never_ask?"),
    ('[[mcp_server]]\nname = "shop"\nurl = "http://a/"\n', "missing required field `tools` - at `$[0]`"),
    (SERVER.replace('["price"]', "[]"), "length >= 1 - at `$[0].tools`"),
    (SERVER.replace("http:", "ftp:"), "`$[0].url`"),
    (f"{SERVER}connect_s = 0\n", "`$[0].connect_s`"),
    (SERVER * 2, "two servers have the name 'shop'."),
    (f'{SERVER}never_ask = ["buy"]\n', "shop: 'buy' is none of its tools."),
    (
        f'{SERVER}never_ask = ["price"]\nalways_ask = ["price"]\n',
        "shop: 'price' is in always_ask and in never_ask.",
    ),
    (
        f'{SERVER}headers = {{a = "b"}}\nheaders_from = {{A = "B"}}\n',
        "shop: the header 'a' is in headers and in headers_from.",
    ),
    (f'{SERVER}headers_from = {{A = "NOT_SET_AT_ALL"}}\n', "shop: the variable NOT_SET_AT_ALL is not set."),
    (f'{SERVER}headers_from = {{A = "MIDSTREAM_X"}}\n', "shop: MIDSTREAM_X would be a setting"),
    (f'{SERVER}ca_file = "/nowhere/at/all"\n', "shop: its ca_file can't be used"),
    ("mcp_server = 5", "mcp_server is a table: write [mcp_server] or [[mcp_server]]."),
]


@pytest.mark.parametrize(("text", "words"), FILES)
def test_a_file_that_can_not_be_used_stops_the_start(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as failure:
        tool_box_of(settings(tmp_path, text))
    assert "tools.toml" in str(failure.value)
    assert words in str(failure.value)


def test_a_header_is_a_secret_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_AUTH", "Bearer ü")
    with pytest.raises(SettingsError, match="SHOP_AUTH holds characters that no key may have"):
        tool_box_of(settings(tmp_path, f'{SERVER}headers_from = {{Authorization = "SHOP_AUTH"}}\n'))


def test_no_server_is_waited_for_before_the_box_runs(tmp_path: Path) -> None:
    assert tool_box_of(settings(tmp_path, SERVER)).offered() == ()


def test_a_service_without_the_library_for_mcp_says_what_to_install(tmp_path: Path) -> None:
    """Its functions still work: the library is imported only if a server is named."""
    file = tmp_path / "tools.toml"
    file.write_text(SERVER)
    assert "mcp_server" in read_file(file)[1]
    reported = output_without_mcp(f"tool_box_of(Settings.read({{'MIDSTREAM_CONFIG': {str(file)!r}}}))")
    assert "mcp is not installed" in reported
    assert 'pip install "midstream-server[mcp]"' in reported
    assert output_without_mcp("print(tool_box_of(Settings.read({})).offered())") == "()\n"


def output_without_mcp(code: str) -> str:
    """The output of a Python without the library."""
    program = f"""
import sys
sys.modules["mcp"] = None  # as if it were not installed
from app.settings import SettingsError
from app.settings import Settings
from app.parts import tool_box_of
try:
    {code}
except SettingsError as error:
    print(error)
"""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
