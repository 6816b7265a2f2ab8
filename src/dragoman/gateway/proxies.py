"""The client behind trusted proxies, by the headers they add or by the PROXY protocol. Pure.

`X-Forwarded-For` and `Forwarded` (RFC 7239): each proxy appends the address that it sees. Anybody can write the left
part of the list, so it is read from the right: the first address that is not a trusted proxy is the client. A list that
is not from a trusted proxy is not read at all. A proxy that sets one of the two headers usually passes the other on as
the client wrote it. So if both are there, both must name the same client.

The PROXY protocol, versions 1 and 2, is a header before the first byte of the client. It names the client's address.
For a connection of the proxy's own, such as a health check, it names none.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

FORWARDED: Final = "forwarded"
X_FORWARDED_FOR: Final = "x-forwarded-for"
MAX_HOPS: Final = 32  # addresses of one list that are looked at
_OTHERS: Final = frozenset({FORWARDED, "via", "x-real-ip"})
_PORT: Final = re.compile(r":([0-9]{1,5}|_[A-Za-z0-9._-]+)")
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Pairs of one element are separated by semicolons, elements by commas. Proxies write IPv6 addresses and ports without
# the quotes that the RFC asks for, so a bare value may hold colons and brackets.
_PAIR: Final = re.compile(rf'[ \t]*({_TOKEN})=("(?:[^"\\]|\\.)*"|[^\s;,"\\]*)[ \t]*([;,]|\Z)')


class BadForwarding(Exception):
    """A trusted proxy sent a list that cannot be read; the sentence says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The client of a connection or request. `proxy`: the trusted proxy whose header named the address."""

    address: str
    port: int = 0
    proxy: str = ""


class Proxies:
    """The proxies that are trusted. `protocol`: each of them begins its connections with a PROXY protocol header."""

    def __init__(self, networks: Iterable[str] = (), *, protocol: bool = False) -> None:
        self._networks = tuple(ip_network(text) for text in networks)
        self._protocol = protocol

    def trusts(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            found = ip_address(canonical(address))
        except ValueError:
            return False
        return any(found in each for each in self._networks)

    def expects_header(self, address: str) -> bool:
        """Whether a connection from `address` begins with a PROXY protocol header."""
        return self._protocol and self.trusts(address)

    def peer(self, address: str, port: int, header: Callable[[str], str]) -> Peer:
        """The client of a request; `header` tells the value of one by its name in lower case, "" if it is not there."""
        if not self.trusts(address):
            return Peer(address, port)
        named = {self._client(read(value)) for name, read in _READERS.items() if (value := header(name))}
        if len(named) > 1:
            raise BadForwarding(
                "X-Forwarded-For and Forwarded name different clients: the proxy must remove the one it does not set"
            )
        client = "".join(named)
        return Peer(client, proxy=address) if client else Peer(address, port)

    def _client(self, addresses: Iterable[str]) -> str:
        """The right-most address that is not a trusted proxy, or, where that is unknown, the proxy before it."""
        last = ""
        for text in addresses:
            address = canonical(text)
            if not address:
                break
            last = address
            if not self.trusts(address):
                break
        return last


def canonical(address: str) -> str:
    """One spelling for each address, without a zone, IPv4 within IPv6 as IPv4; "" for what is none."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)


def is_forwarded(names: Iterable[str]) -> bool:
    """Whether one of the header names, in any case, is one that proxies add."""
    lowered = (name.lower() for name in names)
    return any(name in _OTHERS or name.startswith("x-forwarded-") for name in lowered)


