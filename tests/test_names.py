"""What a model's name means, in the contract's order."""

from __future__ import annotations

import pytest
from exocli import names
from exocli.backend import ModelRef
from exocli.errors import ModelNotFound, UsageError
from hypothesis import given
from hypothesis import strategies as st

MODELS = {"fast": {"model": "org/name@v1", "system": "Be brief."}, "here": {"model": "./m"}, "smollm2": {}}
BUILTIN = ["smollm2", "tiny"]


def test_paths():
    for name in ("./a", "/a/b", "~/m", "../m", "model.gguf", "org/model.gguf"):
        assert names.resolve(name, MODELS, BUILTIN) == ModelRef(kind="path", name=name)


def test_an_entry_of_the_config_comes_before_built_in_names_and_carries_its_table():
    ref = names.resolve("fast", MODELS, BUILTIN)
    assert (ref.kind, ref.name, ref.revision) == ("hub", "org/name", "v1")
    assert ref.entry["system"] == "Be brief." and str(ref) == "org/name@v1"
    assert names.resolve("here", MODELS, BUILTIN).kind == "path"
    assert names.resolve("smollm2", MODELS, BUILTIN).kind == "builtin"


def test_the_hub():
    ref = names.resolve("mlx-community/Some_Model-4bit.v2", {}, [])
    assert (ref.kind, ref.name, ref.revision) == ("hub", "mlx-community/Some_Model-4bit.v2", None)


@pytest.mark.parametrize("name", ["nobody", "a/b/c", "a b/c", "org/", "/".join("abc"), "-x/y"])
def test_what_is_none_of_these_is_not_found_in_one_sentence(name):
    with pytest.raises(ModelNotFound) as caught:
        names.resolve(name, MODELS, BUILTIN)
    assert name in caught.value.message and caught.value.exit_code == 3


def test_a_slip_is_guessed():
    with pytest.raises(ModelNotFound, match='did you mean "smollm2"'):
        names.resolve("smolm2", {}, BUILTIN)


def test_what_does_not_work_is_not_guessed():
    for name, table in (("loop", {"loop": {"model": "loop"}}), ("my-x", {"my-*": {"model": "org/name"}})):
        with pytest.raises(ModelNotFound, match="give ORG/NAME"):
            names.resolve(name, table, BUILTIN)


def test_a_bad_entry_and_an_empty_name():
    with pytest.raises(UsageError, match=r"\[models\.x\]"):
        names.resolve("x", {"x": "org/name"}, [])
    with pytest.raises(UsageError, match="empty"):
        names.resolve("", {}, [])


@given(st.text())
def test_any_text_is_a_reference_or_an_error(name):
    try:
        ref = names.resolve(name, MODELS, BUILTIN)
    except (ModelNotFound, UsageError):
        return
    assert ref.name
