"""The key for a server: from the environment, the config, or the system's keyring. Never shown.

The keyring is asked only after a server has refused: on a desktop it may open a window.
"""

from __future__ import annotations

import os

from exocli import UsageError

from exo_remote.urls import Base

VARIABLE = "EXO_REMOTE_API_KEY"
SERVICE = "exo"
"""The keyring's entry: `keyring set exo http://host:port`."""


class Key:
    """One server's key. `value` is None while there is none; printing the object does not show it."""

    __slots__ = ("_base", "_value")

    def __init__(self, base: Base, configured: str = "") -> None:
        """Raises UsageError for one that cannot be sent."""
        self._base = base
        own = os.environ.get("EXO_API_KEY", "").split() if base.loopback else []
        self._value = _checked(os.environ.get(VARIABLE, "") or configured or (own[0] if own else ""))

    @property
    def value(self) -> str | None:
        return self._value or None

    def look_further(self) -> bool:
        """Ask the keyring, if the library is installed; True if there is another key to try now."""
        try:
            import keyring
            from keyring.errors import KeyringError
        except ImportError:
            return False
        try:
            found = keyring.get_password(SERVICE, self._base.home)
        except (KeyringError, OSError, RuntimeError):
            return False  # no keyring on this machine, or it stays locked
        value = _checked(found or "")
        if not value or value == self._value:
            return False
        self._value = value
        return True

    def __repr__(self) -> str:
        return f"<the key for {self._base.host}: {'set' if self._value else 'none'}>"


def _checked(text: str) -> str:
    value = text.strip()
    if not value.isascii() or not value.isprintable() or " " in value:
        raise UsageError(f"The key for the remote server ({VARIABLE}) holds characters that no key has.")
    return value
