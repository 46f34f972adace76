"""A service whose replies an upstream makes, and the file that names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.models import shown_model, tables_of, with_models
from app.server import address, listen
from app.service import engines_of
from app.settings import Settings, SettingsError
from connections.authentication.api_keys import digest_of
from engine.scripted import Call, ScriptedEngine, Step, Thought
from engine.upstream.engine import UpstreamEngine, UpstreamFleet
from tests.app.in_process_service import InProcessService, serving, serving_tables, settings_with
from tests.engine.upstream_server import Answer, UpstreamServer, upstream_server

ONE = '[[upstream]]\nname = "one"\nurl = "http://h/v1"\nmodel = "m"\ncontext_tokens = 4096\n'
KEY = "a key that nobody else has"
EXAMPLE = Path(__file__).parent.parent.parent / "deploy" / "midstream.toml"


def named_by(folder: Path, text: str, **more: str) -> Settings:
    file = folder / "upstreams.toml"
    file.write_text(text)
    return settings_with(config=str(file), **more)


@pytest.fixture
async def server() -> AsyncIterator[UpstreamServer]:
    async with upstream_server() as upstream:
        yield upstream


@pytest.fixture
async def running(tmp_path: Path, server: UpstreamServer) -> AsyncIterator[InProcessService]:
    """A service over that server."""
    text = ONE.replace("http://h/v1", server.url).replace('"m"', '"model"')
    async with serving_tables(tmp_path, text) as service:
        yield service


async def test_a_cancel_from_the_socket_closes_the_upstreams_stream(
    running: InProcessService, server: UpstreamServer
) -> None:
    server.answers = [Answer(("word ",), endless=True)]
    async with running.socket() as socket:
        await socket.send(type="send", client_msg_id="1", content="talk", params={"max_new_tokens": 4000})
        await socket.next("delta")
        await socket.send(type="cancel")
        async with asyncio.timeout(30):
            await server.closed.wait()
        done = await socket.next("done")
        assert done["reason"] == "cancelled"
        assert "steps_after" not in done["cancel"] or done["cancel"]["steps_after"] is None
        await socket.send(type="send", client_msg_id="2", content="again")
        assert (await socket.next("done"))["reason"] == "stop"


async def test_an_upstream_that_turns_messages_away_sheds_them(
    running: InProcessService, server: UpstreamServer
) -> None:
    """It is no failure: the client is told when to try again. Until then it is refused before anything is accepted."""
    server.answers = [Answer(status=429, error="busy", headers={"Retry-After": "100"})]
    async with running.socket() as socket:
        await socket.send(type="send", client_msg_id="1", content="hello")
        done = await socket.next("done")
        assert (done["reason"], done["error"]["code"]) == ("interrupted", "overloaded")
        assert done["error"]["retry_after_ms"] == 60_000
        await socket.send(type="send", client_msg_id="2", content="hello")
        refusal = await socket.next("error")
        assert (refusal["code"], refusal["retryable"]) == ("overloaded", True)
        assert 50_000 < refusal["retry_after_ms"] <= 60_000
    assert len(server.bodies) == 1


async def test_the_openai_door_says_both_in_its_own_words(
    running: InProcessService, server: UpstreamServer
) -> None:
    server.answers = [Answer(status=503, error="busy", headers={"Retry-After": "7"})]
    body = {"model": "model", "messages": [{"role": "user", "content": "hello"}]}
    lacking = await running.request("POST", "/v1/chat/completions", json=body | {"top_k": 5})
    assert (lacking.status_code, lacking.json()["error"]["param"]) == (400, "top_k")
    shed = await running.request("POST", "/v1/chat/completions", json=body)
    assert (shed.status_code, shed.json()["error"]["code"]) == (503, "overloaded")
    assert shed.headers["Retry-After"] == "7"


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALLED = [
    {"role": "user", "content": "Look!"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "c_1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c_1", "content": "A tree."},
]


@asynccontextmanager
async def chained_services(folder: Path) -> AsyncIterator[tuple[InProcessService, InProcessService]]:
    """A service, and one in front of it, whose replies it makes."""
    async with serving(folder / "inner") as inner:
        text = ONE.replace("http://h/v1", f"{inner.url}/v1").replace('"m"', '"midstream-demo"')
        async with serving_tables(folder, f'{text}server = "midstream"') as outer:
            yield inner, outer


@pytest.mark.parametrize(
    ("body", "script"),
    [
        ({"messages": CALLED, "tools": TOOLS}, [Thought("Hm."), "I see: ", Call("look", '{"at":2}', "c_2")]),
        ({"messages": CALLED, "tools": TOOLS, "tool_choice": "required"}, [Call("look", "{}", "c_2")] * 2),
        ({"messages": CALLED[:1], "response_format": {"type": "json_object"}}, ["{}"]),
        ({"messages": CALLED[:1], "guided_regex": "a+", "min_p": 0.1}, ["aaa"]),
        ({"messages": CALLED[:1], "reasoning_effort": "none"}, ["So."]),
        ({"messages": CALLED[:1], "logprobs": True, "top_logprobs": 2}, ["Grüß", " Gott", " 👍!"]),
        ({"messages": CALLED[:1], "ignore_eos": True}, [" upon", " a time"]),
    ],
)  # fmt: skip
async def test_a_request_through_two_services_is_the_same_as_to_the_inner_one(
    body: dict[str, Any], script: list[Step], tmp_path: Path
) -> None:
    async with chained_services(tmp_path) as (inner, outer):
        reported = []
        for service in (inner, outer):
            inner.engine.script(script)
            asked = body | {"model": "midstream-demo", "max_tokens": 50}
            answer = await service.request("POST", "/v1/chat/completions", json=asked)
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            reported.append((choice, answer.json()["usage"]["completion_tokens"]))
        direct, through = inner.engine.requests
    assert reported[0] == reported[1]
    assert through.messages == direct.messages
    ours = (
        msgspec.structs.replace(through.spec, template={}) if body.get("reasoning_effort") else through.spec
    )
    assert ours == direct.spec
    assert through.params == msgspec.structs.replace(direct.params, logit_bias=through.params.logit_bias)


async def test_what_an_upstream_can_not_follow_is_refused_by_name(
    running: InProcessService, server: UpstreamServer
) -> None:
    hello = {"model": "model", "messages": [{"role": "user", "content": "hello"}]}
    async with httpx.AsyncClient(base_url=f"{running.url}/v1") as client:
        for fields, name in (
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"min_p": 0.1}, "min_p"),
            ({"logprobs": True}, "top_logprobs"),
        ):
            answer = await client.post("/chat/completions", json=hello | fields)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert not server.bodies


def test_the_example_is_a_file_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEY", "secret")
    settings = settings_with(config=str(EXAMPLE))
    assert [options.name for options in tables_of(settings).upstream] == ["vllm-a", "vllm-b"]
    assert shown_model(settings) == "Qwen/Qwen3-8B"
    assert isinstance(engines_of(settings), UpstreamFleet)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[upstream", "upstreams.toml"),
        (ONE + "adress = 1", "adress"),
        (ONE + "max_request = 5", r"upstreams\.toml: .*`max_request` .*Did you mean max_requests\?"),
        ("[[engine]]\nmodel = 'm'\nkv_memry = 5", r"Did you mean kv_memory\?"),
        (ONE + "features = {cache = true}", "cache"),
        (ONE + 'server = "other"', "server"),
        (ONE + 'server = "vllm"\nfeatures = 5', "features"),
        (ONE.replace("http:", "ftp:"), "url"),
        (ONE + ONE, "the same name"),
        (ONE + 'key_variable = "NOT_SET_ANYWHERE"', "NOT_SET_ANYWHERE is not set"),
        (ONE + 'key_variable = "MIDSTREAM_KEY"', "would be a setting"),
        (ONE + 'key_variable = "TWO_LINES"', "no key may have"),
        (ONE + 'ca_file = "/nowhere.pem"', "ca_file"),
    ],
)
def test_a_file_that_cant_be_used_is_refused_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    monkeypatch.setenv("TWO_LINES", "a\nb")
    with pytest.raises(SettingsError, match=complaint):
        engines_of(named_by(tmp_path, text))


def test_a_model_and_upstreams_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="names others: use only one"):
        engines_of(named_by(tmp_path, ONE, model="mine"))


async def test_a_server_is_asked_for_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--upstream URL` alone is enough to serve what runs there."""
    monkeypatch.setenv("UPSTREAM_API_KEY", KEY)
    async with serving(tmp_path / "inner", api_keys=f"front:{digest_of(KEY)}:app") as inner:
        settings = await asyncio.to_thread(
            with_models, Settings.read({}, {"upstream": (f"{inner.url}/v1", f"{inner.url}/v1/")})
        )
        (upstream,) = tables_of(settings).upstream
        assert (upstream.model, upstream.context_tokens, upstream.server) == (
            "midstream-demo",
            4096,
            "midstream",
        )
        assert upstream.features.tokenize is None
        assert upstream.features.tools == "all"
        engine = engines_of(settings)
        assert isinstance(engine, UpstreamEngine)
        async with (
            engine.running(),
            serving(tmp_path / "outer", cast("ScriptedEngine", engine), tables=settings.tables) as running,
            running.socket() as socket,
        ):
            assert socket.ready["model"] == "midstream-demo"
            inner.engine.script("Hello there.")
            await socket.send(type="send", client_msg_id="1", content="hello")
            *events, _ = await socket.until("done")
    assert "".join(event["text"] for event in events if event["type"] == "delta") == "Hello there."


