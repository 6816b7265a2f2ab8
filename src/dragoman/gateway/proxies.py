"""The address of a client behind trusted proxies, from `X-Forwarded-For` and `Forwarded` (RFC 7239). Pure.

Each proxy appends the address that it sees. Anybody can write the left part of the list, so it is read from the right:
the first address that is not a trusted proxy is the client. A list that is not from a trusted proxy is not read at all.

A proxy that sets one of the two headers usually passes the other on as the client wrote it. So where both are there,
both must name the same client.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final

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
    """Who is at the other end. `proxy`: the trusted proxy whose header named the address."""

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
        name, said, end = pair.groups()
        if name.lower() == "for":
            client = _bare(re.sub(r"\\(.)", r"\1", said[1:-1]) if said.startswith('"') else said)
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
