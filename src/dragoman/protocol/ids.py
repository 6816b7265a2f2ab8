"""Ids made by the server, in the literal shapes clients and nodes know.

Everything that must not be guessed (session, resume token) comes from `secrets`.
"""

import secrets
import uuid


def session_id() -> str:
    return f"s-{secrets.token_hex(16).upper()}"


def node_id() -> str:
    return f"node-{secrets.token_hex(4).upper()}"


def job_id() -> str:
    return f"job-{uuid.uuid4()}"


def turn_id() -> str:
    return str(uuid.uuid4())


def trace_id() -> str:
    return str(uuid.uuid4())


def resume_token() -> str:
    return secrets.token_urlsafe(24)


def group_id(session: str, index: int) -> str:
    return f"group_{session}_{index}"


def request_id(session: str, index: int, tgt: str) -> str:
    """What makes two requests the same one, however often and wherever it is asked."""
    return f"{session}:{index}:{tgt}"
