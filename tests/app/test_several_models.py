"""Several models behind one service: which is asked, whose facts count, which is the fallback, and what clients see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.service import engines_of
from app.settings import Settings, SettingsError
from engine.process.client import EngineClient
from engine.served_models import EngineFleet, ServedModels
from tests.app.in_process_service import InProcessService, Socket, serving_tables, settings_with
from tests.engine.upstream_server import Answer, UpstreamServer, upstream_server
from tests.jwt_signing import KEY

Frame = dict[str, Any]

FILE = """
[[model]]
name = "big"
aliases = ["best"]
fallbacks = ["small"]

[[upstream]]
name = "s"
url = "{small}"
model = "model"
served_name = "small"
context_tokens = 400

[[upstream]]
name = "b"
url = "{big}"
model = "model"
served_name = "big"
context_tokens = 4096
features = {{top_k = true, affinity_header = "X-Dynamo-Session-ID", prompt_cache_key = true}}
"""


class Two:
    """A service over two upstreams, a big one with a small one as its fallback."""

    def __init__(
        self, running: InProcessService, models: ServedModels, big: UpstreamServer, small: UpstreamServer
    ) -> None:
        self.running = running
        self.models = models
        self.big = big
        self.small = small

    async def all_ready(self) -> None:
        for model in self.models.models:
            await model.engine.ready(10)

    async def chat(self, **body: Any) -> httpx.Response:
        """The answer of OpenAI's endpoint."""
        request = {"model": "big", "messages": [{"role": "user", "content": "hello"}]} | body
        return await self.running.request("POST", "/v1/chat/completions", json=request)


def settings_of(folder: Path, text: str, **more: Any) -> Settings:
    file = folder / "models.toml"
    file.write_text(text)
    return settings_with(config=str(file), **more)


@asynccontextmanager
async def two_models(
    folder: Path, *, away: bool = False, file: str = FILE, **more: Any
) -> AsyncIterator[Two]:
    """`away`: nobody listens at the big one's address."""
    async with upstream_server() as big, upstream_server() as small:
        url = big.url.replace("127.0.0.1", "127.0.0.2") if away else big.url
        async with serving_tables(folder, file.format(big=url, small=small.url), **more) as running:
            models = cast("Any", running.engine)
            assert isinstance(models, ServedModels)
            yield Two(running, models, big, small)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with two_models(tmp_path) as both:
        await both.all_ready()
        yield both


async def exchange(socket: Socket, number: int, *, content: str = "hello", **params: Any) -> list[Frame]:
    """All events of a message, from its acceptance to its end."""
    await socket.send(type="send", client_msg_id=str(number), content=content, params=params)
    return await socket.until("done")


async def test_all_models_are_listed_with_their_names_and_windows(two: Two) -> None:
    async with two.running.socket() as socket:
        assert socket.ready["model"] == "big"
        assert socket.ready["limits"]["context_tokens"] == 4096
        big, small = socket.ready["models"]
    unsupported = ["repetition_penalty"]
    assert big == {
        "name": "big",
        "aliases": ["best"],
        "context_tokens": 4096,
        "unsupported": unsupported,
        "fallbacks": ["small"],
        "features": ["tools"],
    }
    assert small == {
        "name": "small",
        "context_tokens": 400,
        "unsupported": ["top_k", *unsupported],
        "features": ["tools"],
    }
    listed = (await two.running.request("GET", "/v1/models")).json()["data"]
    one = (await two.running.request("GET", "/v1/models/best")).json()
    none = await two.running.request("GET", "/v1/models/huge")
    reported = [(model["id"], model["max_model_len"], model.get("root")) for model in listed]
    assert reported == [("big", 4096, None), ("best", 4096, "big"), ("small", 400, None)]
    assert one == listed[1]
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")


async def test_each_message_goes_to_the_model_that_it_names_which_stays_with_its_conversation(
    two: Two,
) -> None:
    async with two.running.socket({"client_id": "me"}) as socket:
        first, *_, done = await exchange(socket, 1)
        accepted = first
        assert (accepted["model"], done["model"]) == ("big", "big")
        assert (len(two.big.bodies), len(two.small.bodies)) == (1, 0)
        accepted, *_, done = await exchange(socket, 2, model="small")
        assert (accepted["model"], done["model"]) == ("small", "small")
        assert (len(two.big.bodies), len(two.small.bodies)) == (1, 1)
        assert (await exchange(socket, 9))[-1]["model"] == "small"
        accepted, *_, done = await exchange(socket, 3, model="best")
        assert (accepted["model"], done["model"]) == ("big", "big")
        assert "requested_model" not in done
        await socket.send(type="history")
        page = await socket.next("history")
        await socket.send(type="send", client_msg_id="3", content="hello", conversation_id="another")
        assert (await socket.next("done"))["model"] == "big"
    written = [message["model"] for message in page["messages"]]
    assert written == [None, "big", None, "small", None, "small", None, "big"]
    async with two.running.socket({"client_id": "me"}) as socket:
        await socket.send(type="resume", conversation_id="default", epoch=first["epoch"], after_seq=0)
        await socket.next("resumed")
        missed = [await socket.next("done") for _ in range(4)]
    assert [event["model"] for event in missed] == ["big", "small", "small", "big"]


