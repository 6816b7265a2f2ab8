"""Ids made by the server, in the formats that clients and nodes know.

Ids that must not be guessed (session, resume token) come from `secrets`.
"""

import os
import secrets


def _uuid4() -> str:
    """A random UUID, without the object around it: several are made for each utterance."""
    h = os.urandom(16).hex()
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{'89ab'[int(h[16], 16) & 3]}{h[17:20]}-{h[20:]}"


def session_id() -> str:
    return f"s-{secrets.token_hex(16).upper()}"


def node_id() -> str:
    return f"node-{secrets.token_hex(4).upper()}"


def job_id() -> str:
    return f"job-{_uuid4()}"


def preview_id() -> str:
    return f"preview-{_uuid4()}"


def turn_id() -> str:
    return _uuid4()


def room_id() -> str:
    return _uuid4()


def room_code() -> str:
    return str(100_000 + secrets.randbelow(900_000))


def log_epoch() -> str:
    return secrets.token_hex(8)


def trace_id() -> str:
    return _uuid4()


def resume_token() -> str:
    return secrets.token_urlsafe(24)


def group_id(session: str, index: int) -> str:
    return f"group_{session}_{index}"


def request_id(session: str, index: int, tgt: str) -> str:
    """Equal for equal requests, on every instance and for every attempt."""
    return f"{session}:{index}:{tgt}"


def tenant_of(owner: str) -> str:
    """The tenant in the name of an owner, `<tenant>/<subject>`. Users of chat (`~chat/…`) and anonymous clients
    (`~anonymous/…`) belong to the default tenant."""
    tenant = owner.partition("/")[0]
    return "default" if tenant.startswith("~") else tenant
