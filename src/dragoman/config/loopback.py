"""Tells whether only this machine can reach an address."""

import ipaddress


def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses; not for other names, because what they resolve to may change."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
