"""Chat templates of the shapes that families of models have, in our own words."""

from __future__ import annotations

GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
"""No system role, no tools, turns that alternate."""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(turn=0) %}
{%- for message in rest %}
{%- if message.role == 'user' or (message.role == 'assistant' and message.tool_calls is not defined) %}
{%- if (message.role == 'user') != (ns.turn % 2 == 0) %}
{{- raise_exception('After the optional system message, roles must alternate user and assistant') }}
{%- endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in rest %}
{%- if message.role == 'user' %}
{%- set last = message == users[-1] %}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' if last and tools is not none }}
{{- '[INST] ' + (system + '\\n\\n' if last and system is defined else '') + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}
{%- if not loop.last %}, {% endif %}{%- endfor %}{{ ']' + eos_token }}
{%- elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}
{%- elif message.role == 'tool' %}
{%- set result = {'content': message.content, 'call_id': message.tool_call_id} %}
{{- '[TOOL_RESULTS] ' + result | tojson + '[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}
{%- endfor %}"""
"""The system prompt goes to the user's last words; tools are known; turns alternate, calls aside."""

LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + strftime_now('%d %b %Y') + '\\n\\n' }}
{%- for tool in tools or [] %}{{ tool | tojson(indent=4) + '\\n\\n' }}{% endfor %}
{{- system + '<|eot_id|>' }}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('Only one call at once!') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson + '}<|eot_id|>' }}
{%- elif message.role in ('tool', 'ipython') %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{{- message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
"""The system prompt comes first, with the date; a call a message; tools and their results are known."""

CHATML = """{%- if tools %}
{{- '<|im_start|>system\\n' + (messages[0].content + '\\n' if messages[0].role == 'system' else '') }}
{%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}{{ '<tool_call></tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in (messages[1:] if tools and messages[0].role == 'system' else messages) %}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}
{{- '<tool_response>' + message.content + '</tool_response>' if message.role == 'tool' else message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>' + call.function | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Takes everything."""

PHI = """{% for message in messages %}
{{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""
"""Marks are made of the roles; there are no tools."""

TYPED = """{% for message in messages %}{{ '<|' + message.role + '|>' }}
{%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
{{- '<|end|>' }}
{%- endfor %}"""
"""As models that see have it: content is a list of parts."""

THINKS_IF_TOLD = (
    CHATML
    + """{% if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}"""
)
THINKS_BY_NAME = CHATML + "{% if thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}"
THINKS_BY_EFFORT = CHATML.replace(
    "{%- if tools %}", "Reasoning: {{ reasoning_effort or 'medium' }}<|channel|>{%- if tools %}", 1
)
EFFORT_OR_NONE = (
    "{% set effort = reasoning_effort or 'none' %}"
    "{% if effort not in ['none', 'high'] %}{{ raise_exception('effort is none or high') }}{% endif %}"
    "[EFFORT]{{ effort }}[THINK]" + CHATML
)
ALWAYS_THINKS = CHATML + "{{ '<think>\\n' }}"

FAMILIES = {
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "llama3": LLAMA3,
    "chatml": CHATML,
    "phi": PHI,
    "typed": TYPED,
}
