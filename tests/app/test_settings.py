"""A setting is a variable and an option of the same name. A mistake in one stops the start with its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from app import cli
from app.settings import (
    DEMO_MODEL,
    Fixed,
    Limits,
    Settings,
    SettingsError,
    limits_in,
    option_kinds,
    read_file,
    with_unit,
)

NAMES = option_kinds()
ISSUER = {"MIDSTREAM_JWT_ISSUER": "https://provider.example"}


def test_every_setting_has_an_option_of_its_name() -> None:
    assert isinstance(cli.serve, click.Command)
    assert {option.name for option in cli.serve.params} == {*NAMES, "help_all"}


def test_every_option_tells_its_variable_and_what_it_is_for() -> None:
    for option in cli.serve.params:
        assert isinstance(option, click.Option)
        if option.name == "help_all":
            continue
        text, _, variable = (option.help or "").rpartition(" [")
        assert variable == f"MIDSTREAM_{str(option.name).upper()}]"
        assert text


def test_nothing_set_serves_the_demo_model_on_loopback() -> None:
    settings = Settings.read({})
    assert (settings.host, settings.port, settings.redis_url) == ("127.0.0.1", 8000, None)
    assert (settings.model_path, settings.model_name) == (str(DEMO_MODEL), "midstream-demo")


@pytest.mark.parametrize(
    ("environ", "name", "value"),
    [
        (
            {"MIDSTREAM_MODEL": "", "MIDSTREAM_PORT": ""},
            "port",
            8000,
        ),  # as Compose files pass unset variables
        ({"MIDSTREAM_SYSTEM_PROMPT": '"Be brief."'}, "system_prompt", '"Be brief."'),
        (
            {"MIDSTREAM_ALLOWED_ORIGINS": "https://a.example, https://b.example,"},
            "allowed_origins",
            ("https://a.example", "https://b.example"),
        ),
        ({"MIDSTREAM_ALLOWED_IPS": "10.0.0.0/8, ::/0"}, "allowed_ips", ("10.0.0.0/8", "::/0")),
        ({"MIDSTREAM_ALLOWED_HOSTS": "a.example,b.example"}, "allowed_hosts", ("a.example", "b.example")),
        ({"MIDSTREAM_TOOLS": "string:capwords, json:dumps"}, "tools", ("string:capwords", "json:dumps")),
        ({"MIDSTREAM_DEVICE": "auto"}, "devices", ("auto",)),
        ({"MIDSTREAM_DEVICE": "cuda:0, cuda:1"}, "devices", ("cuda:0", "cuda:1")),
        ({"MIDSTREAM_DEVICE": " cpu "}, "devices", ("cpu",)),
        *(
            ({"MIDSTREAM_HOST": host}, "host", host)
            for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost")
        ),
        *(
            ({"MIDSTREAM_JWKS_URL": url, "MIDSTREAM_JWT_AUDIENCE": "chat"}, "jwks_url", url)
            for url in ("http://127.0.0.1:80/keys", "http://localhost/keys", "https://keys.example")
        ),
        ({}, "authenticates", False),
        *(
            ({"MIDSTREAM_HOST": "0.0.0.0", "MIDSTREAM_JWT_AUDIENCE": "chat"} | given, "authenticates", True)
            for given in (
                {"MIDSTREAM_API_KEYS": "/etc/midstream/keys"},
                {"MIDSTREAM_JWT_SECRET": "s" * 32},
                {"MIDSTREAM_JWKS_URL": "https://provider.example/keys"},
                ISSUER,
            )
        ),
        (ISSUER | {"MIDSTREAM_JWT_AUDIENCE": "a"}, "oidc_issuer", "https://provider.example"),
        ({"MIDSTREAM_JWT_ISSUER": "our-company", "MIDSTREAM_JWT_SECRET": "s" * 32}, "oidc_issuer", None),
        ({}, "default_pace", 100.0),
        ({"MIDSTREAM_CHARS_PER_S": "0"}, "default_pace", 0.0),
        ({"MIDSTREAM_MODEL": "some/model"}, "default_pace", 0.0),
        ({"MIDSTREAM_UPSTREAM": "http://127.0.0.1:8001/v1"}, "default_pace", 0.0),
        ({"MIDSTREAM_MODEL": "some/model", "MIDSTREAM_CHARS_PER_S": "40"}, "default_pace", 40.0),
        ({"MIDSTREAM_DRAIN_TIMEOUT": "10"}, "drain_timeout", 10.0),
        ({"MIDSTREAM_DRAIN_TIMEOUT": "500ms"}, "drain_timeout", 0.5),
        ({"MIDSTREAM_DRAIN_TIMEOUT": "1.5 m"}, "drain_timeout", 90.0),
        ({"MIDSTREAM_CONVERSATION_TTL": "30d"}, "conversation_ttl", 2_592_000.0),
        ({"MIDSTREAM_STORE_MEMORY": "768MiB"}, "store_memory", 768 * 2**20),
        ({"MIDSTREAM_STORE_MEMORY": "20000000"}, "store_memory", 20_000_000),
        ({"MIDSTREAM_KV_MEMORY": "2.5gb"}, "kv_memory", 2_500_000_000),
    ],
)
def test_what_is_written_gives_a_value(environ: dict[str, str], name: str, value: object) -> None:
    assert getattr(Settings.read(environ), name) == value


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"MIDSTREAM_MAX_BACH": "4"},
            "Unknown setting MIDSTREAM_MAX_BACH. Did you mean MIDSTREAM_MAX_BATCH?",
        ),
        (
            {"MIDSTREAM_XYZZY": "4"},
            "Unknown setting MIDSTREAM_XYZZY. `midstream serve --help-all` lists all.",
        ),
        *(({f"MIDSTREAM_{name.upper()}": "1"}, "Unknown setting") for name in Fixed.__struct_fields__),
        ({"midstream_port": "9000"}, "Unknown setting midstream_port. Did you mean MIDSTREAM_PORT?"),
        # Docker's `--env-file` takes quotation marks and comments as parts of values.
        ({"MIDSTREAM_MODEL": '"org/model"'}, "MIDSTREAM_MODEL has quotation marks around its value"),
        ({"MIDSTREAM_MODEL": "org/model\r"}, "MIDSTREAM_MODEL ends with a carriage return"),
        ({"MIDSTREAM_MAX_BATCH": "4 # at once"}, "'4 # at once' is not a whole number"),
        (ISSUER, "needs MIDSTREAM_JWT_AUDIENCE"),
        (
            {"MIDSTREAM_JWT_ISSUER": "http://provider.example", "MIDSTREAM_JWT_AUDIENCE": "a"},
            "plain http",
        ),
        (
            {"MIDSTREAM_JWT_ISSUER": "our-company", "MIDSTREAM_JWT_AUDIENCE": "a"},
            "'our-company' is not the URL of an OpenID Connect",
        ),
    ],
)
def test_what_can_not_be_meant_stops_the_start_with_its_name(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.read(environ)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("port", "http", "'http' is not a whole number from 0 to 65,535."),
        ("max_turns", "0", "'0' is not a whole number of 1 or more."),
        (
            "drain_timeout",
            "soon",
            "'soon' is not a duration such as 10s, 5m or 30d, or a number of seconds of 0 or more.",
        ),
        ("drain_timeout", "10 parsecs", "'10 parsecs' is not a duration such as 10s"),
        (
            "conversation_ttl",
            "0d",
            "'0d' is not a duration such as 10s, 5m or 30d, or a number of seconds above 0.",
        ),
        (
            "kv_memory",
            "2 apples",
            "'2 apples' is not a size such as 500MB or 2GiB, or a number of bytes of 1 or more.",
        ),
        ("chars_per_s", "-1", "'-1' is not a number from 0 to 1,000."),
        (
            "limits",
            "message_rate=0",
            "message_rate: Expected `float` > 0.0",
        ),
        ("limits", "tokens_a_day=1", "unknown field `tokens_a_day`. Did you mean tokens_per_day?"),
        ("upstream", "vllm:8000", " takes a list, separated by commas: URL of an OpenAI-compatible server"),
        ("insecure", "perhaps", "'perhaps' is not true or false."),
        ("log_level", "warn", "'warn' is not one of debug, error, info, warning. Did you mean warning?"),
        ("jwt_secret", "sesame", " takes a text of 32 characters or more: "),
        ("device", "cuda,", ": 'cuda,' can't be used. It takes one of these: auto, cpu, cuda"),
        ("device", "cuda:0 cuda:1", ": 'cuda:0 cuda:1' can't be used."),
        ("port", "65536", "'65536' is not a whole number from 0 to 65,535."),
    ],
)
def test_what_a_setting_takes_is_told_in_plain_words(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.read({}, {name: value})
    assert message in str(refused.value)


def test_a_system_prompt_is_a_text_or_a_file(tmp_path: Path) -> None:
    words = tmp_path / "system.txt"
    words.write_text("\nBe brief.\nBe kind, café.\n", encoding="utf-8")
    assert Settings.read({"MIDSTREAM_SYSTEM_PROMPT": "Be brief."}).system_prompt == "Be brief."
    assert Settings.read({}, {"system_prompt": f"@{words}"}).system_prompt == "Be brief.\nBe kind, café."
    assert Settings.read({}).system_prompt is None


@pytest.mark.parametrize(
    ("written", "why"), [(None, "can't be read: "), (b"\xff", "can't be read: "), (b" \n", "is empty")]
)
def test_a_file_that_says_no_system_prompt_stops_the_start(
    written: bytes | None, why: str, tmp_path: Path
) -> None:
    words = tmp_path / "system.txt"
    if written is not None:
        words.write_bytes(written)
    with pytest.raises(SettingsError, match=rf"^MIDSTREAM_SYSTEM_PROMPT \(--system-prompt\): .*{why}"):
        Settings.read({"MIDSTREAM_SYSTEM_PROMPT": f"@{words}"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "chat.example.org"])
def test_beyond_loopback_is_served_only_by_one_who_says_so(host: str) -> None:
    with pytest.raises(SettingsError, match=r"without authentication.*--insecure"):
        Settings.read({"MIDSTREAM_HOST": host})
    assert Settings.read({"MIDSTREAM_HOST": host, "MIDSTREAM_INSECURE": "1"}).host == host


def test_a_short_secret_stops_the_start_and_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sesame-open\n")
    for value in ("sesame-open", f"@{tmp_path}/secret"):
        with pytest.raises(SettingsError, match=r"^MIDSTREAM_JWT_SECRET \(--jwt-secret\)") as refused:
            Settings.read({"MIDSTREAM_JWT_SECRET": value})
        assert "sesame" not in str(refused.value)
    (tmp_path / "secret").write_text("s" * 40 + "\n")
    assert Settings.read({"MIDSTREAM_JWT_SECRET": f"@{tmp_path}/secret"}).jwt_secret == "s" * 40


@pytest.mark.parametrize("name", ["jwks_url", "jwt_issuer"])
def test_tokens_that_were_signed_for_other_services_stop_the_start(name: str) -> None:
    given = {name: "https://provider.example/keys"}
    with pytest.raises(SettingsError, match=r"needs MIDSTREAM_JWT_AUDIENCE .* or \*"):
        Settings.read({}, given)
    for audience in ("chat", "*"):
        assert Settings.read({}, given | {"jwt_audience": audience}).authenticates


@pytest.mark.parametrize(
    "url",
    ["http://provider.example/keys", "http://127.0.0.1@evil.example/", "file:///etc/passwd", "https:///x"],
)
def test_a_key_set_that_somebody_may_put_in_stops_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^MIDSTREAM_JWKS_URL"):
        Settings.read({"MIDSTREAM_JWKS_URL": url, "MIDSTREAM_JWT_AUDIENCE": "chat"})
    if url.startswith("http:"):
        given = {"MIDSTREAM_JWKS_URL": url, "MIDSTREAM_INSECURE": "1", "MIDSTREAM_JWT_AUDIENCE": "*"}
        assert Settings.read(given).jwks_url == url


@pytest.mark.parametrize(("base", "folder"), [("/var/data", "/var/data/midstream"), ("", None)])
def test_data_is_kept_where_the_user_keeps_data(
    base: str, folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", base)
    assert Settings.read({}).data_dir == (folder or str(Path("~/.local/share/midstream").expanduser()))


def test_a_model_of_a_folder_is_named_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    requested: dict[str, Any] = {"MIDSTREAM_MODEL": str(folder)}
    assert Settings.read(requested).model_name == "my-model"
    assert Settings.read({"MIDSTREAM_MODEL": "org/their-model"}).model_name == "org/their-model"


def test_defaults_are_shown_with_their_units() -> None:
    assert with_unit(10.0, "duration") == "10s"
    assert with_unit(2_592_000.0, "duration") == "30d"
    assert with_unit(2**30, "size") == "1GiB"


def test_an_option_outranks_a_variable_and_that_outranks_the_file(tmp_path: Path) -> None:
    file = tmp_path / "midstream.toml"
    file.write_text(
        """
        port = 1
        max_batch = 2
        max_turns = 3
        drain_timeout = "1m"
        store_memory = "64MiB"
        allowed_hosts = ["a.example", "b.example"]
        limits = {messages_per_minute = 5}
        """
    )
    environ = {"MIDSTREAM_CONFIG": str(file), "MIDSTREAM_PORT": "10", "MIDSTREAM_MAX_BATCH": "20"}
    settings = Settings.read(environ, {"port": "100"})
    assert (settings.port, settings.max_batch, settings.max_turns) == (100, 20, 3)
    assert (settings.drain_timeout, settings.store_memory) == (60.0, 64 * 2**20)
    assert settings.allowed_hosts == ("a.example", "b.example")
    assert settings.limits == Limits(messages_per_minute=5)
    assert settings.limits_file == str(file)


def test_limits_of_an_option_are_all_that_is_in_force(tmp_path: Path) -> None:
    file = tmp_path / "midstream.toml"
    file.write_text("[limits]\nmessages_per_minute = 5")
    settings = Settings.read(
        {"MIDSTREAM_CONFIG": str(file)}, {"limits": "key_tokens_per_day=9, read_rate=2.5"}
    )
    assert settings.limits == Limits(key_tokens_per_day=9, read_rate=2.5)
    assert settings.limits_file is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_bach = 4", "midstream.toml: unknown setting max_bach. Did you mean max_batch?"),
        ("[[upstreams]]\nname = 'a'", "midstream.toml: unknown setting upstreams. Did you mean upstream?"),
        ("request_s = 4", "midstream.toml: unknown setting request_s."),
        ("config = 'another.toml'", "midstream.toml: unknown setting config."),
        ("port = 'http'", "MIDSTREAM_PORT (--port): 'http' is not a whole number from 0 to 65,535."),
        ("port =", "MIDSTREAM_CONFIG (--config): "),
        ("", "No such file"),
        ("upstream = 5", "MIDSTREAM_UPSTREAM (--upstream) takes a list"),
        ("upstream = [5]", "MIDSTREAM_UPSTREAM (--upstream) takes a list"),
        ("limits = {message_rate = 0}", "MIDSTREAM_LIMITS (--limits): message_rate: "),
    ],
)
def test_a_mistake_in_the_file_stops_the_start_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "midstream.toml"
    if text:
        file.write_text(text)
    with pytest.raises(SettingsError) as refused:
        Settings.read({}, {"config": str(file)})
    assert words in str(refused.value)


def test_servers_of_an_option_take_the_place_of_those_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "midstream.toml"
    file.write_text("[[upstream]]\nname = 'a'\n[filters]\nmax_chars = 9")
    environ = {"MIDSTREAM_CONFIG": str(file)}
    assert Settings.read(environ).tables.keys() == {"upstream", "filters"}
    settings = Settings.read(environ, {"upstream": ("http://127.0.0.1:8001/v1",)})
    assert settings.tables.keys() == {"filters"}
    assert settings.lists_models


def test_limits_in_a_line_of_the_file_are_read_as_those_in_a_table(tmp_path: Path) -> None:
    line, table = tmp_path / "line.toml", tmp_path / "table.toml"
    line.write_text('limits = "message_rate=5, tokens_per_day=100"')
    table.write_text("[limits]\nmessage_rate = 5\ntokens_per_day = 100")
    assert limits_in(line) == limits_in(table)


@pytest.mark.parametrize("name", ["filters", "embedder"])
def test_a_table_that_is_no_table_is_refused_with_what_to_write(tmp_path: Path, name: str) -> None:
    (file := tmp_path / "midstream.toml").write_text(f'{name} = "x"')
    with pytest.raises(SettingsError, match=rf"{name} is a table: write \[{name}\]"):
        read_file(file)
