"""Raises the limit of open files, and so of sockets, to what the system allows.

The usual soft limit of 1024 is used up by a thousand clients; then not even Redis could be reached again.
"""

import resource

MACOS = 10_240  # macOS reports no hard limit, and refuses a soft limit above this


def raise_file_limit(wanted: int = 0) -> bool:
    """Set the soft limit to the hard limit; children inherit it. False: it is below `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (MACOS, hard))
            return wanted <= MACOS
    return hard == resource.RLIM_INFINITY or hard >= wanted
