"""For the client scripts: look at the server from beside the client library."""

import json
import sys
import time
import urllib.request

URL = sys.argv[1]


def rows():
    with urllib.request.urlopen(f"{URL}/v1/requests") as answer:
        return json.load(answer)["data"]


def idle_within(seconds=3.0):
    """Seconds until nothing runs; None if that takes longer."""
    begin = time.monotonic()
    while rows():
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.01)
    return time.monotonic() - begin


def report(**found):
    print(json.dumps(found))


SCRIPT = json.dumps([["reasoning", "hm"], ["text", "so "], ["text", "it is"]])
CALL = json.dumps([["tool", "look", '{"at": "sky"}']])
