"""From what was typed to what will run: which model, which backend, which options, and why.

Plain functions for `run`, `chat`, `bench` and `serve`; no click here, no printing, no network but in
`ensure_model`. Every call into a plugin is guarded: one that raises is unavailable, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from exocli import config, names, options, plugins
from exocli.backend import Availability, BackendSpec, Catalog, ModelRef, ModelSource, load_object
from exocli.cli import config_keys, params
from exocli.errors import BackendNotFound, ExoError, ModelNotFound, Unavailable, UsageError
from exocli.plugins import Registered

if TYPE_CHECKING:
    from exocli.runtime.session import Session

SERVER_BACKEND = "remote"
"""The backend that drives a running `exo serve`."""

DEFAULT_MODEL = "smollm2"
"""What `exo chat` talks to while the user has set no `model`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What will run. `model` is the name as it was asked for, `backend` the one it is reached by, `why`
    half a sentence on how that was chosen. `options` are validated; `defaults` is the config's sampling
    for this model."""

    model: str
    ref: ModelRef
    backend: str
    spec: BackendSpec
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    python: str | None = None
    server: str | None = None
    """The address of this machine's `exo serve`, where it was chosen because it has the model."""

    def session(self, path: str, **more: Any) -> Session:
        """The runtime's door to it; `path` is what `ensure_model` answered. Nothing is loaded yet."""
        from exocli.runtime.session import Session

        return Session(
            spec=self.spec,
            model=self.model,
            path=path,
            ref=self.ref,
            options=self.options,
            defaults=self.defaults,
            python=self.python,
            **more,
        )


# ------------------------------------------------------------------------- asking plugins, guarded


def reason_of(error: BaseException) -> str:
    if isinstance(error, ExoError):
        return error.message
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def availability(spec: BackendSpec) -> Availability:
    """`probe`'s answer; a probe that is missing says yes, one that fails no."""
    if spec.probe is None:
        return Availability(ok=True)
    try:
        answer = load_object(spec.probe)()
        if isinstance(answer, Availability):
            return answer
        return Availability(ok=False, reason=f"its probe answered a {type(answer).__name__}")
    except Exception as error:
        return Availability(ok=False, reason=f"its probe failed ({reason_of(error)})")


def source_of(spec: BackendSpec) -> ModelSource | None:
    """The backend's models, or None if it keeps none. Raises Unavailable if it cannot say."""
    if spec.models is None:
        return None
    try:
        source: ModelSource = load_object(spec.models)()
    except Exception as error:
        raise Unavailable(f"The backend {spec.name} cannot list models ({reason_of(error)}).") from error
    return source


def sources() -> dict[str, ModelSource]:
    """Every backend's model source, in order of registration; those that fail are left out."""
    found: dict[str, ModelSource] = {}
    for name, registered in plugins.manager().backends.items():
        try:
            source = source_of(registered.spec)
        except Unavailable:
            continue
        if source is not None:
            found[name] = source
    return found


def _aliases(source: ModelSource) -> Mapping[str, str]:
    try:
        return source.aliases()
    except Exception:
        return {}


def _accepts(source: ModelSource, ref: ModelRef) -> bool:
    try:
        return bool(source.accepts(ref))
    except Exception:
        return False


def aliases() -> dict[str, str]:
    """Built-in names of all backends, each with its line."""
    found: dict[str, str] = {}
    for source in sources().values():
        for name, text in _aliases(source).items():
            found.setdefault(name, text)
    return found


# ------------------------------------------------------------------------------------- model names


def model_table() -> Mapping[str, Any]:
    """The config's `[models]`."""
    table: Mapping[str, Any] = config_keys.settings().get("models", {})
    return table


def resolve(name: str, backend: str | None = None) -> ModelRef:
    """A ModelRef for what was typed. A backend that was asked for by name may take names that nobody
    else knows. Raises ModelNotFound."""
    try:
        return names.resolve(name, model_table(), aliases())
    except ModelNotFound:
        entry = model_table().get(name, {})
        target = str(entry.get("model", name))
        wanted = backend or entry.get("backend") or config.get("backend")
        if wanted is not None:
            spec = plugins.backend(str(wanted))
            ref = ModelRef(kind="builtin", name=target, entry=entry)
            source = source_of(spec)
            if source is None or _accepts(source, ref):
                return ref
        raise


# ------------------------------------------------------------------------------------------ choosing


