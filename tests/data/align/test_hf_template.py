"""Templates of Hugging Face: the marked answers are trained, and a stranger's template can do nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from colosseum.data.align import hf_template
from colosseum.data.align.encode import Encoder, Tokens
from colosseum.data.align.hf_template import HfTemplate, read_hf_template
from colosseum.data.align.jsonl import BadRow
from colosseum.errors import RefusedInput

from .conftest import spec

CHATML = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<extra_id_1>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<extra_id_2>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<extra_id_2>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<extra_id_1>assistant\\n' }}{% endif %}"
)
ROW = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "well"},
        {"role": "user", "content": "And you?"},
        {"role": "assistant", "content": ""},
    ]
}


def folder(tmp_path: Path, tokenizer: Path, template: object = CHATML, where: str = "chat_template.jinja") -> Path:
    shutil.copy(tokenizer, tmp_path / "tokenizer.json")
    config: dict[str, object] = {"bos_token": {"content": "<extra_id_0>"}, "model_max_length": 10**30}
    if where == "chat_template.jinja":
        (tmp_path / where).write_text(str(template))
    else:
        config["chat_template"] = template
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path / "tokenizer.json"


def encoder(file: Path, kind: str = "chat") -> Encoder:
    return Encoder(replace(spec(file, kind), template=read_hf_template(file)))  # type: ignore[arg-type]


def trained(made: Encoder, row: dict[str, object]) -> list[tuple[str, str]]:
    texts = made.rendered(row)
    found = []
    for text, tokens in zip(texts, made.tokens(texts), strict=True):
        assert isinstance(tokens, Tokens)
        spans = tokens.spans[tokens.mask]
        found.append((text.text, "".join(text.text[s:e] for s, e in spans)))
    return found


@pytest.mark.parametrize(
    ("template", "where"),
    [
        (CHATML, "chat_template.jinja"),
        (CHATML, "tokenizer_config.json"),
        ([{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}], "tokenizer_config.json"),
    ],
)
def test_marked_answers_are_trained(template: object, where: str, special_file: Path, tmp_path: Path) -> None:
    ((text, answers),) = trained(encoder(folder(tmp_path, special_file, template, where)), ROW)
    assert text == (
        "<extra_id_0><extra_id_1>system\nBe brief.<extra_id_2>\n<extra_id_1>user\nHello?<extra_id_2>\n"
        "<extra_id_1>assistant\nwell<extra_id_2>\n<extra_id_1>user\nAnd you?<extra_id_2>\n"
        "<extra_id_1>assistant\n<extra_id_2>\n"
    )
    assert answers == "well<extra_id_2><extra_id_2>"


def test_the_same_of_speakers(special_file: Path, tmp_path: Path) -> None:
    turns = [
        {"from": "User" if m["role"] == "user" else "Assistant", "value": m["content"]} for m in ROW["messages"][1:]
    ]
    made = encoder(folder(tmp_path, special_file))
    assert trained(made, {"system": "Be brief.", "conversations": turns}) == trained(made, ROW)


def test_pairs_need_no_marks(special_file: Path, tmp_path: Path) -> None:
    plain = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    made = encoder(folder(tmp_path, special_file, plain), "preference")
    row = {"prompt": ROW["messages"][:2], "chosen": {"role": "assistant", "content": "yes"}, "rejected": "no"}
    assert trained(made, row) == [
        (
            "<extra_id_0><extra_id_1>system\nBe brief.<extra_id_2>\n<extra_id_1>user\nHello?<extra_id_2>\n"
            f"<extra_id_1>assistant\n{answer}",
            answer,
        )
        for answer in ("yes<extra_id_2>\n", "no")
    ]


def test_no_marks_is_refused(special_file: Path, tmp_path: Path) -> None:
    file = folder(tmp_path, special_file, "{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with pytest.raises(RefusedInput, match="does not mark responses"):
        encoder(file).rendered(ROW)


def test_files_that_are_no_template(special_file: Path, tmp_path: Path) -> None:
    shutil.copy(special_file, tmp_path / "tokenizer.json")
    for text, match in (
        (None, "no chat template beside"),
        ("{% for %}", "not a valid Jinja"),
        ("{% include 'x' %}", ""),
    ):
        if text is not None:
            (tmp_path / "chat_template.jinja").write_text(text)
        if match:
            with pytest.raises(RefusedInput, match=match):
                read_hf_template(tmp_path / "tokenizer.json")
    (tmp_path / "chat_template.jinja").unlink()
    for config in ("[]", "{", '{"chat_template": 3}'):
        (tmp_path / "tokenizer_config.json").write_text(config)
        with pytest.raises(RefusedInput):
            read_hf_template(tmp_path / "tokenizer.json")


HOSTILE = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ 'x' * 10**10 }}",
    "{{ [0] * 10**10 }}",
    "{{ 2 ** 10**9 }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ '%2000000000d' % 1 }}",
    "{{ '{:>2000000000}'.format(1) }}",
    "{{ 'x'.ljust(2000000000) }}",
    "{{ ('x' | attr('ljust'))(2000000000) }}",
    "{{ 1 / 0 }}",
    "{{ raise_exception('no') }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ messages[99].content }}",
    "{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}",
    "{{ strftime_now(3) }}",
)


@pytest.mark.parametrize("body", HOSTILE)
def test_a_strangers_template(body: str, special_file: Path, tmp_path: Path) -> None:
    file = folder(tmp_path, special_file, body + "{% generation %}x{% endgeneration %}")
    with pytest.raises(BadRow) as refused:
        encoder(file).rendered(ROW)
    assert refused.value.code == "template"


def test_endless_templates_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_template, "MAX_TIME_S", 0.2)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(BadRow, match="needs more than"):
        hf_template._run(HfTemplate(source=loops, tokens=()), [], add_generation_prompt=False)


def test_a_value_forges_nothing(special_file: Path, tmp_path: Path) -> None:
    made = encoder(folder(tmp_path, special_file))
    for text in ("<extra_id_1>assistant\n", "<|endoftext|>"):
        row = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "x"}]}
        with pytest.raises(BadRow) as refused:
            made.rendered(row)
        assert refused.value.code == "control-token"
    template = read_hf_template(made.spec.tokenizer)
    _, mark = hf_template._compiled(template.source)
    row = {"messages": [{"role": "user", "content": mark[0]}, {"role": "assistant", "content": "x"}]}
    with pytest.raises(BadRow):
        made.rendered(row)
