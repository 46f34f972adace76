"""The chat template: roles, tools in Hermes' form, and thoughts. What it writes is what the training reads.

A tool is spelled short: its name, and the name and type of each parameter that it requires (of all, where none is named as
required). Its description is left out: a model of this size understands none. A prompt without tools and thoughts is as it
was before the model knew either.
"""

_HEAD = """\
{{- bos_token }}
{%- if tools is not defined or not tools %}{%- set tools = [] %}{%- endif %}
{%- macro listed(tool) %}
{%- set tool = tool.function if tool.function is defined else tool %}
{%- set schema = tool.parameters if tool.parameters is defined and tool.parameters else {} %}
{%- set known = schema.properties if schema.properties is defined and schema.properties else {} %}
{%- set wanted = schema.required if schema.required is defined and schema.required is not none else known.keys() | list %}
{{- '{"name": ' + tool.name | tojson + ', "parameters": {' }}
{%- for name in wanted %}
{%- set kind = known[name].type if name in known and known[name].type is defined else 'any' %}
{{- name | tojson + ': ' + kind | tojson }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- '}}' }}
{%- endmacro %}
{%- macro tool_list() %}
{{- '<tools>\\n' }}{%- for tool in tools %}{{- listed(tool) + '\\n' }}{%- endfor %}{{- '</tools>' }}
{%- endmacro %}
{%- macro called(call) %}
{%- set call = call.function if call.function is defined else call %}
{{- '<tool_call>\\n{"name": ' + call.name | tojson + ', "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endmacro %}
"""
_MESSAGES = """\
{%- if tools and (not messages or messages[0].role != 'system') %}
{{- '<|system|>' + tool_list() + eos_token }}
{%- endif %}
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
{{- raise_exception('the roles are system, user, assistant and tool') }}
{%- endif %}
{%- set content = message.content if message.content is defined and message.content is not none else '' %}
{%- if message.role == 'tool' %}
{{- '\\n' if loop.previtem is defined and loop.previtem.role == 'tool' else '<|user|>' }}
{{- '<tool_response>\\n' + content + '\\n</tool_response>' }}
{{- '' if loop.nextitem is defined and loop.nextitem.role == 'tool' else eos_token }}
{%- else %}
{{- '<|' + message.role + '|>' }}
{%- if message.role == 'assistant' and message.reasoning_content is defined and message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content | trim + '\\n</think>\\n\\n' }}
{%- endif %}
{{- content }}
{%- if message.role == 'assistant' and message.tool_calls is defined and message.tool_calls %}
{%- for call in message.tool_calls %}
{{- ('\\n' if content or not loop.first else '') + called(call) }}
{%- endfor %}
{%- endif %}
{%- if loop.first and message.role == 'system' and tools %}
{{- ('\\n\\n' if content else '') + tool_list() }}
{%- endif %}
{{- eos_token }}
{%- endif %}
{%- endfor %}
"""
_REPLY = """\
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{%- if enable_thinking is defined and enable_thinking is true %}{{- '<think>\\n' }}{%- endif %}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

CHAT_TEMPLATE = _HEAD + _MESSAGES + _REPLY

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*<\|end\|>", "content": "text"},
    },
}
"""How `parse_response` of transformers takes a reply apart (5.17 and newer; older ones ignore it)."""
