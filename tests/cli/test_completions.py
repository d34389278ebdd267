"""Tab: what is offered, and each script in its real shell."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from exocli.cli.completions import SHELLS, script

from tests.cli.conftest import Result, forget_plugins
from tests.support.distribution import write_distribution

BIN = Path(sys.executable).parent


Values = Callable[..., list[str]]


@pytest.fixture
def offered(exo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """offered(*words) or offered(line=…): [type, value, help] of each candidate, by the protocol that the
    scripts speak."""

    def ask(*words: str, line: str | None = None) -> list[list[str]]:
        with monkeypatch.context() as patch:
            patch.setenv("_EXO_COMPLETE", "words" if line is None else "line")
            result = exo(*(words if line is None else [line]))
        assert result.err == ""
        return [row.split("\t") for row in result.out.splitlines()]

    return ask


@pytest.fixture
def values(offered: Callable[..., list[list[str]]]) -> Values:
    return lambda *words, line=None: [row[1] for row in offered(*words, line=line)]


def test_commands_with_their_lines(offered, values):
    rows = {row[1]: row for row in offered("")}
    assert {"models", "config", "sample-hello"} <= set(rows)
    assert rows["models"][0] == "plain" and "models" in rows["models"][2]
    assert values("comp") == ["completions"]
    assert values("models", "p") == ["pull"]
    assert values("completions", "z") == ["zsh"]
    assert "--json" in values("models", "list", "--")


def test_models_and_backends_offline(offered, values, shelf, home):
    shelf.mkdir(parents=True)
    (shelf / "here.shelf").write_text("")
    (home / "config.toml").write_text('[models.mine]\nmodel = "tiny"\n')
    assert {"mine", "here", "tiny"} <= set(values("models", "show", ""))
    assert values("models", "show", "ti") == ["tiny"]
    assert offered("models", "show", "./x") == [["file", "./x", ""]]
    assert values("models", "pull", "-b", "sh") == ["shelf"]


def test_options_of_the_backend(values, shelf):
    assert {"depth=", "loud="} <= set(values("run", "-b", "shelf", "-o", ""))
    assert "depth=" not in values("run", "-b", "sample", "-o", "")
    assert values("run", "-b", "shelf", "-o", "loud=") == ["loud=true", "loud=false"]


def test_config_keys(values, home):
    assert "sampling.temperature" in values("config", "set", "samp")
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('model = "x"\n')
    assert values("config", "get", "") == ["model"]


def test_a_line_as_bash_gives_it(values):
    assert values(line="exo comp") == ["completions"]
    assert values(line="exo completions ") == list(SHELLS)
    assert values(line='exo completions "z') == ["zsh"]
    assert "models" in values(line="exo ")
    assert "models" in values(line="exo")


def test_a_broken_config_or_plugin_writes_nothing_into_the_line(offered, values, home, site):
    home.mkdir()
    (home / "config.toml").write_text("x = \n")
    assert offered("models", "show", "") == []
    (home / "config.toml").unlink()
    write_distribution(site, "broken", "raise SystemExit(1)")
    forget_plugins()
    assert "models" in values("")


def test_nothing_heavy_is_imported_for_tab():
    code = (
        "import os, sys; os.environ['_EXO_COMPLETE'] = 'words'\n"
        "from exocli.cli.main import main\nmain(sys.argv[1:])\n"
        "print(' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    heavy = {"mlx", "mlx_lm", "transformers", "starlette", "httpx", "rich", "prompt_toolkit"}
    for words in (["mod"], ["models", "show", ""], ["run", "-o", ""]):
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert not heavy & set(done.stdout.splitlines()[-1].split()), words


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script(exo, shell):
    assert exo("completions", shell).out == script(shell)


# ---------------------------------------------------------------------------------- the real shells

BASH = r"""
source <(exo completions bash)
tab() { COMP_LINE="$1"; COMP_POINT=${#1}; _exo_complete exo; echo "${COMPREPLY[*]}"; }
tab 'exo comp'
tab 'exo models show ti'
tab 'exo run -b shelf -o loud='
tab 'exo run -b shelf -o loud=t'
tab 'exo run -m vendor:'
complete -p exo
"""

ZSH = r"""
autoload -Uz compinit && compinit -u -D
source <(exo completions zsh)
compadd() { local -a all; while [[ "$1" == -* && "$1" != -- ]]; do shift; done; }
_describe() { while [[ "$1" == -* ]]; do shift; done; shift; print -l "${(@P)1}"; }
_files() { print FILES }
tab() { words=("${(@)argv}"); CURRENT=$#words; _exo; }
tab exo comp
tab exo models show ti
tab exo run -b shelf -o loud=
tab exo models show ./x
print ${_comps[exo]} ${_comps[exocli]}
"""

FISH = r"""
exo completions fish | source
complete -C 'exo comp'
complete -C 'exo models show ti'
complete -C 'exo run -b shelf -o loud='
complete -C 'exo models show ./tests/cli/test_compl'
"""


def in_shell(shell: str, text: str, *flags: str) -> list[str]:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell}")
    done = subprocess.run(
        [path, *flags, "-c", text],
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_bash(shelf):
    shelf.mkdir(parents=True)
    assert in_shell("bash", BASH, "--norc") == [
        "completions",
        "tiny",
        "true false",
        "true",
        "",
        "complete -o default -F _exo_complete exo",
    ]


def test_zsh(shelf):
    assert in_shell("zsh", ZSH, "-f") == [
        "completions:Print the script that makes Tab work in a shell.",
        "tiny:A tiny model: it says nothing",
        "loud=true",
        "loud=false",
        "FILES",
        "_exo _exo",
    ]


def test_fish(shelf):
    assert in_shell("fish", FISH, "--no-config") == [
        "completions\tPrint the script that makes Tab work in a shell.",
        "tiny\tA tiny model: it says nothing",
        "loud=false",
        "loud=true",
        "./tests/cli/test_completions.py",
    ]


@pytest.mark.parametrize(
    ("shell", "flags", "load"),
    [
        ("bash", ["--norc", "-i"], "source <(exo completions bash)"),
        ("zsh", ["-f", "-i"], "autoload -Uz compinit && compinit -u -D && source <(exo completions zsh)"),
        ("fish", ["--no-config", "-i"], "exo completions fish | source"),
    ],
)
def test_the_tab_key(shell, flags, load, home):
    """A person's own keys in an interactive shell: `exo compl`, Tab, and the command that comes out runs."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell}")
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}", TERM="xterm", PS1="$ ")
        os.execv(path, [path, *flags])
    try:
        os.write(terminal, f"{load}; echo rea''dy\n".encode())
        _read_until(terminal, b"ready\r")
        os.write(terminal, b"exo compl\tbash | head -1\n")
        _read_until(terminal, b"# Tab completion of exo for bash.")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def _read_until(terminal: int, wanted: bytes, within_s: float = 30) -> None:
    seen = b""
    until = time.monotonic() + within_s
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0, until - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 4096)