def x_forwarded_for(value: str) -> Iterator[str]:
    """The addresses, from the right. What is not an address comes as it is."""
    for element in reversed(value.rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
        yield _bare(element.strip(" \t"))


def forwarded(value: str) -> Iterator[str]:
    """The same for `Forwarded`; an element without `for` is an empty text."""
    return iter(_elements(value)[-MAX_HOPS:][::-1])


def _elements(value: str) -> list[str]:
    found, client, at = [], "", 0
    while at < len(value):
        pair = _PAIR.match(value, at)
        if pair is None:
            raise BadForwarding("the Forwarded header is malformed")
        name, value_of_pair, end = pair.groups()
        if name.lower() == "for":
            client = _bare(
                re.sub(r"\\(.)", r"\1", value_of_pair[1:-1]) if value_of_pair.startswith('"') else value_of_pair
            )
        if end != ";":
            found.append(client)
            client = ""
        at = pair.end()
    return found


def _bare(text: str) -> str:
    """An address without brackets and port."""
    if text.startswith("["):
        address, bracket, port = text[1:].partition("]")
        return address if bracket and (not port or _PORT.fullmatch(port)) else ""
    address, colon, port = text.partition(":")
    return address if colon and _PORT.fullmatch(colon + port) and "." in address else text


_READERS: Final = {X_FORWARDED_FOR: x_forwarded_for, FORWARDED: forwarded}


# --- the PROXY protocol ---

V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V1_PREFIX: Final = b"PROXY "
MAX_V1_BYTES: Final = 107
MAX_V2_BYTES: Final = 4096  # the addresses and what a proxy adds to them (TLVs)
_V1_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}")
_STREAM_4, _STREAM_6 = 0x11, 0x21
_NAMELESS: Final = frozenset({0x00, 0x31})  # unspecified, and Unix sockets


class BadProxyHeader(Exception):
    """The connection does not begin with a header that can be read; the sentence says why."""


class ProxyHeader(NamedTuple):
    size: int  # bytes
    client: tuple[str, int] | None  # None: the proxy itself


def begins_proxy_header(data: bytes | bytearray) -> bool:
    """Whether `data` is the beginning of a PROXY protocol header, and not of a request."""
    return data.startswith(V1_PREFIX) or data[:1] == V2_SIGNATURE[:1]


def read_proxy_header(data: bytes | bytearray) -> ProxyHeader | None:
    """The header at the beginning of `data`; None: more bytes are needed. Raises BadProxyHeader."""
    start = bytes(data[: len(V2_SIGNATURE)])
    if start == V2_SIGNATURE:
        return _read_v2(data)
    if start.startswith(V1_PREFIX):
        return _read_v1(bytes(data[:MAX_V1_BYTES]))
    if start and (V2_SIGNATURE.startswith(start) or V1_PREFIX.startswith(start)):
        return None
    raise BadProxyHeader(
        "a connection from one of server.trusted_proxies must begin with a PROXY protocol header, because "
        "server.proxy_protocol is on"
    )


def _read_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n")
    if end < 0:
        if len(data) < MAX_V1_BYTES:
            return None
        raise BadProxyHeader(f"the PROXY protocol header is longer than {MAX_V1_BYTES} bytes")
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(end + 2, None)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise _malformed_header()
    client = _v1_end(words[1], words[2], words[4])
    _v1_end(words[1], words[3], words[5])
    return ProxyHeader(end + 2, client)


def _v1_end(family: str, address: str, port: str) -> tuple[str, int]:
    try:
        found = ip_address(address)
    except ValueError:
        raise _malformed_header() from None
    if found.version != int(family[3]) or not _V1_PORT.fullmatch(port) or int(port) > 65535 or "%" in address:
        raise _malformed_header()
    return str(found), int(port)


def _read_v2(data: bytes | bytearray) -> ProxyHeader | None:
    if len(data) < 16:
        return None
    version_and_command, family, size = struct.unpack_from("!BBH", data, 12)
    if version_and_command not in (0x20, 0x21):
        raise _malformed_header()
    if size > MAX_V2_BYTES:
        raise BadProxyHeader(f"the PROXY protocol header is longer than {MAX_V2_BYTES} bytes")
    if len(data) < 16 + size:
        return None
    if version_and_command == 0x20 or family in _NAMELESS:  # LOCAL: of the proxy itself
        return ProxyHeader(16 + size, None)
    body = bytes(data[16 : 16 + size])
    if family == _STREAM_4 and size >= 12:
        return ProxyHeader(16 + size, (str(IPv4Address(body[:4])), int.from_bytes(body[8:10], "big")))
    if family == _STREAM_6 and size >= 36:
        return ProxyHeader(16 + size, (str(IPv6Address(body[:16])), int.from_bytes(body[32:34], "big")))
    raise _malformed_header()


def _malformed_header() -> BadProxyHeader:
    return BadProxyHeader("the PROXY protocol header is malformed")
