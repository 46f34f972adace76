"""Coding agents for terminals, unchanged: each runs in a home with the settings of `docs/clients.md` and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.clients.tools.scripted_server import GREETING
from tests.docs.documents import ROOT, snippets

PATIENCE_S = 240
ADDRESS = "http://127.0.0.1:8000"
"""The one that the guide names."""
GUIDE = ROOT / "docs" / "clients.md"
RESULT = "rain, 7 °C"
"""What stands in the file that an agent reads."""
PROMPTS = {
    "words": GREETING,
    "read": "What is the weather in Oslo?",
    "search": "Use ToolSearch to find a tool that fetches pages.",
}


class Outcome(NamedTuple):
    """What an agent did: the tools that ran without an error, and its last text."""

    calls: list[str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A program of the npm package that `NAME.json` pins. Its settings name the address of the guide."""

    package: str
    command: Sequence[str]
    """The program and its arguments, to which the prompt is added."""
    calls: Mapping[str, tuple[str, str]]
    """By the prompts that have it call a tool: the tool, and what the result then says."""
    outcome: Callable[[Sequence[Any]], Outcome]
    """Reads the JSON lines that it prints."""
    ignored: str | None = None
    """What the service says that it does not follow."""
    environ: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Texts of files in its home, by path."""


def run_agent(agent: Agent, modules: Path, url: str, home: Path, prompt: str) -> Outcome:
    """Run an agent in a folder with a file to read. `modules`: where npm installed it."""
    project = home / "project"
    project.mkdir()
    (project / "weather.txt").write_text(f"{RESULT}\n")
    for path, text in agent.settings.items():
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace(ADDRESS, url))
    environ = {name: text.replace(ADDRESS, url) for name, text in agent.environ.items()}
    program, *arguments = agent.command
    done = subprocess.run(
        [modules / ".bin" / program, *arguments, prompt],
        cwd=project,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1"} | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return agent.outcome([json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")])


def _of_claude_code(lines: Sequence[Any]) -> Outcome:
    blocks = [
        block
        for line in lines
        if line["type"] in ("assistant", "user")
        for block in line["message"]["content"]
        if isinstance(block, dict)
    ]
    succeeded = {
        block["tool_use_id"]
        for block in blocks
        if block["type"] == "tool_result" and not block.get("is_error")
    }
    calls = [block["name"] for block in blocks if block["type"] == "tool_use" and block["id"] in succeeded]
    return Outcome(calls, lines[-1]["result"])


def _of_codex(lines: Sequence[Any]) -> Outcome:
    items = [line["item"] for line in lines if line["type"] == "item.completed"]
    calls = [
        "exec_command" for item in items if item["type"] == "command_execution" and item["exit_code"] == 0
    ]
    return Outcome(calls, [item["text"] for item in items if item["type"] == "agent_message"][-1])


def _of_opencode(lines: Sequence[Any]) -> Outcome:
    parts = [line["part"] for line in lines if "part" in line]
    calls = [
        part["tool"] for part in parts if part["type"] == "tool" and part["state"]["status"] == "completed"
    ]
    return Outcome(calls, [part["text"] for part in parts if part["type"] == "text"][-1])


(CODEX,), (OPENCODE,) = snippets(GUIDE, "toml"), snippets(GUIDE, "json")
EXPORTS = dict(re.findall(r"^export (\w+)=(\S+)", GUIDE.read_text(), re.MULTILINE))
# What stands in these variables and files is all that is configured. Two more keep programs from asking their vendors.
AGENTS: Mapping[str, Agent] = {
    "claudecode": Agent(
        package="@anthropic-ai/claude-code",
        command=("claude", "--output-format", "stream-json", "--verbose", "-p"),
        calls={"read": ("Read", RESULT), "search": ("ToolSearch", "Tool available: WebFetch")},
        outcome=_of_claude_code,
        ignored="output_config.effort",
        environ=EXPORTS | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    "codex": Agent(
        package="@openai/codex",
        command=("codex", "exec", "--json", "--skip-git-repo-check"),
        calls={"read": ("exec_command", RESULT)},
        outcome=_of_codex,
        ignored="tools[8]",  # its search of the web
        environ={"MIDSTREAM_API_KEY": "a-name-of-its-own"},
        settings={".codex/config.toml": CODEX},
    ),
    "opencode": Agent(
        package="opencode-ai",
        command=("opencode", "run", "--format", "json"),
        calls={"read": ("read", RESULT)},
        outcome=_of_opencode,
        environ={"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        settings={".config/opencode/opencode.json": OPENCODE},
    ),
}
CALLING = [(name, turn) for name, agent in AGENTS.items() for turn in agent.calls]
"""Each agent, with each prompt that has it call a tool."""
