"""Starts a probe on every host of a ring, by the same commands that would start its ranks, and reports.

Runs in the program that the user started. Every wait has a deadline; every failure names rank and host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from exocli import Unavailable, WorkerSpec

from exo_ring.options import Options

START_TIMEOUT = 15.0
"""Seconds in which a host must have started Python and this package (ssh's own time included)."""
_GRACE = 10.0
"""Beyond connect_timeout: finding the model, measuring, planning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the probes found. `errors`: a sentence for each thing that is wrong; `plan` as Plan's JSON."""

    ranks: Sequence[Mapping[str, Any]]
    errors: Sequence[str]
    plan: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(specs: Sequence[WorkerSpec], options: Options, model: str, name: str, megabytes: float) -> Report:
    """`model` is the path here; `megabytes` sent between neighbours for the bandwidth, 0 = none."""
    return asyncio.run(_run(specs, options, model, name, megabytes))


async def _run(
    specs: Sequence[WorkerSpec], options: Options, model: str, name: str, megabytes: float
) -> Report:
    probes = [_Probe(spec, options, model, name, megabytes) for spec in specs]
    try:
        started = await asyncio.gather(*(p.start() for p in probes), return_exceptions=True)
        errors = [str(e) for e in started if isinstance(e, Unavailable)]
        if errors:  # the others would only report that they miss it
            return Report(ranks=[], errors=errors, plan=None)
        answers = await asyncio.gather(*(p.answer() for p in probes))
    finally:
        await asyncio.gather(*(p.end() for p in probes))
    good = [a for a in answers if "everyone" in a]
    if len(good) == len(answers):
        first = good[0]
        return Report(ranks=first["everyone"], errors=first["problems"], plan=first["plan"])
    errors = list(dict.fromkeys(a["error"]["message"] for a in answers if "error" in a))
    return Report(ranks=[], errors=errors, plan=None)


class _Probe:
    def __init__(self, spec: WorkerSpec, options: Options, model: str, name: str, megabytes: float) -> None:
        self._spec = spec
        self._timeout = options.connect_timeout + _GRACE
        self._order = {
            "data": dict(spec.data),
            "env": dict(spec.env),
            "options": asdict(options),
            "model": model,
            "name": name,
            "megabytes": megabytes,
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Until it has said hello. Raises Unavailable."""
        python = self._spec.python or sys.executable
        command = [*self._spec.prefix, python, "-P", "-m", "exo_ring.probe_rank"]
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 24, start_new_session=True
            )
        except OSError as error:
            raise self._unavailable(f'"{command[0]}" cannot be started ({error.strerror})') from error
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._order).encode() + b"\n")
        line = await self._line(START_TIMEOUT)
        if line is None:
            raise self._unavailable(f"there was no answer within {START_TIMEOUT:g} s")

    async def answer(self) -> dict[str, Any]:
        try:
            line = await self._line(self._timeout)
        except Unavailable as error:
            return {"error": error.to_dict()}
        if line is None:
            late = self._unavailable(f"the check did not end within {self._timeout:g} s")
            return {"error": late.to_dict()}
        return line

    async def _line(self, timeout: float) -> dict[str, Any] | None:
        """The next line; None if there is none in time. Raises Unavailable where the process ended."""
        process = self._process
        assert process is not None and process.stdout is not None and process.stderr is not None
        try:
            raw = await asyncio.wait_for(process.stdout.readline(), timeout)
        except TimeoutError:
            return None
        if not raw:
            status = await process.wait()
            said = (await process.stderr.read()).decode("utf-8", "replace").strip().splitlines()
            last = f": {said[-1]}" if said else ""
            raise self._unavailable(f"its command ended with status {status}{last}")
        try:
            line: dict[str, Any] = json.loads(raw)
        except ValueError as error:
            raise self._unavailable("its command printed something else before the answer") from error
        return line

    async def end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            # Not process.kill(): Popen's reaps the child behind asyncio's back.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()

    def _unavailable(self, text: str) -> Unavailable:
        spec = self._spec
        return Unavailable(f"Rank {spec.rank} on {spec.host}: {text}.", rank=spec.rank, host=spec.host)
