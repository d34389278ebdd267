"""One rank of `exo ring check` and `exo ring plan`: meets the others, measures, plans, loads nothing.

`python -m exo_ring.probe_rank`: one JSON line in (what a worker's first line holds, as far as it matters
here), one out: {"hello": true} at once, then {"everyone", "plan"} or {"error"}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from exocli import CancelToken, EngineFailed, ExoError

from exo_ring import facts, formation, plan
from exo_ring.meeting import Meeting
from exo_ring.options import Options


def probe(order: Mapping[str, Any]) -> dict[str, Any]:
    """{"everyone": facts by rank, "problems": [sentence…], "plan": Plan or None}. Raises ExoErrors."""
    options, data = Options(**order["options"]), order["data"]
    folder = formation.find_model(order["model"], data, lambda done, total: None, CancelToken())
    mine = facts.collect(folder, data, options.cpu_dtype)
    with Meeting(data["rank"], formation.seats(data), data["nonce"], options.connect_timeout) as meeting:
        everyone = meeting.gather({**mine, **meeting.measure(order["megabytes"])})
    found = facts.problems(everyone, order["name"])
    made = None
    if folder is not None and not found:
        agreed = formation.make_plan(everyone, folder, options, order["name"])
        made = agreed.to_json()
        try:
            plan.check_memory(agreed, order["name"])
        except ExoError as error:
            found.append(error.message)
    return {"everyone": everyone, "problems": found, "plan": made}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not reach the answer

    def say(line: Mapping[str, Any]) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    order = json.loads(sys.stdin.readline())
    os.environ.update(order["env"])
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    say({"hello": True})
    try:
        say(probe(order))
    except ExoError as error:
        say({"error": error.to_dict()})
    except Exception as error:
        say({"error": EngineFailed(f"{type(error).__name__}: {error}").to_dict()})
    os._exit(0)


if __name__ == "__main__":
    main()
