"""The PROXY protocol, versions 1 and 2: what a proxy writes before the first byte of a client. Pure: bytes in.

It names the client's address. For a connection of the proxy's own, such as a health check, it names none.
"""

import re
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"  # of version 2
V1: Final = b"PROXY "
MAX_V1_BYTES: Final = 107
MAX_V2_BYTES: Final = 4096  # the addresses and what a proxy adds to them (TLVs)
_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}")
_STREAM_4, _STREAM_6 = 0x11, 0x21
_NAMELESS: Final = frozenset({0x00, 0x31})  # unspecified, and Unix sockets


class BadProxyHeader(Exception):
    """The connection does not begin with a header that can be read; the sentence says why."""


class Header(NamedTuple):
    size: int  # bytes
    client: tuple[str, int] | None  # None: the proxy itself


def begins(data: bytes | bytearray) -> bool:
    """Whether what has arrived so far is the beginning of a header, and of nothing else that is expected here."""
    return data.startswith(V1) or data[:1] == SIGNATURE[:1]


def read(data: bytes | bytearray) -> Header | None:
    """The header at the beginning of `data`; None: more bytes are needed. Raises BadProxyHeader."""
    start = bytes(data[: len(SIGNATURE)])
    if start == SIGNATURE:
        return _read_v2(data)
    if start.startswith(V1):
        return _read_v1(bytes(data[:MAX_V1_BYTES]))
    if start and (SIGNATURE.startswith(start) or V1.startswith(start)):
        return None
    raise BadProxyHeader(
        "a connection from one of server.trusted_proxies must begin with a PROXY protocol header, because "
        "server.proxy_protocol is on"
    )


def _read_v1(data: bytes) -> Header | None:
    end = data.find(b"\r\n")
    if end < 0:
        if len(data) < MAX_V1_BYTES:
            return None
        raise BadProxyHeader(f"the PROXY protocol header is longer than {MAX_V1_BYTES} bytes")
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return Header(end + 2, None)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise _malformed()
    client = _v1_end(words[1], words[2], words[4])
    _v1_end(words[1], words[3], words[5])
    return Header(end + 2, client)


def _v1_end(family: str, address: str, port: str) -> tuple[str, int]:
    try:
        found = ip_address(address)
    except ValueError:
        raise _malformed() from None
    if found.version != int(family[3]) or not _PORT.fullmatch(port) or int(port) > 65535 or "%" in address:
        raise _malformed()
    return str(found), int(port)


def _read_v2(data: bytes | bytearray) -> Header | None:
    if len(data) < 16:
        return None
    version_and_command, family, size = struct.unpack_from("!BBH", data, 12)
    if version_and_command not in (0x20, 0x21):
        raise _malformed()
    if size > MAX_V2_BYTES:
        raise BadProxyHeader(f"the PROXY protocol header is longer than {MAX_V2_BYTES} bytes")
    if len(data) < 16 + size:
        return None
    if version_and_command == 0x20 or family in _NAMELESS:  # LOCAL: of the proxy itself
        return Header(16 + size, None)
    body = bytes(data[16 : 16 + size])
    if family == _STREAM_4 and size >= 12:
        return Header(16 + size, (str(IPv4Address(body[:4])), int.from_bytes(body[8:10], "big")))
    if family == _STREAM_6 and size >= 36:
        return Header(16 + size, (str(IPv6Address(body[:16])), int.from_bytes(body[32:34], "big")))
    raise _malformed()


def _malformed() -> BadProxyHeader:
    return BadProxyHeader("the PROXY protocol header is malformed")
