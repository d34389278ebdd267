"""The shared flags: ranges, variables in the environment, and what a command is given."""

from __future__ import annotations

import click
import pytest
from exocli.cli import params
from exocli.types import Sampling


def run(*args: str) -> dict[str, object]:
    @click.command()
    @params.model_option
    @params.backend_option
    @params.system_option
    @params.engine_options
    @params.pull_option
    @params.json_option
    @params.sampling_options
    def command(**given: object) -> dict[str, object]:
        return given

    return command.main(list(args), standalone_mode=False)  # type: ignore[no-any-return]


def test_flags():
    given = run(
        *("-m", "x", "-b", "y", "-s", "z", "-o", "a=1", "-o", "b=2", "--json", "--pull"),
        *("--max-tokens", "9", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "3", "--min-p", "0.1"),
        *("--seed", "7", "--stop", "a b", "--stop", "\n"),
    )
    assert given == {
        "model": "x",
        "backend": "y",
        "system": "z",
        "pairs": ("a=1", "b=2"),
        "as_json": True,
        "pull": True,
        "max_tokens": 9,
        "stop": ("a b", "\n"),
        "sampling": Sampling(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=7),
    }


def test_force_is_an_option_of_the_backend(monkeypatch):
    assert run("-o", "a=1", "--force")["pairs"] == ("a=1", "force=true")
    assert run("-o", "a=1")["pairs"] == ("a=1",)
    monkeypatch.setenv("EXO_FORCE", "1")
    assert run()["pairs"] == ("force=true",)


def test_nothing_given_is_nothing_decided():
    given = run()
    assert given["sampling"] == Sampling() and given["max_tokens"] is None and given["stop"] == ()


def test_variables_of_the_environment(monkeypatch):
    for name, value in {
        "EXO_MODEL": "x",
        "EXO_OPTION": "a=1 b=2",
        "EXO_MAX_TOKENS": "5",
        "EXO_TOP_P": "0.5",
        "EXO_STOP": "two words",
        "EXO_JSON": "1",
    }.items():
        monkeypatch.setenv(name, value)
    given = run("-m", "y")
    assert (given["model"], given["pairs"], given["max_tokens"]) == ("y", ("a=1", "b=2"), 5)
    assert given["sampling"] == Sampling(top_p=0.5)
    assert given["stop"] == ("two words",) and given["as_json"] is True


@pytest.mark.parametrize(
    ("variable", "value"),
    [("EXO_MAX_TOKENS", "abc"), ("EXO_TOP_P", "2"), ("EXO_JSON", "perhaps"), ("EXO_OPTION", "a=1 b")],
)
def test_a_bad_variable_is_named_and_not_its_flag(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(click.UsageError) as caught:
        run()
    message = caught.value.format_message()
    assert variable in message and "--" not in message


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--option", "b"),
        ("--max-tokens", "0"),
        ("--max-tokens", "-1"),
        ("--max-tokens", "1e9"),
        ("--temperature", "-0.1"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--top-p", "0"),
        ("--top-p", "1.1"),
        ("--top-k", "-1"),
        ("--min-p", "2"),
        ("--seed", "-1"),
        ("--seed", str(2**63)),
    ],
)
def test_out_of_range(flag, value):
    with pytest.raises(click.UsageError) as caught:
        run(flag, value)
    assert flag in caught.value.format_message()


def test_what_is_no_number_is_called_so():
    for flag, value, kind in (("--seed", "x", "whole number"), ("--top-p", "half", "number")):
        with pytest.raises(click.UsageError) as caught:
            run(flag, value)
        assert f"{value!r} is not a valid {kind}." in caught.value.format_message()