LISTS = [
    (
        [{"id": "a", "owned_by": "vllm", "max_model_len": 999}, {"id": "lora", "owned_by": "vllm"}],
        (999, 999),
        "vllm",
    ),
    ([{"id": "a", "owned_by": "llamacpp", "meta": {"n_ctx_train": 32768}}], (2048,), "llama-server"),
    ([{"id": "a", "context_length": 555}], (555,), None),
    ([{"id": "a"}], (4096,), None),
]


@pytest.mark.parametrize(("models", "windows", "kind"), LISTS)
async def test_what_a_server_says_of_its_models_is_taken(
    models: list[dict[str, object]], windows: tuple[int, ...], kind: str | None
) -> None:
    slots = {"default_generation_settings": {"n_ctx": 2048}}
    async with listing({"/v1/models": {"data": models}, "/props": slots}) as url:
        settings = await asyncio.to_thread(with_models, Settings(upstream=(f"{url}/v1",)))
    upstreams = tables_of(settings).upstream
    assert [one.model for one in upstreams] == [one["id"] for one in models]
    assert tuple(one.context_tokens for one in upstreams) == windows
    assert {one.server for one in upstreams} == {kind}


@pytest.mark.parametrize(
    ("answers", "path", "words"),
    [
        ({}, "", "answers 404. The URL needs its base path"),
        ({"/v1/models": {"data": []}}, "/v1", "lists no models"),
        ({"/v1/models": {"models": []}}, "/v1", "is not a list of models"),
        ({"/v1/models": 401}, "/v1", "answers 401: give its API key in the variable UPSTREAM_API_KEY"),
    ],
)
async def test_a_server_that_lists_no_models_stops_the_start(
    answers: dict[str, object], path: str, words: str
) -> None:
    async with listing(answers) as url:
        with pytest.raises(SettingsError, match=words):
            await asyncio.to_thread(with_models, Settings(upstream=(f"{url}{path}",)))


