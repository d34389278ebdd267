"""llama.cpp's HTTP server in a process of its own: `python llama_server.py MODEL.gguf`. Prints its address.

Small batches, so that a cancel need not wait long; the slots are shown, as its own program does.
"""

from __future__ import annotations

import sys
import threading

import xllamacpp


def main(model: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 4096
    params.n_batch = params.n_ubatch = 64
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.endpoint_slots = True
    server = xllamacpp.Server(params)
    print(f"listening {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
