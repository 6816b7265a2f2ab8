"""Where somebody on this machine finds what listens on a host and port."""

EVERYWHERE = ("0.0.0.0", "::", "")


def authority(host: str, port: int) -> str:
    """`host:port` as URLs write it; an address that stands for all of them is reached on the loopback."""
    named = "127.0.0.1" if host in EVERYWHERE else host
    return f"[{named}]:{port}" if ":" in named else f"{named}:{port}"
