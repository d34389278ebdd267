"""Models of the Hugging Face hub: found in the standard cache without network, fetched on request.

All of huggingface_hub's settings hold (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE). A snapshot
counts as here only when it is whole.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exocli import CancelToken, ModelBroken, ModelInfo, ModelNotFound, ProgressFn, Unavailable, offline

from exo_mlx import fetching, folder

PATTERNS = (
    *("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "tiktoken.model"),
    *("*.txt", "*.jsonl", "*.jinja"),
)
"""What mlx-lm reads. No *.py: code that a model brings is never run."""


def cache_root() -> Path:
    """The standard cache, as huggingface_hub finds it."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def locate(repo: str, revision: str | None) -> Path | None:
    """The whole snapshot of `repo` (at a branch, tag or commit; default main), or None. Opens no socket."""
    base = _repo_folder(repo)
    commit = revision or "main"
    ref = base / "refs" / commit
    try:
        commit = ref.read_text(encoding="utf-8").strip()
    except OSError:
        if revision is None:
            return None
    path = base / "snapshots" / commit
    return path if commit and is_whole(path) else None


def is_whole(path: Path) -> bool:
    """Config, tokenizer and every weight file of the snapshot are there (links that lead nowhere count
    as missing)."""
    try:
        missing = folder.missing_shards(path)
    except ModelBroken:
        return False
    return not missing and folder.looks_like_model(path) and folder.has_tokenizer(path)


def models() -> Iterator[ModelInfo]:
    """The whole snapshots at each repo's main revision that mlx-lm could load."""
    from exo_mlx.models import details, tasks

    root = cache_root()
    for base in sorted(root.glob("models--*--*")) if root.is_dir() else ():
        repo = base.name.removeprefix("models--").replace("--", "/", 1)
        path = locate(repo, None)
        if path is not None:
            yield ModelInfo(
                name=repo,
                path=str(path),
                size=_snapshot_size(path),
                source="hub",
                details=details(path),
                tasks=tasks(path),
            )


def download_size(repo: str, revision: str | None) -> int | None:
    """Bytes of the files a pull would fetch; None if the hub cannot be asked or does not say."""
    if offline():
        return None
    try:
        return _remote_size(repo, revision)
    except Exception:  # only the question "Pull X (SIZE)?" needs it: the pull itself says what is wrong
        return None


def pull(repo: str, revision: str | None, progress: ProgressFn, cancel: CancelToken) -> Path:
    """Fetch the snapshot, going on where an earlier try ended.

    Raises ModelNotFound, Unavailable, Cancelled.
    """
    from huggingface_hub import snapshot_download

    if offline():
        path = locate(repo, revision)
        if path is None:
            raise Unavailable(f"{repo} is not on this machine, and EXO_OFFLINE forbids fetching it.")
        return path
    try:
        _drop_damaged(locate(repo, revision))
        total = _remote_size(repo, revision) or 0
        snapshot_download(
            repo,
            revision=revision,
            allow_patterns=list(PATTERNS),
            tqdm_class=_progress_class(progress, total, cancel),
        )
    except Exception as error:
        raise _told(error, repo, revision) from error
    path = locate(repo, revision)
    if path is None:
        raise ModelNotFound(f"{repo} has no config.json with safetensors weights: it is no model for mlx-lm.")
    return path


def remove(repo: str, revision: str | None) -> int:
    """Delete the repo's cached revision (all of them if none is named); the bytes freed."""
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir(cache_root())
    wanted = locate(repo, revision) if revision else None
    commits = [
        found.commit_hash
        for cached in cache.repos
        if cached.repo_id == repo and cached.repo_type == "model"
        for found in cached.revisions
        if wanted is None or found.snapshot_path == wanted
    ]
    if not commits:
        raise ModelNotFound(f"{repo} is not on this machine.")
    strategy = cache.delete_revisions(*commits)
    strategy.execute()
    return int(strategy.expected_freed_size)


# ------------------------------------------------------------------------------------------------- parts


def _drop_damaged(snapshot: Path | None) -> None:
    """Remove weight files that are cut off: huggingface_hub takes whatever has the name for whole."""
    for link in snapshot.glob("model*.safetensors") if snapshot else ():
        try:
            folder.check_safetensors(link)
        except ModelBroken:
            link.resolve().unlink(missing_ok=True)
            link.unlink(missing_ok=True)


def _repo_folder(repo: str) -> Path:
    return cache_root() / f"models--{repo.replace('/', '--')}"


def _snapshot_size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _remote_size(repo: str, revision: str | None) -> int | None:
    from huggingface_hub import HfApi

    info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    sizes = [
        file.size
        for file in info.siblings or ()
        if any(fnmatch.fnmatch(file.rfilename, pattern) for pattern in PATTERNS)
    ]
    return None if None in sizes else sum(size for size in sizes if size)


def _progress_class(progress: ProgressFn, total: int, cancel: CancelToken) -> type[Any]:
    """A bar for huggingface_hub that draws nothing: it counts bytes and is where a cancel is seen."""
    from huggingface_hub.utils import tqdm

    class Counter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"
            self.seen = 0
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            cancel.raise_if_cancelled()
            if self.counts_bytes:
                self.seen += int(n or 0)
                progress(min(self.seen, total), total)

    return Counter


def _told(error: Exception, repo: str, revision: str | None) -> Exception:
    """What huggingface_hub raised, as one sentence of ours."""
    from huggingface_hub import errors

    unknown = f"The hub has no model {repo}, or it is private: check the name, or set HF_TOKEN."
    if isinstance(error, errors.GatedRepoError):
        return Unavailable(f"{repo} asks you to accept its terms on its page first; then set HF_TOKEN.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFound(unknown)
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFound(f"{repo} has no revision {revision or 'main'}.")
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status == 401:  # what the hub answers to those it does not know
            return ModelNotFound(unknown)
        return Unavailable(f"The hub does not give {repo} (HTTP {status}): try again later.")
    told = fetching.disk_error(error, cache_root(), "HF_HOME") if isinstance(error, OSError) else None
    return told or Unavailable(
        f"The hub cannot be reached for {repo} ({type(error).__name__}): check the network and run it "
        "again; what is there is kept."
    )
