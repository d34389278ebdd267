"""Which model, which backend, which options: by the contract, with real plugins and a real config."""

from __future__ import annotations

import pytest
from exocli import config
from exocli.cli import config_keys, context
from exocli.errors import BackendNotFound, ModelNotFound, Unavailable, UsageError

from tests.cli.conftest import forget_plugins
from tests.support.distribution import write_distribution


def put(home, text):
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)


def test_a_model_given_by_name_finds_its_backend_by_files(shelf):
    choice = context.choose("tiny")
    assert (choice.model, choice.backend, choice.ref.kind) == ("tiny", "shelf", "builtin")
    assert "best available" in choice.why
    assert choice.options == {"depth": 3, "mode": "wide", "loud": False}


def test_smollm2_is_the_default_only_while_none_is_set(home, shelf):
    with pytest.raises((Unavailable, ModelNotFound)) as caught:
        context.choose(None, "shelf")
    assert "smollm2" in caught.value.message
    put(home, 'model = "tiny"\n')
    assert context.choose().model == "tiny"
    assert context.choose("./x.shelf").model == "./x.shelf"


def test_the_backend_is_the_flags_then_the_entrys_then_the_configs(home, shelf):
    put(home, 'backend = "sample"\n[models.mine]\nmodel = "tiny"\nbackend = "shelf"\n')
    assert context.choose("mine").backend == "shelf"
    assert context.choose("mine", "sample").backend == "sample"
    assert context.choose("whatever").backend == "sample"
    assert "config" in context.choose("whatever").why
    assert "-b" in context.choose("mine", "sample").why


def test_a_backend_without_models_has_one_by_its_own_name(shelf):
    choice = context.choose(None, "sample")
    assert (choice.model, choice.backend) == ("sample", "sample")
    assert context.ensure_model(choice, _never, None) == "sample"


def test_a_named_backend_may_know_names_that_nobody_else_does(shelf):
    assert context.choose("vendor:big", "shelf").ref.name == "vendor:big"
    with pytest.raises(ModelNotFound):
        context.choose("vendor:big")


def test_an_entry_brings_options_sampling_and_a_system_prompt(home, shelf):
    put(
        home,
        """
        system = "Be kind."
        [sampling]
        temperature = 0.7
        top_p = 0.9
        [backends.shelf]
        depth = 5
        mode = "deep"
        python = "/usr/bin/python3"
        [models.mine]
        model = "tiny"
        system = "Be brief."
        options = { depth = 6 }
        sampling = { temperature = 0 }
        """,
    )
    choice = context.choose("mine", pairs=["loud=true"])
    assert choice.options == {"depth": 6, "mode": "deep", "loud": True}
    assert choice.defaults == {"temperature": 0.0, "top_p": 0.9}
    assert (choice.system, choice.python) == ("Be brief.", "/usr/bin/python3")
    assert context.choose("tiny").system == "Be kind."
    assert context.choose("mine", pairs=["depth=7"]).options["depth"] == 7


@pytest.mark.parametrize(
    ("args", "kind", "word"),
    [
        (("tiny", "nobody", []), BackendNotFound, "shelf"),
        (("nobody", None, []), ModelNotFound, "nobody"),
        (("tinny", None, []), ModelNotFound, 'did you mean "tiny"'),
        (("./gone.shelf", None, []), None, ""),
        (("./gone.bin", None, []), ModelNotFound, "There is no file"),
        (("org/name", "shelf", []), ModelNotFound, "shelf does not open org/name"),
        (("tiny", None, ["dept=1"]), UsageError, "did you mean depth"),
        (("tiny", None, ["depth=x"]), UsageError, "a whole number"),
        (("tiny", "sample", ["shout=x"]), UsageError, "true or false"),
    ],
)
def test_what_is_wrong_is_one_sentence(shelf, args, kind, word):
    model, backend, pairs = args
    if kind is None:
        choice = context.choose(model, backend, pairs)
        with pytest.raises(ModelNotFound, match="There is no file"):
            context.ensure_model(choice, _never, None)
        return
    with pytest.raises(kind) as caught:
        context.choose(model, backend, pairs)
    assert word in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text", ["models = 3\n", "[models]\nmine = 3\n", "sampling = 3\n", "[backends]\nshelf = 3\n"]
)
def test_a_config_of_another_shape_is_a_usage_error(home, shelf, text):
    put(home, text)
    with pytest.raises(UsageError):
        context.choose("mine" if "mine" in text else "tiny")


def test_a_backend_that_is_not_available_says_why_and_how(shelf, monkeypatch):
    monkeypatch.setenv("SHELF_MISSING", "there is no wall")
    for backend in (None, "shelf"):
        with pytest.raises(Unavailable, match=r"there is no wall \(build a shelf\)") as caught:
            context.choose("tiny", backend)
        assert caught.value.exit_code == 3


