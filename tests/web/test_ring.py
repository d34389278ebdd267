"""The requests panel of a server whose model lies on several ranks: each with its layers and health."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.exo_ring import tiny
from tests.server.serving import Serving
from tests.web.conftest import Open
from tests.web.helpers import send, wait_idle, wait_said


def test_every_rank_is_shown_with_its_layers_memory_and_health(
    web_home: Path, tmp_path: Path, open_page: Open
):
    folder = tiny.write(tmp_path / "tiny", num_hidden_layers=6)
    flags = ("-m", str(folder), "-o", "ranks=2", "-o", "split=4,2", "-o", "strategy=pipeline")
    with Serving(web_home, *flags, backend="ring") as server:
        page = open_page(server)
        send(page, "hello")
        wait_said(page, 1)
        page.keyboard.press("Escape")
        wait_idle(page)
        page.get_by_role("button", name="Requests on the server").click()
        models = page.get_by_role("list", name="Models")
        expect(models).to_contain_text(re.compile(r"rank 0 on this machine: layers 0–3, [\d.]+ .B, well"))
        expect(models).to_contain_text(re.compile(r"rank 1 on this machine: layers 4–5, [\d.]+ .B, well"))
        (model,) = server.get("/api/ps").json()["models"]
        ranks = model["exo"]["ranks"]
        assert [rank["facts"]["layers"] for rank in ranks] == [[0, 4], [4, 6]]
        assert model["size_vram"] == sum(rank["facts"]["weight_bytes"] for rank in ranks)
