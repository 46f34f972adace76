"""What the deployment files say about settings, held against the settings themselves."""

from __future__ import annotations

import re
from importlib import import_module
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from app.settings import PREFIX, Settings, option_kinds

NAMES = {f"{PREFIX}{name.upper()}" for name in option_kinds()}


def test_the_example_of_an_environment_file_has_settings_with_values_that_are_taken(deploy: Path) -> None:
    lines = (deploy / ".env.example").read_text().splitlines()
    pairs = dict(line.removeprefix("#").split("=", 1) for line in lines if line.startswith(f"#{PREFIX}"))
    assert set(pairs) <= NAMES
    assert len(pairs) > 10
    Settings.read({name: value for name, value in pairs.items() if name != f"{PREFIX}CONFIG"})


def test_compose_drops_no_setting_of_the_environment_file(deploy: Path) -> None:
    """All of the file reaches the service. What compose sets beside it has a default alone, which the file replaces."""
    service = yaml.safe_load((deploy / "compose.yaml").read_text())["services"]["midstream"]
    assert service["env_file"] == [{"path": ".env", "required": False}]
    environment = service["environment"]
    assert (environment.pop("MIDSTREAM_HOST"), environment.pop("MIDSTREAM_PORT")) == ("0.0.0.0", "8000")
    for name, value in environment.items():
        assert name in NAMES
        assert re.fullmatch(rf"\$\{{{name}:-.+\}}", value)


def test_compose_starts_the_service_with_settings_it_takes(deploy: Path) -> None:
    environment = yaml.safe_load((deploy / "compose.yaml").read_text())["services"]["midstream"][
        "environment"
    ]
    settings = Settings.read(
        {name: re.sub(r"\$\{\w+:-(.+)\}", r"\1", value) for name, value in environment.items()}
    )
    assert settings.redis_url == "redis://redis:6379/0"
    assert settings.allowed_hosts == ("midstream",)


def test_compose_trusts_its_nginx_and_no_other_container(deploy: Path) -> None:
    text = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", (deploy / "compose.yaml").read_text())
    compose = yaml.safe_load(text)
    services, (network,) = compose["services"], compose["networks"]["default"]["ipam"]["config"]
    nginx = services["nginx"]["networks"]["default"]["ipv4_address"]
    assert services["midstream"]["environment"]["MIDSTREAM_TRUSTED_PROXIES"] == nginx
    assert ip_address(nginx) in ip_network(network["subnet"])
    assert ip_address(nginx) not in ip_network(network["ip_range"])


def test_the_example_of_filters_names_what_can_be_imported(deploy: Path) -> None:
    named = re.search(r"derived from (\S+)\.(\w+),", (deploy / "midstream.toml").read_text())
    assert named
    assert getattr(import_module(named[1]), named[2])().reply() is None


@pytest.mark.parametrize("name", ["Dockerfile", "midstream.service"])
def test_every_variable_in_the_files_is_a_setting(deploy: Path, name: str) -> None:
    variables = re.findall(rf"({PREFIX}[A-Z_]+)=(\S+)", (deploy / name).read_text())
    assert variables
    assert Settings.read(dict(variables) | {"MIDSTREAM_INSECURE": "1"})


def test_the_example_of_the_file_is_read(deploy: Path) -> None:
    settings = Settings.read({}, {"config": str(deploy / "midstream.toml")})
    assert settings.tables.keys() == {"upstream", "filters"}


def test_the_unit_waits_for_the_drain_and_signals_the_gateway_alone(deploy: Path) -> None:
    unit = (deploy / "midstream.service").read_text()
    patience, drain = (
        int(re.findall(rf"{name}=(\d+)", unit)[0]) for name in ("TimeoutStopSec", "MIDSTREAM_DRAIN_TIMEOUT")
    )
    assert patience >= drain + 10
    assert "\nKillMode=mixed\n" in unit
