"""The specifications say what the code does: as files, to the standards' own schemas, and in what really goes over the wire."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.routing import Route

from connections.api.anthropic.requests import MessageRequest
from connections.api.audio import Audio, audio_routes
from connections.api.chat_requests import OFF, ChatRequest
from connections.api.endpoint import PageRoutes
from connections.api.responses.parser import Creation, parse_response_request, response_turn_request
from connections.http import RefusalCounters
from connections.protocol import frames, params
from connections.protocol.base import ClientFrame
from connections.protocol.errors import BadParams
from engine.scripted import Call, Thought
from sessions.errors import Refused
from sessions.limits.rates import FrameCost
from specs import __main__ as specs
from specs import openapi, schemas
from specs.frames import asyncapi
from speech.espeak import Espeak
from speech.recognition import POCKETSPHINX, PocketSphinx, Recognizer
from tests.app.in_process_service import Frame, InProcessService, Socket
from tests.app.raw_http import answer
from tests.connections.openai.test_chat_requests import LIMITS, parsed

HERE = Path(__file__).parent
PROTOCOL = HERE.parent.parent / "PROTOCOL.md"
REFERENCE = HERE.parent.parent / "docs" / "reference.md"
VALIDATOR = Draft202012Validator(schemas.document())
DEFINED: dict[str, Any] = schemas.document()["$defs"]
"""Every schema by its name."""
OPENAPI = openapi.document()


def of(name: str) -> Draft202012Validator:
    """What checks one kind of frame."""
    return VALIDATOR.evolve(schema={"$ref": f"#/$defs/{name}", "$defs": DEFINED})


def test_the_files_are_those_that_the_code_makes() -> None:
    assert specs.differing() == []


def test_a_file_that_differs_is_named_until_it_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(specs, "ROOT", tmp_path)
    monkeypatch.setattr(specs, "SERVED", tmp_path / "served")
    assert specs.main(["--check"]) == 1
    assert "frames.d.ts differs from the code: run `make specs`" in capsys.readouterr().err
    assert specs.main([]) == specs.main(["--check"]) == 0
    (tmp_path / "served" / "openapi.json").write_text("{}")
    assert specs.main(["--check"]) == 1
    assert capsys.readouterr().err.startswith("served/openapi.json differs")


# ---- to the standards' own schemas


def test_the_http_doors_are_described_as_openapi_asks() -> None:
    validate(OPENAPI)


def test_the_socket_is_described_as_asyncapi_asks() -> None:
    """The schema is that of the package @asyncapi/specs 6.11 (Apache-2.0), without its white space."""
    standard = Draft7Validator(json.loads((HERE / "asyncapi-3.0.0.json").read_text()))
    document = yaml.safe_load((specs.SERVED / "asyncapi.yaml").read_text())
    assert [error.message for error in standard.iter_errors(document)] == []
    assert [*standard.iter_errors(document | {"channels": {"socket": {"address": 1}}})] != []


def test_every_reference_of_the_sockets_description_is_there() -> None:
    document = asyncapi()

    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            return own + [ref for inner in part.values() for ref in references(inner)]
        return [ref for inner in part for ref in references(inner)] if isinstance(part, list) else []

    for reference in set(references(document)):
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_the_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema(schemas.document())


# ---- to the code


@pytest.mark.parametrize("file", ["openapi.json", "asyncapi.yaml", "schemas/v1.json"])
async def test_the_service_serves_them(file: str, running: InProcessService) -> None:
    status, body = await answer(running, f"/{file}")
    assert (status, body) == (200, (specs.SERVED / file.replace("/", "-")).read_text())


PAGES = {"/", "/s/{share_id}", "/static/{path:path}", "/docs", "/docs/{path:path}"}


async def test_every_http_route_is_described_and_nothing_else(running: InProcessService) -> None:
    app: Any = running.service._server.config.app
    while not isinstance(app, Starlette):
        app = app._app
    routes: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route) and route.path not in PAGES:
            routes.setdefault(route.path.replace(":path}", "}"), set()).update(route.methods or set())
    audio = Audio(
        recognizer=Recognizer(POCKETSPHINX, PocketSphinx()),
        speaker=Espeak(("en-us",)),
        longest_s=1,
        most_chars=1,
        slots=1,
    )
    opened: Any = audio_routes(
        audio, None, PageRoutes(None, RefusalCounters())
    )  # served where the operator says so
    routes |= {route.path: route.methods for route in opened}
    described = OPENAPI["paths"]
    assert {path: {*map(str.upper, methods)} for path, methods in described.items()} == {
        path: methods - {"HEAD", "OPTIONS"} for path, methods in routes.items()
    }


@pytest.mark.parametrize("frame", [*schemas.client_frames(), *schemas.server_frames()])
def test_the_protocol_lists_every_frame_and_the_reference_its_fields(frame: type[msgspec.Struct]) -> None:
    tag, is_request = str(frame.__struct_config__.tag), issubclass(frame, ClientFrame)
    kind, feature = frames.CLIENT_FRAMES.get(frame), frames.SERVER_FRAMES.get(frame)
    if kind is not None:
        counts = "nothing" if kind.counts is FrameCost.NOTHING else kind.counts
        head = f"| {f'`{kind.scope}`' if kind.scope else 'any'} | {counts}"
    else:
        head = f"| {f'`{feature}`' if feature else 'none'}"
    client, server = PROTOCOL.read_text().partition("| Scope of the token |")[2].split("| Feature |")
    shown = (client if is_request else server.partition("\n\n")[0]).splitlines()
    rows = [line.removesuffix(" |").rpartition(" | ") for line in shown if line.startswith("|")]
    assert [row for row, _, tags in rows if f"`{tag}`" in tags] == [head]
    requests, events = REFERENCE.read_text().split("\n## What the server sends\n")
    entries = (requests if is_request else events).split("\n### ")[1:]
    entry = next(one for one in entries if one.split(maxsplit=1)[0] == tag)
    named = {*re.findall(r"^- `(\w+)\??`:", entry, re.MULTILINE)}
    assert {field.encode_name for field in msgspec.structs.fields(frame)} - {"ref"} <= named


def test_the_reference_describes_every_object() -> None:
    text = " ".join(REFERENCE.read_text().split())
    described = [
        shape["description"] for shape in schemas.schemas("{name}").values() if "properties" in shape
    ]
    assert [words for words in described if " ".join(words.split()).partition(". ")[0] not in text] == []


LOOSE: dict[str, st.SearchStrategy[Any]] = {
    "max_new_tokens": st.integers(-1, 10),
    "temperature": st.floats(-1, 3),
    "top_p": st.floats(-0.5, 1.5),
    "top_k": st.integers(-2, 2**64),
    "repetition_penalty": st.floats(-1, 3),
    "seed": st.integers(-2, 2**64),
    "max_time_s": st.floats(-1, 90_000),
    "chars_per_s": st.sampled_from([0, 9.9, 10]) | st.floats(-1, 2000),
    "stop": st.lists(st.text(max_size=3), max_size=10),
    "system": st.sampled_from(["", "x" * params.MAX_SYSTEM_CHARS, "x" * (params.MAX_SYSTEM_CHARS + 1)]),
}


@settings(deadline=None)
@given(st.sampled_from(sorted(LOOSE)).flatmap(lambda name: st.tuples(st.just(name), LOOSE[name])))
def test_what_is_in_range_is_said_twice_and_is_the_same(field: tuple[str, Any]) -> None:
    name, value = field
    try:
        params.generation(msgspec.convert({name: value}, frames.Params), max_new_tokens=10)
    except (BadParams, msgspec.ValidationError):
        taken = False
    else:
        taken = True
    assert of("Params").is_valid({name: value}) == taken


LOOSE_FOR_OPENAI: dict[str, st.SearchStrategy[Any]] = {
    "top_k": st.integers(-3, 2**64),
    "seed": st.integers(-3, 2**64),
    "min_p": st.floats(-1, 2),
    "presence_penalty": st.floats(-3, 3),
    "repetition_penalty": st.floats(-1, 3),
    "min_tokens": st.integers(-2, LIMITS.max_new_tokens),
    "top_logprobs": st.integers(-2, 30),
    "logit_bias": st.dictionaries(st.sampled_from(["7", "8"]), st.floats(-150, 150)),
}


@settings(deadline=None)
@given(
    st.sampled_from(sorted(LOOSE_FOR_OPENAI)).flatmap(
        lambda name: st.tuples(st.just(name), LOOSE_FOR_OPENAI[name])
    )
)
@example(("top_k", OFF))
@example(("seed", OFF))
def test_so_it_is_at_openais_doors(field: tuple[str, Any]) -> None:
    name, value = field
    try:
        parsed(**{name: value}, logprobs=True)
    except Refused:
        taken = False
    else:
        taken = True
    described = OPENAPI["components"]["schemas"]["ChatRequest"]["properties"][name]
    assert Draft202012Validator(described).is_valid(value) == taken


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"truncation": "auto"}, True),
        ({"truncation": "middle"}, False),
        ({"top_logprobs": 20}, True),
        ({"top_logprobs": 21}, False),
        ({"metadata": {str(number): "" for number in range(16)}}, True),
        ({"metadata": {str(number): "" for number in range(17)}}, False),
        ({"metadata": {"k" * 65: "v" * 513}}, False),
        ({"seed": OFF, "top_k": OFF}, True),
        ({"max_output_tokens": 0}, False),
    ],
)
def test_a_response_is_described_with_the_bounds_that_are_checked(
    fields: dict[str, Any], *, taken: bool
) -> None:
    body = {"model": "m", "input": "Hello!"} | fields
    schema = {"$ref": "#/components/schemas/ResponsesCreation"}
    described = Draft202012Validator(schema | OPENAPI)
    assert described.is_valid(body) == taken
    with nullcontext() if taken else pytest.raises(Refused):
        response_turn_request(parse_response_request(msgspec.json.encode(body)), LIMITS)


@pytest.mark.parametrize(
    ("api", "request_type"),
    [("chat completions", ChatRequest), ("Responses", Creation), ("Messages", MessageRequest)],
)
def test_fields_without_effect_are_not_described_or_described_as_such(
    api: str, request_type: type[msgspec.Struct]
) -> None:
    """`docs/endpoints.md` lists them."""
    text = REFERENCE.with_name("endpoints.md").read_text()
    listed = text.partition("Fields without effect")[2].partition("\n\n`metadata`")[0]
    row = listed.partition(f"\n- {api}:")[2]
    row = row.partition("\n- ")[0].replace("a message's `name`", "")
    names = re.findall(r"`(?:\w+\.)?(\w+…?)`", row)
    assert len(names) > 3
    for struct in schemas.structs([request_type]):
        for field in msgspec.structs.fields(struct):
            for name in names:
                is_it = fnmatch(field.encode_name, name.replace("…", "*"))
                assert not is_it or f"`{name}`" in (struct.__doc__ or ""), (struct, field.encode_name)


# ---- to what goes over the wire


class Checked(Socket):
    """A socket whose every frame has to be one of the schemas', with no field that they do not know."""

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket.opened)
        self.seen = {"ready"}

    async def send(self, **frame: Any) -> None:
        of("Request").validate(frame)
        await super().send(**frame)

    async def next(self, kind: str | None = None) -> Frame:
        while True:
            frame = await super().next()
            of("Frame").validate(frame)
            shape = next(one for one in DEFINED.values() if _is_of(one, frame["type"]))
            assert frame.keys() <= shape["properties"].keys()
            self.seen.add(frame["type"])
            if kind in (None, frame["type"]):
                return frame


