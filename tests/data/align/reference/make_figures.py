"""Ids and masks of transformers' apply_chat_template, for test_reference.py. In an environment of its own:

python -m venv env && env/bin/pip install transformers && env/bin/python make_figures.py
"""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import transformers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
CHATML = (
    "{% for m in messages %}{{ '<extra_id_1>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<extra_id_2>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<extra_id_2>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<extra_id_1>assistant\\n' }}{% endif %}"
)
TRIMMED = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if loop.index0 % 2 == 0 and message.role != 'user' %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '<extra_id_1>' }}{% if loop.first and system is defined %}{{ system | trim }}

{% endif %}{{ message.content | trim }}
    {%- else %}
        {{- '<extra_id_2>' }}{% generation %}{{ message.content | trim + '<|endoftext|>' }}{% endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<extra_id_2>' }}{%- endif %}
"""
CONTENTS = ("What is two and two?", "Four.", "  Größe,\n città 😀 ", "東京\n\n", "Hello  there, \tyou?", "I am well.")


def conversations() -> list[list[dict[str, str]]]:
    found = []
    for at in range(12):
        turns = [
            {
                "role": "user" if n % 2 == 0 else "assistant",
                "content": CONTENTS[(at + n * (1 + at % 3)) % len(CONTENTS)],
            }
            for n in range(2 + at % 4)
        ]
        system = [{"role": "system", "content": CONTENTS[at % 5]}] if at % 2 else []
        found.append(system + turns)
    return found


def main() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(HERE / "tokenizer.json"), bos_token="<extra_id_0>", eos_token="<|endoftext|>"
    )
    rows = []
    for template in (CHATML, TRIMMED):
        for messages in conversations():
            out = tokenizer.apply_chat_template(
                messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
            )
            prompt = tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True
            )
            rows.append(
                {
                    "template": template,
                    "messages": messages,
                    "ids": out["input_ids"],
                    "mask": out["assistant_masks"],
                    "prompt": prompt,
                }
            )
    versions = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    figures = {"versions": versions, "rows": rows}
    (HERE / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
