"""How many sockets this process may have: whatever the system allows, not what shells begin with.

A soft limit of 1024 is usual, and is used up by a thousand clients; then not even a lost connection to Redis could be
made again.
"""

import resource

MACOS = 10_240  # macOS names no hard limit, and refuses a soft one above this


def raise_file_limit(wanted: int = 0) -> bool:
    """As many open files as the system lets us have; children inherit it. False: fewer than `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (MACOS, hard))
            return wanted <= MACOS
    return hard == resource.RLIM_INFINITY or hard >= wanted