def choose(
    model: str | None = None, backend: str | None = None, pairs: Sequence[str] = (), *, local: bool = True
) -> Choice:
    """By the contract: the model is `-m`, else the config's, else smollm2; the backend `-b`, else the
    model entry's, else the config's, else the best available one that accepts the model.

    `pairs` are `-o KEY=VALUE`. Unless `local`, a running `exo serve` that has the model comes before all
    but `-b` and `-o`. Raises ModelNotFound, BackendNotFound, Unavailable, UsageError.
    """
    name = _named(model, backend, pairs)
    if not local and backend is None and not pairs:
        served = _served(name)
        if served is not None:
            return served
    ref = resolve(name, backend)
    registered, why = choose_backend(ref, backend)
    entry = ref.entry
    opened, python = _opened(registered, pairs, entry.get("options", {}), f"models.{name}.options")
    return Choice(
        model=name,
        ref=ref,
        backend=registered.name,
        spec=registered.spec,
        why=why,
        options=options.as_dict(opened),
        defaults={**_sampling(config_keys.settings(), ""), **_sampling(entry, f"models.{name}.")},
        system=entry.get("system", config.get("system")),
        python=python,
    )


def _opened(
    registered: Registered[BackendSpec],
    pairs: Sequence[str],
    more: Mapping[str, Any] = MappingProxyType({}),
    key: str = "",
) -> tuple[Any, str | None]:
    """The backend's options from the config, from `more`, the table `key` there, and from -o, in this order;
    and its interpreter."""
    given = options.split_pairs(pairs)
    for name in given:
        if options.is_secret(name):
            raise UsageError(
                f"{name} is a secret, which others could read off a command line: give it by the "
                f"environment, the keyring, or {config.config_path()}."
            )
    section = dict(config_keys.settings().get("backends", {}).get(registered.name, {}))
    python = section.pop("python", None)
    cls = load_object(registered.spec.open_options) if registered.spec.open_options else None
    layers = [
        options.read(cls, section, _where(f"backends.{registered.name}")),
        options.read(cls, more, _where(key)),
        given,
    ]
    return options.build(cls, layers, f"the backend {registered.name}"), python


def _where(key: str) -> str:
    """How an error names a key of the config."""
    return f"{config.config_path()}: {key}"


def _named(model: str | None, backend: str | None, pairs: Sequence[str]) -> str:
    """The model's name. Where `-b` names a backend whose models are a server's, and nobody names one of
    them, the server's own default comes before the user's, which it may not have."""
    configured = config.get("model")
    if model is not None:
        return model
    wanted = backend or config.get("backend")
    spec = plugins.backend(str(wanted)) if wanted is not None else None
    if spec is not None and spec.catalog is not None and (backend is not None or configured is None):
        names = offered(str(wanted), pairs)
        if configured is None or configured not in names:
            return names[0] if names else str(wanted)
    if configured is not None:
        return str(configured)
    if spec is not None and spec.models is None:
        return str(wanted)  # one without models of its own has just the one, which goes by its name
    return DEFAULT_MODEL


def offered(backend: str, pairs: Sequence[str] = ()) -> Sequence[str]:
    """The models that the server behind a backend has now, the default one first; () for a backend that
    has no server. Asks the network. Raises Unavailable, UpstreamError, UsageError."""
    registered = plugins.manager().backends.get(backend)
    if registered is None or registered.spec.catalog is None:
        return ()
    catalog: Catalog = load_object(registered.spec.catalog)()
    return catalog.ask(_opened(registered, pairs)[0])


def catalogs() -> dict[str, Catalog]:
    """Every catalog by its backend's name; those that fail are left out."""
    found: dict[str, Catalog] = {}
    for name, registered in plugins.manager().backends.items():
        if registered.spec.catalog is not None:
            with suppress(Exception):
                found[name] = load_object(registered.spec.catalog)()
    return found


def _served(name: str) -> Choice | None:
    """This machine's `exo serve`, if it runs, lets us in, and has the model: one copy in memory is enough."""
    from exocli import served

    registered = plugins.manager().backends.get(SERVER_BACKEND)
    address = served.find() if registered is not None and registered.spec.catalog is not None else None
    if registered is None or registered.spec.catalog is None or address is None or name not in address.models:
        return None
    opened = options.build(load_object(str(registered.spec.open_options)), [{"url": address.url}], "remote")
    try:
        if name not in load_object(registered.spec.catalog)().ask(opened):
            return None
    except ExoError:
        return None
    entry = model_table().get(name, {})
    return Choice(
        model=name,
        ref=ModelRef(kind="builtin", name=name),
        backend=registered.name,
        spec=registered.spec,
        why=f"the server at {address.url} has it",
        options=options.as_dict(opened),
        system=entry.get("system", config.get("system")),
        server=address.url,
    )


