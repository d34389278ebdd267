"""Reads the hostfile JSON that MLX's own tools write and read, and names everything that is wrong in it.

Format: a list of {"ssh": name, "ips": [address…], "rdma": …}, or an object with that list under "hosts"
beside "backend" and "envs" (mlx's `_distributed_utils/common.py`). Pure but for reading the file.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exocli import UsageError

_KEYS = ("ssh", "ips", "rdma")
_TOP_KEYS = ("hosts", "backend", "envs")


@dataclass(frozen=True, slots=True)
class Host:
    """One rank's machine: the name that the launcher takes, the IPv4 addresses its ring socket uses."""

    name: str
    ips: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hostfile:
    hosts: tuple[Host, ...]
    env: Mapping[str, str]


def read(path: Path) -> Hostfile:
    """Raises UsageError naming the file and what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"The hostfile {path} is not UTF-8 text.") from error
    except OSError as error:
        raise UsageError(f"The hostfile {path} cannot be read: {error.strerror or error}.") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Hostfile:
    """Raises UsageError listing all faults, in the order of the file."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"The hostfile {name} is not JSON (line {error.lineno}, column {error.colno}: {error.msg})."
        ) from error
    faults: list[str] = []
    env: dict[str, str] = {}
    if isinstance(data, dict):
        faults += [f'unknown key "{key}"' for key in data if key not in _TOP_KEYS]
        if data.get("backend") not in (None, "", "ring"):
            faults.append(f'the backend "{data["backend"]}" is not "ring"')
        env = _environment(data.get("envs", []), faults)
        data = data.get("hosts")
    hosts = _hosts(data, faults)
    if not faults:
        faults = _across(hosts)
    if faults:
        raise UsageError(f"The hostfile {name} cannot be used: {'; '.join(faults)}.")
    return Hostfile(tuple(hosts), env)


def _environment(value: Any, faults: list[str]) -> dict[str, str]:
    pairs = value if isinstance(value, list) else [None]
    found = {}
    for pair in pairs:
        key, equals, content = pair.partition("=") if isinstance(pair, str) else ("", "", "")
        if not key or not equals:
            faults.append('"envs" must be a list of "NAME=VALUE"')
            break
        found[key] = content
    return found


def _hosts(data: Any, faults: list[str]) -> list[Host]:
    if not isinstance(data, list):
        faults.append('it must be a list of {"ssh": …, "ips": […]}')
        return []
    hosts = []
    for number, entry in enumerate(data):
        if not isinstance(entry, dict):
            faults.append(f'entry {number} is not {{"ssh": …, "ips": […]}}')
            continue
        faults += [f'entry {number} has the unknown key "{key}"' for key in entry if key not in _KEYS]
        name, ips = entry.get("ssh"), entry.get("ips")
        if not isinstance(name, str) or not name or name.startswith("-") or name != name.strip():
            faults.append(f'entry {number} has no host name under "ssh"')
        elif not isinstance(ips, list) or not ips:
            faults.append(f'entry {number} ({name}) has no addresses under "ips"')
        else:
            wrong = [f'"{ip}" of {name} is not an IPv4 address' for ip in ips if not _is_ipv4(ip)]
            faults += wrong
            if not wrong:
                hosts.append(Host(name, tuple(ips)))
    return hosts


def _is_ipv4(ip: Any) -> bool:
    try:
        return isinstance(ip, str) and bool(ipaddress.IPv4Address(ip))
    except ValueError:
        return False


def _across(hosts: list[Host]) -> list[str]:
    if len(hosts) < 2:
        return [f"a ring needs at least two hosts, it names {len(hosts) or 'none'}"]
    faults = []
    names: dict[str, int] = {}
    owners: dict[str, str] = {}
    for number, host in enumerate(hosts):
        if host.name in names:
            faults.append(f"entries {names[host.name]} and {number} are both {host.name}")
            continue
        names[host.name] = number
        for ip in host.ips:
            if ip in owners:
                twice = "twice in" if owners[ip] == host.name else f"{owners[ip]} and"
                faults.append(f"the address {ip} is {twice} {host.name}")
            owners[ip] = host.name
    if len({len(host.ips) for host in hosts}) > 1:
        counts = ", ".join(f"{host.name} {len(host.ips)}" for host in hosts)
        faults.append(f"every host must have as many addresses as the others ({counts})")
    return faults