async def test_a_reply_is_made_again_by_its_own_model(two: Two) -> None:
    """Edits, too: the new branch asks the model that the old one asked."""
    async with two.running.socket() as socket:
        accepted, *_, done = await exchange(socket, 1, model="small")
        await exchange(socket, 2, model="big")
        again = {"client_msg_id": "3", "message_id": done["message_id"]}
        await socket.send(type="regenerate", **again)
        assert (await socket.next("done"))["model"] == "small"
        edit = {"client_msg_id": "4", "message_id": accepted["message_id"], "content": "other"}
        await socket.send(type="edit", **edit)
        assert (await socket.next("done"))["model"] == "small"
        await socket.send(type="regenerate", **again | {"client_msg_id": "5", "params": {"model": "big"}})
        assert (await socket.next("done"))["model"] == "big"


async def test_a_message_in_the_queue_keeps_the_model_that_it_was_sent_for(two: Two) -> None:
    two.big.answers = [Answer(hold_after=1)]
    go = two.big.answers[0].go
    async with two.running.socket() as socket:
        await socket.send(type="send", client_msg_id="1", content="hello")
        await socket.next("delta")
        await socket.send(
            type="send", client_msg_id="2", content="then", on_busy="enqueue", params={"model": "small"}
        )
        assert (await socket.next("accepted"))["model"] == "small"
        await socket.send(type="send", client_msg_id="3", content="and", on_busy="enqueue")
        assert (await socket.next("accepted"))["model"] == "small"
        go.set()
        assert [(await socket.next("done"))["model"] for _ in range(3)] == ["big", "small", "small"]


async def test_an_unknown_model_is_refused_by_its_name_and_ends_nothing(two: Two) -> None:
    two.big.answers = [Answer(hold_after=1)]
    async with two.running.socket() as socket:
        await socket.send(type="send", client_msg_id="1", content="hello")
        await socket.next("delta")
        await socket.send(
            type="send", client_msg_id="2", content="x", on_busy="interrupt", params={"model": "huge"}
        )
        refusal = await socket.next("error")
        assert (refusal["code"], refusal["ref"]) == ("model_not_found", "2")
        assert refusal["message"] == 'This server has "big", "small", and no model "huge".'
        await socket.send(type="history")
        running = (await socket.next("history"))["messages"][-1]["message_id"]
        again = {"client_msg_id": "3", "message_id": running, "on_busy": "interrupt"}
        await socket.send(type="regenerate", **again, params={"model": "huge"})
        assert (await socket.next("error"))["code"] == "model_not_found"
        await socket.send(type="cancel")
        assert (await socket.next("done"))["cancel"]["cause"] == "client"
    answer = await two.chat(model="huge")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
    with pytest.raises(InvalidStatus, match="404"):
        async with connect(f"{two.running.url.replace('http', 'ws')}/v1/realtime?model=huge"):
            pass


async def test_the_window_and_the_parameters_are_those_of_the_model_which_is_asked(two: Two) -> None:
    long = "word " * 400  # an estimated 671 tokens
    async with two.running.socket() as socket:
        *_, done = await exchange(socket, 1, content=long)
        assert done["model"] == "big"
        await socket.send(type="send", client_msg_id="2", content=long, params={"model": "small"})
        refusal = await socket.next("error")
        assert (refusal["code"], "room for 399" in refusal["message"]) == ("context_overflow", True)
        for max_new_tokens in (0, -2):
            params = {"model": "small", "max_new_tokens": max_new_tokens}
            await socket.send(type="send", client_msg_id="3", content="x", params=params)
            refusal = await socket.next("error")
            assert (refusal["code"], "-1 for no limit" in refusal["message"]) == ("bad_params", True)
        *_, done = await exchange(socket, 4, max_new_tokens=401, top_k=5, model="big")
        assert done["model"] == "big"
        await socket.send(type="send", client_msg_id="5", content="x", params={"top_k": 5, "model": "small"})
        refusal = await socket.next("error")
        assert (refusal["code"], "`top_k`" in refusal["message"]) == ("bad_params", True)
    answer = await two.chat(model="small", messages=[{"role": "user", "content": long}])
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert not two.small.bodies
    for max_tokens in (401, -1):
        assert (await two.chat(model="small", max_tokens=max_tokens)).status_code == 200
    assert [body["max_tokens"] <= 400 for body in two.small.bodies] == [True, True]


