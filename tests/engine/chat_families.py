"""Tokenizers for families of models, made here: with the tokens that their replies need, and templates like theirs."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.engine.conftest import small_tokenizer

LAST_USER = (
    "{% set ns = namespace(asked=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
)

QWEN = LAST_USER + (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "You may call these:\n<tools>{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '\n' }}</tools>\n"
    'Write a call as <tool_call>\n{"name": …, "arguments": …}\n</tool_call><|im_end|>\n'
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if m.reasoning_content and loop.index0 > ns.asked %}"
    "<think>\n{{ m.reasoning_content.strip('\n') }}\n</think>\n\n{% endif %}"
    "{{ m.content }}"
    "{% for call in m.tool_calls %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Calls like Hermes. Only the current exchange keeps its reasoning."""

LLAMA = (
    "{% if tools %}<|start_header_id|>system<|end_header_id|>\n\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Call one by {"name": …, "parameters": …}.<|eot_id|>{% endif %}'
    "{% for m in messages %}"
    "{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>'
    "{% else %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""A call is the whole reply, and a message has only one."""

ALTERNATES = (
    "{% set alternation = namespace(turn=0) %}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (alternation.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set alternation.turn = alternation.turn + 1 %}{% endif %}{% endfor %}"
)

ANSWERED = (
    "{% set calling = namespace(open=0) %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{% if calling.open == 0 %}{{ raise_exception('a result without a call') }}{% endif %}"
    "{% set calling.open = calling.open - 1 %}"
    "{% elif calling.open > 0 %}{{ raise_exception('fewer results than calls') }}{% endif %}"
    "{% if m.tool_calls %}{% set calling.open = m.tool_calls | length %}{% endif %}{% endfor %}"
    "{% if calling.open > 0 %}{{ raise_exception('fewer results than calls') }}{% endif %}"
)

NINE = "{% if (%s | string | length) != 9 %}{{ raise_exception('ids of calls must have nine letters') }}{% endif %}"

MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}{% endif %}"
    + ALTERNATES
    + ANSWERED
    + "{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if tools and m == asked[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {% if loop.last and system is defined %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}"
    + NINE.replace("%s", "call.id")
    + '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }}</s>"
    "{% elif m.role == 'tool' %}"
    + NINE.replace("%s", "m.tool_call_id")
    + '[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %}{{ raise_exception('only user and assistant roles are supported, besides one system message at the start') }}"
    "{% endif %}{% endfor %}"
)
"""As Mistral 7B: the system prompt moves along with the last message of the user, ids have nine letters, roles alternate."""

R1 = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|bot|>{{ m.content.split('</think>')[-1] }}<|end|>"
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|><think>\n{% endif %}"
)
"""The prompt opens the reasoning, which later prompts leave out."""

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Neither tools nor reasoning."""


def family(template: str, special: tuple[str, ...], added: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    tokenizer = small_tokenizer()
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in added])
    tokenizer.chat_template = template
    return tokenizer


CHATML = ("<|im_start|>", "<|im_end|>")
THINKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
MISTRALS = (
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
)

FAMILIES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "qwen": lambda: family(QWEN, CHATML, THINKS),
    "llama": lambda: family(LLAMA, HEADERS),
    "mistral": lambda: family(MISTRAL, MISTRALS),
    "r1": lambda: family(R1, ("<|bot|>", "<|user|>", "<|system|>", "<|end|>"), ("<think>", "</think>")),
    "plain": lambda: family(PLAIN, CHATML),
}
