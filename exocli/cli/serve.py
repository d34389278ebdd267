"""`exo serve`: flags → Settings, sockets, models, and off. The server itself is exocli/server/."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from exocli.cli.params import (
    Count,
    Number,
    Words,
    backend_option,
    complete_model,
    engine_options,
    option,
    pull_option,
)
from exocli.cli.render import Globals, pass_globals
from exocli.errors import UsageError

DEFAULT_PORT = 52415


class _Origin(Words):
    """A web page's origin as a browser writes it (the WHATWG's URL standard), `null` and `*` included."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx).rstrip("/").lower()
        found = re.fullmatch(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", text)
        if found is None and text not in ("*", "null"):
            self.fail(
                f"{value!r} is no origin: give SCHEME://HOST[:PORT], as in https://app.example.", param, ctx
            )
        usual = {"http": ":80", "https": ":443"}
        return text.removesuffix(usual.get(found[1], "")) if found is not None and found[3] else text


class _HostName(Words):
    """What a client may name this server by: a name or an address, with or without a port."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        if not re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?|[0-9A-Fa-f:.]+", text):
            self.fail(f"{value!r} is no name of a host: give it as in box.example.", param, ctx)
        return text


@click.command(help="Serve models over HTTP: the OpenAI, Anthropic and Ollama APIs.")
@option(
    "-m",
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    shell_complete=complete_model,
    help="Which model; may be repeated.",
)
@backend_option
@engine_options
@option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@option(
    "--port",
    type=Count(0, 65535),
    metavar="N",
    default=DEFAULT_PORT,
    show_default=True,
    help="The port; 0 takes a free one.",
)
@option(
    "--api-key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of keys, one a line; clients must send one of them. EXO_API_KEY holds one as well.",
)
@option("--insecure", is_flag=True, help="Allow other machines to use this server without a key.")
@option(
    "--allow-host",
    "allow_hosts",
    type=_HostName(),
    multiple=True,
    metavar="NAME",
    help="A further name this server goes by.",
)
@option(
    "--cors-origin",
    "cors_origins",
    type=_Origin(),
    multiple=True,
    metavar="O",
    help="A further web origin that may use it; * is any.",
)
@option(
    "--max-concurrency",
    type=Count(min=1),
    metavar="N",
    help="At most N requests of a model at once.",
)
@option(
    "--max-queue",
    type=Count(min=0),
    metavar="N",
    default=64,
    show_default=True,
    help="At most N more may wait.",
)
@option(
    "--idle-unload",
    type=Number(min=0),
    metavar="S",
    default=0.0,
    help="Unload a model after S idle seconds; 0 never.",
)
@option(
    "--drain-timeout",
    type=Number(min=0),
    metavar="S",
    default=10.0,
    show_default=True,
    help="Seconds to finish what runs after Ctrl-C.",
)
@option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The log's form.",
)
@option("--log-prompts", is_flag=True, help="Write the requests' texts into the log.")
@pull_option
@pass_globals
def serve(
    settings: Globals,
    models: tuple[str, ...],
    backend: str | None,
    pairs: tuple[str, ...],
    host: str,
    port: int,
    api_key_file: Path | None,
    insecure: bool,
    allow_hosts: tuple[str, ...],
    cors_origins: tuple[str, ...],
    max_concurrency: int | None,
    max_queue: int,
    idle_unload: float,
    drain_timeout: float,
    log_format: str,
    log_prompts: bool,
    pull: bool,
) -> None:
    from exocli.server import auth, listen

    if not host:
        raise UsageError("The host is empty: 127.0.0.1 serves this machine, 0.0.0.0 every other one too.")
    keys = _keys(api_key_file)
    if not keys and not insecure and not auth.is_loopback(host):
        raise UsageError(
            f"Without a key anyone who reaches {host} could use this server: "
            "give --api-key-file, or --insecure."
        )
    sockets = listen.listen(host, port)  # before all that takes time: a busy port is told at once
    try:
        from exocli.cli import serving
        from exocli.served import advertised
        from exocli.server import run
        from exocli.server.access_log import AccessLog
        from exocli.server.app import build
        from exocli.server.settings import Settings

        chosen = Settings(
            host=host,
            port=port,
            keys=keys,
            allow_hosts=allow_hosts,
            cors_origins=cors_origins,
            max_concurrency=max_concurrency,
            max_queue=max_queue,
            idle_unload=idle_unload,
            drain_timeout=drain_timeout,
            log_format="json" if log_format == "json" else "text",
            log_prompts=log_prompts,
            debug=settings.debug,
        )
        served = serving.served(models, backend, pairs, settings, pull)
        log = AccessLog(chosen.log_format, log_prompts, sys.stderr.write)
        app = build(chosen, served, log)
        names = ", ".join(one.name for one in served)
        url = listen.url_of(sockets[0])
        with advertised(url, [one.name for one in served]):  # first: who reads the line finds the server
            if chosen.log_format == "json":
                log.line("listening", url=url, models=names)
            else:
                settings.note(f"Serving {names} at {url} (Ctrl-C stops)")
            run.serve(app, sockets, log)
    finally:
        for one in sockets:
            one.close()


def _keys(path: Path | None) -> tuple[str, ...]:
    """From the file and from EXO_API_KEY. Raises UsageError, which never quotes a key."""
    from exocli.server.auth import read_keys

    found = read_keys(os.environ.get("EXO_API_KEY", ""), "EXO_API_KEY")
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise UsageError(f"{path} cannot be read: {reason}.") from None
        of_file = read_keys(text, str(path))
        if not of_file:
            raise UsageError(f"{path} holds no key.")
        found = (*found, *of_file)
    return found