def choose_backend(ref: ModelRef, wanted: str | None = None) -> tuple[Registered[BackendSpec], str]:
    """The backend and why. Raises BackendNotFound, Unavailable (with reason and hint), ModelNotFound."""
    for name, why in (
        (wanted, "asked for with -b"),
        (ref.entry.get("backend"), "the model's entry in the config"),
        (config.get("backend"), "the config's default"),
    ):
        if name is not None:
            return _check(str(name), ref), why
    refused: list[str] = []
    best: tuple[int, Registered[BackendSpec]] | None = None
    for name, source in sources().items():
        if not _accepts(source, ref):
            continue
        registered = plugins.manager().backends[name]
        state = availability(registered.spec)
        if not state.ok:
            refused.append(f"{name} {_explain(state)}")
        elif best is None or state.rank > best[0]:
            best = (state.rank, registered)
    if best is not None:
        return best[1], "the best available backend that opens it"
    if refused:
        raise Unavailable(f"No backend can open {ref} now: {'; '.join(refused)}.")
    if not plugins.manager().backends:
        raise BackendNotFound('No backend is installed; see "exo plugins check".')
    raise _nobody_opens(ref)


def _nobody_opens(ref: ModelRef) -> ModelNotFound:
    if ref.kind == "path" and not Path(ref.name).expanduser().exists():
        return ModelNotFound(f"There is no file or folder {ref.name}.")
    listed = ", ".join(plugins.manager().backends)
    wanted = ": give a model folder (with its config.json) or a GGUF file" if ref.kind == "path" else ""
    return ModelNotFound(f"None of the installed backends ({listed}) opens {ref}{wanted}.")


def _check(name: str, ref: ModelRef) -> Registered[BackendSpec]:
    spec = plugins.backend(name)
    state = availability(spec)
    if not state.ok:
        raise Unavailable(f"The backend {name} is not available: {_explain(state)}.")
    source = source_of(spec)
    if source is not None and not _accepts(source, ref):
        if ref.kind == "path" and not Path(ref.name).expanduser().exists():
            raise _nobody_opens(ref)
        raise ModelNotFound(f"The backend {name} does not open {ref}; give another model with -m.")
    return plugins.manager().backends[name]


def _explain(state: Availability) -> str:
    reason = (state.reason or "is not available").rstrip(".")
    return f"{reason} ({state.hint.rstrip('.')})" if state.hint else reason


def _sampling(entry: Mapping[str, Any], above: str) -> dict[str, Any]:
    """The sampling of an entry of the config; `above` is the entry's own key with a dot, "" at the top."""
    from exocli.types import Sampling

    where = _where(f"{above}sampling")
    found = options.read(Sampling, entry.get("sampling", {}), where)
    for key, value in found.items():
        params.require_sampling(f"{where}.{key}", key, value)
    return {key: value for key, value in found.items() if value is not None}


# ------------------------------------------------------------------------------------------ pulling

Pull = Callable[[ModelSource, ModelRef], None]


def ensure_model(choice: Choice, pull: Pull, ask: Callable[[str], bool] | None, yes: bool = False) -> str:
    """The local path to open, or the name for a backend that keeps no models.

    One that is not here is fetched by `pull(source, ref)`, if `yes` (`--pull`) or `ask(question)` says
    so; with nobody to ask, ModelNotFound names the command. EXO_OFFLINE forbids it all.
    """
    source, ref = source_of(choice.spec), choice.ref
    if source is None:
        return ref.name
    path = source.locate(ref)
    if path is not None:
        return str(path)
    if ref.kind == "path":
        raise ModelNotFound(f"There is no file or folder {ref.name}.")
    if config.offline():
        raise ModelNotFound(f"{ref} is not on this machine, and EXO_OFFLINE forbids fetching it.")
    if not yes:
        command = f"exo models pull {ref}"
        if ask is None:
            raise ModelNotFound(f'{ref} is not on this machine: run "{command}" first, or add --pull.')
        if not ask(f"Pull {ref}{size_note(source, ref)}?"):
            raise ModelNotFound(f'{ref} is not on this machine; "{command}" fetches it.')
    pull(source, ref)
    path = source.locate(ref)
    return str(path) if path is not None else ref.name


def size_note(source: ModelSource, ref: ModelRef) -> str:
    """` (105 MB)`, or nothing where the size is not known."""
    from exocli.cli.render import size_text

    size = source.download_size(ref)
    return f" ({size_text(size)})" if size is not None else ""