def test_plugins_that_raise_are_unavailable_and_hurt_nobody(site, shelf):
    write_distribution(
        site,
        "grumpy",
        """
        from exocli import BackendSpec, hookimpl

        def fail(*args):
            raise RuntimeError("not today")

        def odd():
            return "yes"

        class Source:
            models = aliases = accepts = locate = fail

        @hookimpl
        def exo_backends():
            common = dict(summary="", api=1, protocol="stream", place="inline", open="grumpy:fail")
            yield BackendSpec(name="grumpy-probe", probe="grumpy:fail", **common)
            yield BackendSpec(name="grumpy-answer", probe="grumpy:odd", **common)
            yield BackendSpec(name="grumpy-source", models="grumpy:fail", **common)
            yield BackendSpec(name="grumpy-models", models="grumpy:Source", **common)
        """,
    )
    forget_plugins()
    assert context.choose("tiny").backend == "shelf"
    for name, reason in (("probe", "not today"), ("answer", "answered a str"), ("source", "not today")):
        with pytest.raises(Unavailable, match=reason):
            context.choose("tiny", f"grumpy-{name}")


# ------------------------------------------------------------------------------------------- pulling


def _never(*_args: object) -> None:
    raise AssertionError("nothing was to be pulled")


def _pull(source, ref):
    from exocli import CancelToken

    source.pull(ref, lambda done, total: None, CancelToken())


def test_a_model_that_is_here_is_not_asked_about(shelf):
    shelf.mkdir(parents=True)
    (shelf / "tiny.shelf").write_bytes(b"x")
    assert context.ensure_model(context.choose("tiny"), _never, _never) == str(shelf / "tiny.shelf")


def test_the_question_names_the_size_and_yes_pulls(shelf):
    asked = []

    def ask(question):
        asked.append(question)
        return True

    path = context.ensure_model(context.choose("tiny"), _pull, ask)
    assert asked == ["Pull tiny (1.0 MB)?"] and path == str(shelf / "tiny.shelf")


def test_pull_answers_yes(shelf):
    assert context.ensure_model(context.choose("tiny"), _pull, _never, yes=True) == str(shelf / "tiny.shelf")


def test_no_and_nobody_to_ask_name_the_command(shelf):
    choice = context.choose("tiny")
    for ask in (None, lambda question: False):
        with pytest.raises(ModelNotFound, match="exo models pull tiny") as caught:
            context.ensure_model(choice, _never, ask)
        assert caught.value.exit_code == 3


def test_offline_forbids_even_with_pull(shelf, monkeypatch):
    monkeypatch.setenv("EXO_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="EXO_OFFLINE"):
        context.ensure_model(context.choose("tiny"), _never, _never, yes=True)


def test_the_config_is_read_anew(home, shelf):
    config.set_value("model", "tiny")
    assert context.choose().model == "tiny"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sampling = 3", "sampling"),
        ("backends = 3", "backends"),
        ("[backends]\nsample = 3", "backends.sample"),
    ],
)
def test_what_should_be_a_table_is_named_by_its_key(home, text, key):
    home.mkdir()
    (home / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=rf"config\.toml: {key} must be a table\.$"):
        context.choose("./nothing", "sample")


def test_a_range_in_the_config_is_the_flags_own(home, shelf):
    put(home, "[sampling]\ntop_p = 3\n")
    with pytest.raises(UsageError, match=r"config.toml: sampling.top_p: 3"):
        context.choose("tiny")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('modle = "x"', 'There is no setting "modle" (did you mean model?)'),
        ("model = 3", "model must be text in quotes."),
        ('[models.mine]\nmodle = "tiny"', '"models.mine.modle" (did you mean model?)'),
        ("[plugins]\ndisable = []", '"plugins.disable" (did you mean disabled?)'),
        ("[plugins]\ndisabled = 3", "plugins.disabled must be a list."),
        ("[backends.shelf]\ndepht = 3", 'backends.shelf has no option "depht" (did you mean depth?)'),
        ('[backends.shelf]\ndepth = "x"', 'backends.shelf.depth takes a whole number, not "x".'),
        ("[backends.shelf]\ndepth = -1", "backends.shelf: depth must not be negative."),
        ("[backends.shelf]\npython = 3", "backends.shelf.python must be text in quotes."),
        ('[sampling]\ntop_k = "x"', 'sampling.top_k takes a whole number or none, not "x".'),
        (
            '[models.tiny]\n[models.tiny.options]\ndepth = "x"',
            'models.tiny.options.depth takes a whole number, not "x".',
        ),
    ],
)
def test_what_is_wrong_in_the_config_is_told_with_its_file_and_key(home, shelf, text, words):
    put(home, text)
    for pairs in ((), ("mode=deep",)):  # what is right in -o changes nothing about where the fault is
        with pytest.raises(UsageError) as caught:
            context.choose("tiny", pairs=pairs)
        assert caught.value.message.startswith(f"{home / 'config.toml'}: ") and words in caught.value.message


def test_a_section_of_a_plugin_that_is_not_here_is_let_be_and_a_slip_of_the_pen_is_told(home, shelf):
    put(home, "[backends.shelff]\ndepth = 4\n[backends.elsewhere]\nx = 1\n")
    assert context.choose("tiny").options["depth"] == 3
    (told,) = config_keys.strangers()
    assert "backends.shelff" in told and "(did you mean shelf?)" in told
