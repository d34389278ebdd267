"""`GET /`: for now a plain page that says what this server has. No scripts, nothing from elsewhere."""

from __future__ import annotations

from html import escape

from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response

from exocli.server.state import state_of

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>exo</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #ddd }} a {{ color: #8cf }} }}</style>
<h1>exo</h1>
<h2>Models</h2>
<ul>{models}</ul>
<h2>Routes</h2>
<ul>{routes}</ul>
<p><a href="/openapi.json">/openapi.json</a> describes them.</p>
</html>
"""


async def page(http: HttpRequest) -> Response:
    from exocli.server.openapi import ROUTES

    names = (f"<li><code>{escape(name)}</code>" for name in state_of(http).hub.models)
    routes = (
        f"<li><code>{method.upper()} {escape(path)}</code>: {escape(summary)}"
        for method, path, summary, _, _ in ROUTES
    )
    body = _PAGE.format(models="\n".join(names), routes="\n".join(routes))
    return HTMLResponse(body, headers={"Content-Security-Policy": POLICY})
