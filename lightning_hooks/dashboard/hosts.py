"""Decides under which host names a server answers, as a protection against DNS rebinding.

An attacker can let the name of his own page resolve to the address of this machine (DNS rebinding). For the browser that page
then has the same origin as our server, and only the `Host` header of its requests differs: it holds the attacker's name. A
numeric address in the `Host` header is safe, because an address cannot be resolved to another address.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection
from typing import Final

VARIABLE: Final = "LIGHTNING_HOOKS_HOSTS"
"""The environment variable with further names, separated by commas, for example the name of a proxy."""


def is_loopback(host: str) -> bool:
    """Whether an address or a name can be reached from this machine only.

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
    """The host names, besides those of loopback, under which a server at an address answers; None for any name."""
    return _named() if is_loopback(address) else None


def _named() -> frozenset[str]:
    return frozenset(name.strip().lower() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())
