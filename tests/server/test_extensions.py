"""Routes of plugins, with models, stream and cancel; a broken one does no harm. Keys: test_trust.py."""

from __future__ import annotations

from tests.server.serving import Serving


def test_a_plugins_routes(server: Serving):
    assert server.get("/x/scripted/names").json() == ["scripted"]
    assert server.get("/x/scripted/say?text=a+b").json() == "a b"
    assert server.get("/x/scripted/say?text=forever").json() == "forever" * 5
    server.wait_idle()
    counted = 'exo_requests_total{api="x.scripted",model="scripted",outcome="cancelled"} 1.0'
    assert counted in server.get("/metrics").text
    assert server.get("/x/broken/anything").status_code == 404
    for name in ("broken", "quits"):
        server.wait_log(f"the routes {name} of exo-scripted are left out")
