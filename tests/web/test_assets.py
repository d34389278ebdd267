"""How the page is served: caching, policy, size, and that what is vendored is what npm published."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import httpx
import pytest
from exocli.server.web import FOLDER, FOREVER, site

from tests.server.serving import Serving

VENDOR = FOLDER / "vendor"
LOCK = Path(__file__).parent / "package-lock.json"
VENDORED = {
    "marked": ("lib/marked.esm.js", "LICENSE"),
    "dompurify": ("dist/purify.min.js", "LICENSE"),
}
FIRST_PAINT = 100_000
"""Bytes, uncompressed, of all that is loaded before the first paint."""


def assets(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="(web/[^"]+)"', page)


def test_the_page_may_run_only_its_own_files(serving: Serving):
    answer = serving.get("/")
    policy = answer.headers["content-security-policy"]
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "style-src 'self'" in policy
    assert "unsafe" not in policy and "*" not in policy and "http" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "style=" not in answer.text and "onclick" not in answer.text and "<style" not in answer.text


def test_the_page_is_asked_for_anew_and_its_files_are_kept(serving: Serving):
    page = serving.get("/")
    assert page.headers["cache-control"] == "no-cache"
    again = serving.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    names = assets(page.text)
    assert len(names) == 4
    for name in names:
        answer = serving.get(f"/{name}")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, FOREVER)
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.content == (FOLDER / name.split("/", 2)[2]).read_bytes()


def test_head_answers_like_get_without_a_body(serving: Serving):
    with serving.client() as client:
        answer = client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "name", ["0123456789abcdef/main.js", "{digest}/nothing.js", "{digest}/../__init__.py", ""]
)
def test_what_is_not_there_is_a_404(serving: Serving, name: str):
    with httpx.Client(base_url=serving.url, trust_env=False) as client:
        answer = client.get(f"/web/{name.format(digest=site().digest)}".replace("..", "%2e%2e"))
    assert answer.status_code == 404
    assert answer.headers.get("cache-control") != FOREVER


def test_the_first_paint_is_small():
    before = {name: len(data) for name, data in site().files.items() if not name.startswith("vendor/")}
    assert sum(before.values()) < FIRST_PAINT, before
    everything = sum(len(gzip.compress(data)) for data in site().files.values())
    assert everything < FIRST_PAINT, "all there is, as it travels"


def test_no_file_names_another_host():
    for name, data in site().files.items():
        if not name.startswith("vendor/"):
            found = set(re.findall(rb"https?://[^\s\"'`)]+", data)) - {b"http://www.w3.org/2000/svg"}
            assert not found, name


@pytest.mark.parametrize("package", VENDORED)
def test_the_vendored_files_are_those_that_npm_published(package: str, packages: Path):
    (manifest,) = [
        row for row in json.loads((VENDOR / "manifest.json").read_text()) if row["name"] == package
    ]
    locked = json.loads(LOCK.read_text())["packages"][f"node_modules/{package}"]
    assert {key: locked[key] for key in ("version", "license", "integrity")} == {
        key: manifest[key] for key in ("version", "license", "integrity")
    }
    for name in VENDORED[package]:
        ours = (VENDOR / package / Path(name).name).read_bytes()
        assert ours == (packages / package / name).read_bytes(), (
            f"{name} is not {package} {locked['version']}'s"
        )


def test_nothing_else_is_vendored():
    found = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    named = {f"{package}/{Path(name).name}" for package, names in VENDORED.items() for name in names}
    assert found == {"manifest.json", *named}
