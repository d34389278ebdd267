"""A browser (Debian's chromium), pages in it, and what was wrong in them: nothing may be."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from playwright.sync_api import (
    Browser,
    BrowserContext,
    CDPSession,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.server.serving import Serving

HERE = Path(__file__).parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # One process for all pages: most of a page's time went into starting its own.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
]
KEPT = "indexeddb,local_storage"
SIZE: ViewportSize = {"width": 900, "height": 640}
Open = Callable[..., Page]

expect.set_options(timeout=15_000)  # how long a busy machine may take to paint


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("The web page's tests need a browser: apt-get install chromium.", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def packages() -> Path:
    """node_modules with what package-lock.json names; npm ci compares each package with its hash there."""
    if shutil.which("npm") is None:
        pytest.fail("The web page's tests need npm: apt-get install npm.", pytrace=False)
    folder = HERE.parent / ".cache" / "web-node"
    folder.mkdir(parents=True, exist_ok=True)
    lock, done = HERE / "package-lock.json", folder / "node_modules" / "made-from.json"
    with FileLock(folder / "lock"):
        if not done.exists() or done.read_bytes() != lock.read_bytes():
            shutil.copy(HERE / "package.json", folder)
            shutil.copy(lock, folder)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            subprocess.run(command, cwd=folder, check=True)
            shutil.copy(lock, done)
    return done.parent


@pytest.fixture(scope="package")
def web_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web-home")


@pytest.fixture(scope="package")
def serving(web_home: Path) -> Iterator[Serving]:
    """A server with the scripted engine, slow enough to be watched."""
    with Serving(web_home, "-o", "pace_s=0.01") as server:
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "wake up"}]})
        yield server


@pytest.fixture(scope="package")
def person(browser: Browser) -> Iterator[BrowserContext]:
    """One browser profile for all tests: its cache of the page's files saves them most of their time."""
    context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture(scope="package")
def tab(person: BrowserContext) -> Page:
    """Of the pages, the one that the next test uses again: to open another costs more than most tests do."""
    return person.new_page()


@pytest.fixture(scope="package")
def broom(person: BrowserContext, tab: Page) -> CDPSession:
    return person.new_cdp_session(tab)


@pytest.fixture
def context(person: BrowserContext, tab: Page, broom: CDPSession) -> Iterator[BrowserContext]:
    """What its pages keep is forgotten after the test, and none of them may err or reach elsewhere."""
    wrong: list[str] = []
    listeners: dict[str, Callable[[Any], None]] = {
        "weberror": lambda error: wrong.append(str(error.error)),
        "console": lambda said: wrong.append(said.text) if _is_wrong(said.type, said.text) else None,
        "request": lambda asked: None if _is_here(asked.url) else wrong.append(asked.url),
    }
    for event, listener in listeners.items():
        person.on(event, listener)  # type: ignore[call-overload]
    yield person
    origins = {page.evaluate("location.origin") for page in person.pages} - {"null"}
    for page in person.pages:
        if page is not tab:
            page.close()
    tab.unroute_all()
    tab.goto("about:blank")
    for event, listener in listeners.items():
        person.remove_listener(event, listener)
    # Only now: a page that leaves keeps something.
    for origin in origins:
        broom.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": KEPT})
    assert wrong == []


def _is_wrong(kind: str, text: str) -> bool:
    # What a server answers or that it is gone is also in the console; the page itself tells it.
    return kind == "error" and "Failed to load resource" not in text


def _is_here(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "http://localhost:"))


@pytest.fixture
def open_page(context: BrowserContext) -> Open:
    """open_page(server, hash, page) → a page that is ready to be typed in, a new one if none is given."""

    def opened(server: Serving, fragment: str = "", page: Page | None = None) -> Page:
        page = page or context.new_page()
        page.goto(f"{server.url}/{fragment}")
        expect(page.locator("#model option")).not_to_have_count(0)
        return page

    return opened


@pytest.fixture
def first(tab: Page, context: BrowserContext) -> Page:
    """The tab as it was."""
    tab.set_viewport_size(SIZE)
    tab.emulate_media(color_scheme="light", reduced_motion="reduce")
    return tab


@pytest.fixture
def page(open_page: Open, serving: Serving, first: Page) -> Page:
    return open_page(serving, page=first)