def test_a_server_that_is_not_there_stops_the_start() -> None:
    with pytest.raises(SettingsError, match=r"^MIDSTREAM_UPSTREAM \(--upstream\): .* does not answer"):
        with_models(Settings(upstream=("http://127.0.0.1:1/v1",)))


async def test_a_list_of_models_is_bounded_and_a_model_that_it_repeats_is_one() -> None:
    one = {"id": "m", "owned_by": None, "max_model_len": 4096.0}
    async with listing({"/v1/models": {"data": [one, one]}}) as url:
        settings = await asyncio.to_thread(with_models, Settings(upstream=(f"{url}/v1",)))
    assert [(table.model, table.context_tokens) for table in tables_of(settings).upstream] == [("m", 4096)]
    async with listing({"/v1/models": {"data": [one | {"owned_by": "x" * 2_000_000}]}}) as url:
        with pytest.raises(SettingsError, match="too long"):
            await asyncio.to_thread(with_models, Settings(upstream=(f"{url}/v1",)))


async def test_a_server_that_is_away_stops_no_start_if_another_one_serves() -> None:
    async with listing({"/v1/models": {"data": [{"id": "m"}]}}) as url:
        both = ("http://127.0.0.1:1/v1", f"{url}/v1")
        settings = await asyncio.to_thread(with_models, Settings(upstream=both))
    assert [table.model for table in tables_of(settings).upstream] == ["m"]


def test_a_key_is_sent_to_one_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_API_KEY", "sk-secret")
    with pytest.raises(SettingsError, match="would be sent to all 2 servers") as refused:
        with_models(Settings(upstream=("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1")))
    assert "sk-secret" not in str(refused.value)


@asynccontextmanager
async def listing(answers: dict[str, object]) -> AsyncIterator[str]:
    """A server with these answers in JSON, or these statuses."""

    async def app(request: HttpRequest) -> Response:
        answer = answers.get(request.url.path, 404)
        return Response(status_code=answer) if isinstance(answer, int) else JSONResponse(answer)

    config = uvicorn.Config(Starlette(routes=[Route("/{path:path}", app)]), log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield address(listener, scheme="http")
        finally:
            server.should_exit = True
            await task
