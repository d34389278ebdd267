"""Routes of plugins: the same checks, with models, stream and cancel; a broken one does no harm."""

from __future__ import annotations

from pathlib import Path

from tests.server.serving import Serving

KEY = {"x-api-key": "a-key-for-plugins"}


def test_a_plugins_routes(home: Path):
    with Serving(home, env={"EXO_API_KEY": KEY["x-api-key"]}) as serving:
        assert serving.get("/x/scripted/names").status_code == 401
        assert serving.get("/x/scripted/names", headers=KEY).json() == ["scripted"]
        assert serving.get("/x/scripted/say?text=a+b", headers=KEY).json() == "a b"
        said = serving.get("/x/scripted/say?text=forever", headers=KEY).json()
        assert said == "forever" * 5
        serving.wait_idle(headers=KEY)
        metrics = serving.get("/metrics", headers=KEY).text
        assert 'exo_requests_total{api="x.scripted",model="scripted",outcome="cancelled"} 1.0' in metrics
        assert serving.get("/x/broken/anything", headers=KEY).status_code == 404
        assert "the routes broken of exo-scripted are left out" in serving.wait_log("left out")