async def test_a_fallback_answers_where_the_model_fails_before_its_text(two: Two) -> None:
    """At once: the model is not asked again while another one could answer."""
    two.big.answers = [Answer(status=500, error="oops")] * 9
    async with two.running.socket() as socket:
        events = await exchange(socket, 1)
        accepted, done = events[0], events[-1]
        reported = [(event.get("state"), event.get("model")) for event in events if event["type"] == "status"]
        assert reported == [("fallback", "small")]
        assert accepted["model"] == "big"
        assert (done["reason"], done["model"], done["requested_model"]) == ("stop", "small", "big")
        assert (len(two.big.bodies), len(two.small.bodies)) == (1, 1)
        two.big.answers = []
        *_, done = await exchange(socket, 2)
        assert done["model"] == "big", "the conversation is not the fallback's from now on"
        await socket.send(type="history")
        page = await socket.next("history")
    assert [one["model"] for one in page["messages"] if one["role"] == "assistant"] == ["small", "big"]


async def test_a_fallback_answers_where_the_model_sheds_load(two: Two) -> None:
    two.big.answers = [Answer(status=429, error="busy", headers={"Retry-After": "100"})]
    async with two.running.socket() as socket:
        for number in (1, 2):  # when it is refused, and while the model wants no more requests
            *_, done = await exchange(socket, number)
            assert (done["model"], done["requested_model"]) == ("small", "big")
    assert len(two.big.bodies) == 1


async def test_a_fallback_answers_at_once_where_the_model_is_away_and_is_enough_to_be_ready(
    tmp_path: Path,
) -> None:
    async with two_models(tmp_path, away=True) as two:
        await two.models.named("small").engine.ready(10)
        async with two.running.socket() as socket, asyncio.timeout(5):
            assert socket.ready["models"][0] == {"name": "big", "aliases": ["best"], "fallbacks": ["small"]}
            events = await exchange(socket, 1)
        assert [event.get("model") for event in events if event["type"] == "status"] == ["small"]
        assert (events[-1]["model"], events[-1]["requested_model"]) == ("small", "big")
        answer = (await two.chat()).json()
        assert (answer["model"], answer["choices"][0]["finish_reason"]) == ("small", "stop")
        ready = await two.running.request("GET", "/readyz")
    assert (ready.status_code, ready.json()["models"]) == (200, {"big": "loading", "small": "ready"})


async def test_a_fallback_that_cant_follow_is_none(two: Two) -> None:
    """Because of its parameters, or of a prompt that must not be cut: the model itself is asked again, as without a fallback."""
    two.big.answers = [Answer(status=500, error="oops")]
    async with two.running.socket() as socket:
        *events, done = await exchange(socket, 1, top_k=5)
    assert done["model"] == "big"
    assert "retrying" in [event.get("state") for event in events]
    two.big.answers = [Answer(status=500, error="oops")]
    answer = (await two.chat(messages=[{"role": "user", "content": "word " * 400}])).json()
    assert answer["model"] == "big"
    assert not two.small.bodies


async def test_a_conversation_is_shortened_to_the_fallbacks_window(two: Two) -> None:
    async with two.running.socket() as socket:
        for number in range(4):
            await exchange(socket, number, content=f"{number} " + "word " * 100)
        two.big.answers = [Answer(status=500, error="oops")]
        *_, done = await exchange(socket, 9, content="and now?")
    assert done["model"] == "small"
    messages = two.small.bodies[0]["messages"]
    assert messages[-1]["content"] == "and now?"
    assert 1 < len(messages) < len(two.big.bodies[-1]["messages"])
    assert messages[0]["role"] == "user"


async def test_what_has_begun_is_not_begun_again_by_another_model(two: Two) -> None:
    two.big.answers = [Answer(cut_after=1)]
    async with two.running.socket() as socket:
        *_, done = await exchange(socket, 1)
    assert (done["reason"], done["model"]) == ("interrupted", "big")
    assert not two.small.bodies


async def test_openais_door_tells_who_wrote_a_stream(two: Two) -> None:
    two.big.answers = [Answer(status=500, error="oops")]
    answer = await two.chat(stream=True)
    chunks = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    assert ['"model":"small"' in chunk for chunk in chunks[1:]] == [True] * (len(chunks) - 1)