def _is_of(schema: dict[str, Any], kind: str) -> bool:
    is_event = not schema["title"].endswith("Request")
    return is_event and schema.get("properties", {}).get("type") == {"enum": [kind]}


async def continue_truncated_reply(one: Checked) -> None:
    """A reply that was cut is continued."""
    cut = {"client_msg_id": "m5", "conversation_id": "cut"}
    await one.send(type="send", content="Go on!", params={"max_new_tokens": 1}, **cut)
    reply = (await one.until("done"))[-1]["message_id"]
    await one.send(type="continue", message_id=reply, **cut | {"client_msg_id": "m6"})
    assert (await one.next("accepted"))["continues"] == reply
    await one.until("done")


async def calls(one: Checked, running: InProcessService) -> None:
    """A reply thinks, calls, and is answered."""
    running.engine.script([Thought("Hm. "), Call("look", '{"at": "it"}')])
    tool = {"name": "look", "parameters": {"type": "object"}, "where": "client", "approval": "always"}
    await one.send(type="send", client_msg_id="m4", content="Look!", conversation_id="tools", tools=[tool])
    await one.next("reasoning")
    call = await one.next("tool_call")
    await one.next("done")
    assert call["name"] == "look"
    await one.send(
        type="tool_decision", call_id=call["call_id"], args_sha256=call["args_sha256"], decision="deny"
    )
    assert {(await one.next())["type"] for _ in range(2)} == {"tool_state", "tool_ack"}
    await one.until("done")


