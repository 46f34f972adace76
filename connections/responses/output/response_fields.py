"""Converts a request's fields to those of its response. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from connections.responses.output import wire
from connections.responses.output.mcp_wire import McpTool
from connections.responses.requests import models
from connections.responses.requests.models import Creation
from connections.responses.requests.tools import joined_name
from engine.messages import Message, ToolCall
from sessions.events import Usage


def initial_response(request: Creation, *, response_id: str, model: str, created: int) -> wire.Response:
    """Return a response that has just begun."""
    return wire.Response(
        id=response_id,
        created_at=created,
        model=model,
        previous_response_id=request.previous_response_id,
        instructions=request.instructions,
        tools=tuple(_tools(request.tools or ())),
        tool_choice=_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_tool_calls=request.max_tool_calls,
        text=_text(request.text),
        reasoning=_effort(request.reasoning),
        max_output_tokens=request.max_output_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        top_logprobs=request.top_logprobs or 0,
        truncation="auto" if request.truncation == "auto" else "disabled",
        background=bool(request.background),
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        user=request.user,
    )


def usage_of(usage: Usage) -> wire.Usage:
    """Return the usage of a turn."""
    return wire.Usage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=wire.InputDetails(usage.cached_tokens),
        output_tokens=usage.generated_tokens,
        output_tokens_details=wire.OutputDetails(usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.generated_tokens,
    )


def output_messages(output: tuple[wire.Output, ...]) -> tuple[Message, ...]:
    """Return a reply's items as messages for the model that continues from it."""
    texts = [
        part.text
        for item in output
        if isinstance(item, wire.Message)
        for part in item.content
        if not isinstance(part, wire.InputImage)
    ]
    thoughts = [part.text for item in output if isinstance(item, wire.ReasoningItem) for part in item.content]
    calls = tuple(
        ToolCall(item.call_id, joined_name(item.namespace or None, item.name), item.arguments)
        for item in output
        if isinstance(item, wire.FunctionCall)
    )
    if not texts and not calls:
        return ()
    return (Message("assistant", "".join(texts), reasoning="".join(thoughts), calls=calls),)


def _tools(given: Sequence[models.Tool]) -> Iterator[wire.FunctionTool | wire.NamespaceTool | McpTool]:
    """Yield the tools that are offered."""
    for tool in given:
        match tool.type:
            case "function":
                yield _function(tool)
            case "namespace":
                functions = tuple(_function(one) for one in tool.tools or () if one.type == "function")
                yield wire.NamespaceTool(name=tool.name or "", description=tool.description, tools=functions)
            case "mcp":
                yield McpTool(
                    server_label=tool.server_label or "",
                    server_description=tool.server_description,
                    server_url=tool.server_url,
                    allowed_tools=tool.allowed_tools,
                    require_approval=tool.require_approval or "always",
                )


def _function(tool: models.Tool) -> wire.FunctionTool:
    return wire.FunctionTool(
        name=tool.name or "", description=tool.description, parameters=tool.parameters, strict=tool.strict
    )


def _choice(given: str | models.ToolChoice | None) -> str | dict[str, Any]:
    match given:
        case None:
            return "auto"
        case str():
            return given
        case models.ToolChoice(type="function"):
            return {"type": "function", "name": given.name}
        case models.ToolChoice(type="mcp"):
            return {"type": "mcp", "server_label": given.server_label, "name": given.name}
        case _:
            tools = [{"type": one.type, "name": one.name} for one in given.tools or ()]
            return {"type": given.type, "mode": given.mode, "tools": tools}


def _text(given: models.TextConfig | None) -> dict[str, Any]:
    requested = given.format if given is not None else None
    if requested is None or requested.type != "json_schema":
        return {"format": {"type": "text" if requested is None else requested.type}}
    named: dict[str, Any] = {
        "type": requested.type,
        "name": requested.name or "",
        "description": requested.description,
        "schema": requested.schema,
        "strict": requested.strict is not False,
    }
    return {"format": named}


def _effort(given: models.Reasoning | None) -> wire.Effort:
    return wire.Effort() if given is None else wire.Effort(given.effort, given.summary)
