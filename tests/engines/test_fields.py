"""The table of names: complete, and true to the reference lists where those are at hand."""

from __future__ import annotations

import pytest

from colosseum.engines.fields import COLUMNS, names_of, table
from colosseum.recipe.describe import catalogue


@pytest.mark.parametrize("path", catalogue())
def test_every_field_is_mapped_or_refused_or_said_to_be_nobodys(path: str) -> None:
    names = names_of(path)
    assert set(names.names) == set(COLUMNS)
    assert all(cell and cell == cell.strip() for cell in names.names.values()), names


def test_no_row_is_of_a_field_that_is_gone() -> None:
    paths, sections = set(catalogue()), {doc.section for doc in catalogue().values()}
    for row in table():
        assert row in paths or row.removesuffix(".*") in sections, row


def test_keys_have_the_form_of_their_engine() -> None:
    for field, row in table().items():
        for column, cell in row.names.items():
            if cell in ("-", ".") or cell.startswith("("):
                continue
            if column == "megatron-lm":
                assert cell.startswith("--"), field
                assert "_" not in cell, field
            else:
                assert not cell.startswith("-"), field
            if column == "nemo1":
                assert cell.lstrip("+").split(".")[0] in ("model", "trainer", "exp_manager"), field