async def interprets(one: Checked) -> None:
    """A source grows, and is translated."""
    await one.send(
        type="interpret.start",
        client_msg_id="m7",
        conversation_id="live",
        target="de",
        publish_policy="segment",
    )
    assert (await one.next("accepted"))["interprets"] == {"source": "auto", "target": "de"}
    await one.send(type="source", conversation_id="live", off=0, text="Hello.", final=True, ref="s")
    assert (await one.next("source"))["final"]
    assert (await one.next("source_ack"))["ref"] == "s"
    assert (await one.next("delta"))["src_off"] == len("Hello.")
    await one.until("done")


async def test_frames_are_as_they_are_described(running: InProcessService) -> None:
    hello = {"client_id": "ann", "features": ["reasoning", "tools", "interpret"]}
    async with running.socket(hello) as first, running.socket(hello) as second:
        of("Frame").validate(first.ready)
        one, other = Checked(first), Checked(second)
        await one.send(type="send", client_msg_id="m1", content="Hello?", ref="r", params={"seed": 1})
        accepted = await one.next("accepted")
        done = (await one.until("done"))[-1]
        await other.ask(type="resume", conversation_id="default", epoch=accepted["epoch"], after_seq=0)
        await other.until("done")
        await other.ask(type="resume", conversation_id="default", epoch="another", after_seq=0)
        await other.next("snapshot")
        await one.send(type="send", client_msg_id="m1", content="Hello?")
        await one.next("accepted")
        await one.send(type="regenerate", message_id=done["message_id"], client_msg_id="m2")
        again = await one.next("accepted")
        while (await one.next("done"))["turn_id"] != again["turn_id"]:
            pass  # that of the message sent twice
        await continue_truncated_reply(one)
        await calls(one, running)
        await interprets(one)
        running.engine.script("word " * 50_000)
        await one.send(type="edit", message_id=accepted["message_id"], content="Hm.", client_msg_id="m3")
        await one.next("delta")
        await one.send(type="cancel", conversation_id="default", mode="rollback")
        await one.until("done")
        await one.send(type="cancel")
        await one.next("cancelled")
        await one.send(type="cancel", turn_id=done["turn_id"], conversation_id="default", mode="rollback")
        await one.next("removed")
        for ask in ("history", "conversations", "ping"):
            await one.ask(type=ask, ref="r")
        await one.send(type="ack", conversation_id="default", seq=1)
        await one.ask(type="rename", conversation_id="default", title="Hello")
        assert (await one.ask(type="search", query="hello"))["hits"] != []
        for ask in ("share", "unshare"):
            await one.ask(type=ask, conversation_id="default")
        await one.ask(type="auth.refresh", token="any")
        await one.ask(type="rename", conversation_id="nothing", title="Hello")
        await one.ask(type="delete", conversation_id="default")
        running.service.stop()
        await one.next("goaway")
    rare = {"status", "limits", "title"}  # a limit is full; the model writes titles
    rare |= {"audio.reply", "audio.started", "audio.stopped", "speech", "transcript", "marks"}  # spoken
    reported = {str(frame.__struct_config__.tag) for frame in schemas.server_frames()}
    assert (one.seen | other.seen) - rare == reported - rare
