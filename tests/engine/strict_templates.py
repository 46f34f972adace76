"""Chat templates, in our own words, that refuse the same histories as those of well-known families of models."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from tests.engine.chat_families import (
    ALTERNATES,
    ANSWERED,
    CHATML,
    HEADERS,
    LLAMA,
    MISTRAL,
    MISTRALS,
    QWEN,
    THINKS,
    family,
)

DEVSTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    + ALTERNATES
    + ANSWERED
    + "{% for m in messages %}"
    "{% if m.role == 'user' %}{% if not m.content %}{{ raise_exception('a message of the user has no content') }}{% endif %}"
    "[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}"
    "{% if not m.content and not m.tool_calls %}{{ raise_exception('a reply has neither content nor calls') }}{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls %}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}</s>"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ raise_exception('only user, assistant and tool roles are supported, got ' + m.role) }}{% endif %}{% endfor %}"
)
"""As Devstral 2 and Ministral 3: empty messages are refused too."""

GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no such role') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""As Gemma 2: neither a system role nor tools."""

GEMMA_3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set first = '' %}{% endif %}"
    + GEMMA.split("{% endif %}", 1)[1].replace("\n{{ m.content", "\n{{ first if loop.first }}{{ m.content")
)
"""As Gemma 3, which writes the system prompt into the first message of the user."""

QWEN_STRICT = (
    "{% set query = namespace(found=false) %}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{% if m.role == 'user' %}{% set query.found = true %}{% endif %}{% endfor %}"
    "{% if not query.found %}{{ raise_exception('No user query found in messages.') }}{% endif %}" + QWEN
)
"""As Qwen 3.5: a system prompt only at the beginning, and somebody has to ask."""

LLAMA_STRICT = (
    "{% if tools %}{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% if not rest %}{{ raise_exception('tools need a first message of the user') }}{% endif %}{% endif %}"
    + LLAMA
)
"""As Llama 3.1: tools are shown with the first message of the user, and a message has one call."""


def strict_families() -> dict[str, PreTrainedTokenizerFast]:
    """Return tokenizers with these templates, by name."""
    gemmas = ("<start_of_turn>", "<end_of_turn>")
    return {
        "mistral": family(MISTRAL, MISTRALS),
        "devstral": family(DEVSTRAL, MISTRALS),
        "gemma": family(GEMMA, gemmas),
        "gemma 3": family(GEMMA_3, gemmas),
        "qwen": family(QWEN_STRICT, CHATML, THINKS),
        "llama": family(LLAMA_STRICT, HEADERS),
    }
