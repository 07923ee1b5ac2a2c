"""Under which names a server answers.

A page elsewhere may give its own name the address of this machine (DNS rebinding). To the browser it is then of the same
origin as the server here, and only the `Host` of its requests tells the two apart. An address as `Host` cannot be given away
like a name.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection
from typing import Final

VARIABLE: Final = "LIGHTNING_HOOKS_HOSTS"
"""The environment variable with further names, separated by commas: those under which a proxy asks."""


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, leads to this machine only.

    Example:
        >>> [is_loopback(host) for host in ("127.0.0.2", "::ffff:127.0.0.1", "localhost", "0.0.0.0", "localhost.example")]
        [True, True, True, False, False]
    """
    name = host.rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def names_for(address: str) -> Collection[str] | None:
    """The names under which a server that listens at an address answers, besides those of loopback; None for any name."""
    return _named() if is_loopback(address) else None


def _named() -> frozenset[str]:
    return frozenset(name.strip().lower() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())
