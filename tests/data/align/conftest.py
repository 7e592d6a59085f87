"""Two tokenizers: the control strings as special tokens, and spelled in several ids as in the demo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from colosseum.data.align.encode import Spec
from colosseum.data.align.rows import Kind
from colosseum.recipe.tasks import ChatTokens

EOD = "<|endoftext|>"
CONTROL = ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>")
TEXTS = (
    "System\n\nUser\nWhat is two and two?\n\nAssistant\nFour.\n",
    "<extra_id_1>User\nHello  there, how are you?\n<extra_id_1>Assistant\n I am well.\n\n",
    "Größe, città, 東京 and a smile 😀\n quality:4,toxicity:0",
)


def train(path: Path, special: tuple[str, ...]) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # As many published files have it: it trims blanks from the offsets.
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[EOD, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def special_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("special") / "tokenizer.json", CONTROL)


@pytest.fixture(scope="session")
def spelled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("spelled") / "tokenizer.json", ())


@pytest.fixture(scope="session", params=["special", "spelled"])
def tokenizer_file(request: pytest.FixtureRequest, special_file: Path, spelled_file: Path) -> Path:
    return special_file if request.param == "special" else spelled_file


def spec(file: Path, kind: Kind = "chat", seq_length: int = 256) -> Spec:
    return Spec(kind=kind, tokenizer=file, eod=EOD, template=ChatTokens(), seq_length=seq_length)


def write_rows(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path