async def test_a_realtime_session_asks_the_model_that_it_came_for(two: Two) -> None:
    url = f"{two.running.url.replace('http', 'ws')}/v1/realtime?model=small"
    async with connect(url) as opened:
        socket = Socket(opened)
        created = await socket.next("session.created")
        assert created["session"]["model"] == "small"
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
        await socket.send(type="conversation.item.create", item=item)
        await socket.send(type="response.create")
        done = await socket.next("response.done")
    assert (done["response"]["status"], done["response"]["model"]) == ("completed", "small")
    assert (len(two.big.bodies), len(two.small.bodies)) == (0, 1)


async def test_routers_are_told_the_session_and_nothing_of_whose_it_is(two: Two) -> None:
    async with two.running.socket({"client_id": "alice"}) as socket:
        await exchange(socket, 1)
        await exchange(socket, 2)
        await socket.send(type="send", client_msg_id="3", content="hello", conversation_id="plans")
        await socket.next("done")
    sessions = [headers["x-dynamo-session-id"] for headers in two.big.headers]
    assert sessions[0] == sessions[1] != sessions[2]
    assert sessions == [body["prompt_cache_key"] for body in two.big.bodies]
    assert "alice" not in str(two.big.headers) + str(two.big.bodies)


async def test_a_clients_own_key_of_the_prompts_cache_is_passed_on_as_a_digest(two: Two) -> None:
    for key, content in (("a", "one"), ("a", "two"), ("b", "one")):
        messages = [{"role": "user", "content": content}]
        assert (await two.chat(prompt_cache_key=key, messages=messages)).status_code == 200
    for key in ("a", "a", "b"):
        asked = {"model": "big", "messages": [{"role": "user", "content": key}], "prompt_cache_key": key}
        await two.running.request("POST", "/v1/chat/completions", KEY, json=asked)
    of_one_client = [body["prompt_cache_key"] for body in two.big.bodies[3:]]
    assert of_one_client[0] == of_one_client[1] != of_one_client[2]
    assert len({body["prompt_cache_key"] for body in two.big.bodies[:3]}) == 3, "of nobody known"


async def test_each_model_is_measured_and_looked_at(two: Two) -> None:
    two.big.answers = [Answer(status=500, error="oops")]
    async with two.running.socket() as socket:
        await exchange(socket, 1)
        await exchange(socket, 2, model="small")
    _, _, metrics = await two.running.get("/metrics")
    assert 'midstream_model_turns_total{model="small",requested="big"} 1.0' in metrics
    assert 'midstream_model_turns_total{model="small",requested="small"} 1.0' in metrics
    assert 'midstream_engine_failures_total{engine="0",model="big"} 1.0' in metrics
    report = (await two.running.request("GET", "/readyz")).json()
    assert report["models"] == {"big": "ready", "small": "ready"}


ENGINES = """
[[upstream]]
name = "b"
url = "http://h/v1"
model = "big"
context_tokens = 4096

[[engine]]
model = "owner/small"
max_batch = 4

[[engine]]
model = "owner/tiny"
served_name = "tiny"
device = "cpu,cpu"
"""


async def test_engines_here_and_upstreams_serve_side_by_side(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, ENGINES, device="cpu", max_batch=16)
    models = engines_of(settings)
    assert isinstance(models, ServedModels)
    assert [model.name for model in models.models] == ["big", "owner/small", "tiny"]
    small, tiny = (models.named(name).engine for name in ("owner/small", "tiny"))
    assert isinstance(small, EngineClient)
    assert isinstance(tiny, EngineFleet)
    options = [small._options, *(part._options for part in tiny.parts)]
    assert [(one.model, one.max_batch) for one in options] == [
        ("owner/small", 4),
        ("owner/tiny", 16),
        ("owner/tiny", 16),
    ]
    assert {round(one.memory_share, 3) for one in options} == {0.333}, "they share the machine"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ('[[model]]\nname = "huge"', "served by no"),
        ('[[model]]\nname = "big"\nfallbacks = ["huge"]', "is not a served model"),
        ('[[model]]\nname = "big"\nfallbacks = ["big"]', "as a fallback"),
        ('[[model]]\nname = "big"\naliases = ["tiny"]', "two models have the name 'tiny'"),
        ('[[model]]\nname = "big"\n[[model]]\nname = "big"', "two tables"),
        ('[[engine]]\nmodel = "big"', "served twice"),
    ],
)
def test_a_file_whose_models_cant_be_is_refused(tmp_path: Path, more: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        engines_of(settings_of(tmp_path, f"{more}\n{ENGINES}"))
