"""The text of ``checkpoint.from`` and ``task.reference_from``: what each form means, and that it is written as read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh, FromPath, FromRun, FromStage, Source, parse_source, run_and_step

FORMS = [
    ("none", Fresh()),
    ("/a/b", FromPath("/a/b")),
    ("iter_0000100", FromPath("iter_0000100")),
    ("./none", FromPath("./none")),
    ("a@3", FromPath("a@3")),
    ("run:20260101-x", FromRun("20260101-x")),
    ("run:20260101-x@300", FromRun("20260101-x", 300)),
    ("stage:expand-16k", FromStage("expand-16k")),
]
NO_FORMS = ["run:", "run:@3", "run:x@", "run:x@latest", "run:a/b", "run:..", "stage:", "stage:a b", "stage:a@3"]


def refused(recipe: str, word: str) -> Fault:
    with pytest.raises(RefusedInput) as error:
        load(recipe, [word])
    (fault,) = error.value.faults
    return fault


@pytest.mark.parametrize(("text", "source"), FORMS)
def test_a_recipe_writes_what_it_read(text: str, source: Source) -> None:
    recipe = load("debug/cpt-4k-bf16", [f"checkpoint.from={text}"]).recipe
    assert recipe.checkpoint.source == source
    assert recipe.as_data()["checkpoint"]["from"] == text
    assert Recipe.from_data(recipe.as_data()) == recipe
    assert load("debug/cpt-4k-bf16").recipe.starting_from(source) == recipe


@given(st.text(min_size=1, max_size=20) | st.from_regex(r"(run|stage):[a-z.@0-9]{1,9}", fullmatch=True))
def test_any_text_is_refused_or_given_back(text: str) -> None:
    try:
        source = parse_source(text)
    except ValueError:
        return
    assert parse_source(str(source)) == source
    assert str(source) == text or (isinstance(source, FromRun) and source.step is not None)  # @007 is @7


@pytest.mark.parametrize("text", NO_FORMS)
@pytest.mark.parametrize(
    ("recipe", "key"), [("debug/cpt-4k-bf16", "checkpoint.from"), ("debug/dpo", "task.reference_from")]
)
def test_a_malformed_name_is_refused_with_one_that_is_legal(recipe: str, key: str, text: str) -> None:
    fault = refused(recipe, f'{key}="{text}"')
    assert (fault.path, fault.where) == (key, "command line")
    assert fault.value in (text, "…")  # a name, a colon and an @ may be a password
    assert "must have the form" in fault.rule
    for near in fault.nearest:
        parse_source(near)


@pytest.mark.parametrize("text", ["none", "stage:sft"])
def test_a_reference_policy_has_weights_when_training_starts(text: str) -> None:
    fault = refused("debug/dpo", f"task.reference_from={text}")
    assert (fault.path, fault.nearest) == ("task.reference_from", (None,))
    assert "null = checkpoint.from" in fault.rule


def test_the_default_can_be_read_by_another_field() -> None:
    assert load("debug/cpt-4k-bf16", ["~checkpoint.from"]).recipe.checkpoint.source == Fresh()


@pytest.mark.parametrize(
    ("text", "found"),
    [("x", ("x", None)), ("x@3", ("x", 3)), ("runs/x@3", ("runs/x", 3)), ("x@y", ("x@y", None)), ("@3", ("@3", None))],
)
def test_a_run_and_its_step(text: str, found: tuple[str, int | None]) -> None:
    assert run_and_step(text) == found
