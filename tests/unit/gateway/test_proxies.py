"""The client behind trusted proxies, by the headers they add or by the PROXY protocol."""

import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.proxies import (
    MAX_HOPS,
    MAX_V1_BYTES,
    MAX_V2_BYTES,
    V2_SIGNATURE,
    BadForwarding,
    BadProxyHeader,
    Peer,
    Proxies,
    ProxyHeader,
    canonical,
    is_forwarded,
    read_proxy_header,
)
from support.tables import for_each

PROXIES = Proxies(["10.0.0.0/8", "2001:db8:1::/48", "127.0.0.1"])
PROXY, CLIENT, LIE = "10.0.0.1", "203.0.113.7", "198.51.100.9"


def client(peer: str = PROXY, **headers: str) -> Peer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return PROXIES.peer(peer, 7, lambda name: named.get(name, ""))


@for_each(
    [
        (CLIENT, CLIENT),
        (f"{LIE}, {CLIENT}", CLIENT),
        (f"{LIE},{CLIENT} , 10.9.9.9", CLIENT),
        (f"{CLIENT}:4711", CLIENT),
        ("2001:db8::7", "2001:db8::7"),
        ("[2001:DB8:0::7]:80, 2001:db8:1::5", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("::ffff:203.0.113.7", CLIENT),
        (f"{LIE}, unknown", PROXY),
        (f"{LIE}, unknown, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        (f"{CLIENT}:notaport", PROXY),
        ("", PROXY),
        (",", PROXY),
    ]
)
def test_the_client_is_the_right_most_address_that_is_no_trusted_proxy(value: str, address: str) -> None:
    assert client(x_forwarded_for=value).address == address


@for_each(
    [
        (f"for={CLIENT}", CLIENT),
        (f"for={LIE}, For={CLIENT};proto=https;by=10.0.0.1", CLIENT),
        (f'by=10.0.0.1;host="a, b; for=x";FOR="{CLIENT}:80" , for=10.0.0.2', CLIENT),
        ('for="[2001:db8::7]:_port"', "2001:db8::7"),
        ("for=[2001:db8::7]:80", "2001:db8::7"),
        (f'for="{CLIENT[:4]}\\{CLIENT[4:]}"', CLIENT),
        (f"for={LIE}, for=_hidden, for=10.0.0.2", "10.0.0.2"),
        (f"for={LIE}, for=unknown", PROXY),
        (f"for={LIE}, proto=https", PROXY),
    ]
)
def test_forwarded_names_the_client_as_well(value: str, address: str) -> None:
    assert client(forwarded=value).address == address


@for_each(['for="', f'for="a, for={CLIENT}', 'for="a"b', "for", "=", f"for={CLIENT} x", ";"])
def test_a_malformed_header_of_a_trusted_proxy_is_refused(value: str) -> None:
    with pytest.raises(BadForwarding, match="malformed"):
        client(forwarded=value)


def test_a_header_that_the_proxy_passes_on_unread_cannot_replace_the_one_it_sets() -> None:
    assert client(x_forwarded_for=CLIENT, forwarded=f"for={CLIENT}").address == CLIENT
    for other in (f"for={LIE}", "for=unknown"):
        with pytest.raises(BadForwarding, match="X-Forwarded-For and Forwarded"):
            client(x_forwarded_for=CLIENT, forwarded=other)


@for_each([LIE, "2001:db8:2::1", "", "nonsense"])
def test_headers_of_untrusted_peers_are_ignored(peer: str) -> None:
    assert client(peer, x_forwarded_for=CLIENT, forwarded='for="') == Peer(peer, 7)


def test_a_trusted_proxy_may_come_as_ipv4_within_ipv6() -> None:
    found = client("::ffff:10.0.0.1", x_forwarded_for=CLIENT)
    assert (found.address, found.proxy) == (CLIENT, "::ffff:10.0.0.1")


def test_headers_are_ignored_without_trusted_proxies() -> None:
    assert Proxies().peer(PROXY, 7, lambda name: pytest.fail(name)) == Peer(PROXY, 7)


addresses = st.ip_addresses().map(str)
trusted = st.ip_addresses(network="10.0.0.0/8").map(str)
untrusted = addresses.filter(lambda text: not PROXIES.trusts(text))
whatever = st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=60)


@given(whatever, untrusted, st.lists(trusted, max_size=MAX_HOPS - 2))
def test_header_entry_of_the_trusted_proxy_wins_over_those_of_the_client(
    forged: str, client_address: str, hops: list[str]
) -> None:
    header = ", ".join([forged, client_address, *hops])
    assert client(x_forwarded_for=header) == Peer(canonical(client_address), proxy=PROXY)


@given(whatever, untrusted, st.lists(trusted, max_size=MAX_HOPS - 2))
def test_forged_forwarded_header_is_refused_or_has_no_effect(forged: str, client_address: str, hops: list[str]) -> None:
    header = ", ".join([forged, *(f'for="[{hop}]"' for hop in [client_address, *hops])])
    with suppress(BadForwarding):
        assert client(forwarded=header).address == canonical(client_address)


@given(st.lists(untrusted, min_size=1), st.lists(trusted, max_size=MAX_HOPS - 1))
def test_forwarded_is_read_from_the_right(before: list[str], hops: list[str]) -> None:
    header = ", ".join(f'for="[{address}]";proto=https' for address in [*before, *hops])
    assert client(forwarded=header) == Peer(canonical(before[-1]), proxy=PROXY)


@given(whatever, whatever)
def test_any_text_gives_an_address_or_a_refusal(one: str, other: str) -> None:
    try:
        found = client(x_forwarded_for=one, forwarded=other)
    except BadForwarding:
        return
    assert str(ip_address(found.address)) == found.address


def test_long_list_of_proxies_is_not_read_to_its_end() -> None:
    assert client(x_forwarded_for=", ".join([CLIENT] + ["10.0.0.2"] * MAX_HOPS)).address == "10.0.0.2"


@for_each(["Forwarded", "X-Forwarded-For", "x-forwarded-anything", "X-Real-IP", "VIA"])
def test_headers_that_proxies_add_are_known_in_any_case(name: str) -> None:
    assert is_forwarded(["Host", name])
    assert not is_forwarded(["Host", "Origin", "User-Agent", "X-Forward"])


FOUR = b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 5010\r\n"
SIX = b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 5010\r\n"


def v2(family: int, body: bytes, command: int = 0x21) -> bytes:
    return V2_SIGNATURE + struct.pack("!BBH", command, family, len(body)) + body


FOUR_V2 = v2(0x11, bytes([203, 0, 113, 7, 192, 0, 2, 1]) + struct.pack("!HH", 4711, 5010))
SIX_V2 = v2(0x21, IPv6Address("2001:db8::7").packed + bytes(16) + struct.pack("!HH", 4711, 5010) + b"\x04\x00\x01x")
WHOLE = [
    (FOUR, ("203.0.113.7", 4711)),
    (SIX, ("2001:db8::7", 4711)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    (FOUR_V2, ("203.0.113.7", 4711)),
    (SIX_V2, ("2001:db8::7", 4711)),
    (v2(0x00, b"", 0x20), None),
    (v2(0x11, FOUR_V2[16:], 0x20), None),
    (v2(0x00, b"anything"), None),
    (v2(0x31, bytes(216)), None),
]


@for_each(WHOLE)
def test_a_header_names_the_client_and_ends_where_the_request_begins(
    data: bytes, client: tuple[str, int] | None
) -> None:
    assert read_proxy_header(data + b"GET / HTTP/1.1\r\n") == ProxyHeader(len(data), client)


@for_each([data for data, _ in WHOLE])
def test_a_part_of_a_header_asks_for_the_rest(data: bytes) -> None:
    assert [size for size in range(1, len(data)) if read_proxy_header(data[:size]) is not None] == []


@for_each(
    [
        b"PROXY \r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 4711\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 5010 \r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 65536 5010\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 +1 5010\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n",
        b"PROXY TCP6 203.0.113.7 192.0.2.1 1 2\r\n",
        b"PROXY TCP6 fe80::1%eth0 2001:db8::1 1 2\r\n",
        b"PROXY UDP4 203.0.113.7 192.0.2.1 1 2\r\n",
        b"PROXY TCP4 name.example 192.0.2.1 1 2\r\n",
        v2(0x11, bytes(11)),
        v2(0x21, bytes(35)),
        v2(0x12, bytes(12)),
        v2(0x11, bytes(12), 0x22),
        v2(0x11, bytes(12), 0x11),
    ]
)
def test_a_malformed_header_is_refused(data: bytes) -> None:
    with pytest.raises(BadProxyHeader, match="malformed"):
        read_proxy_header(data)


@pytest.mark.parametrize("data", [b"PROXY " + b"x" * MAX_V1_BYTES, v2(0x11, bytes(MAX_V2_BYTES + 1))[:16]])
def test_a_header_that_is_too_long_is_refused_before_it_has_arrived(data: bytes) -> None:
    with pytest.raises(BadProxyHeader, match="longer than"):
        read_proxy_header(data)


@for_each([b"GET / HTTP/1.1\r\n", b"P0", b"\r\n\r\nGET", b"\x16\x03\x01", b"proxy "])
def test_connection_without_a_proxy_header_gets_the_setting_that_requires_it(data: bytes) -> None:
    with pytest.raises(BadProxyHeader, match=r"server\.proxy_protocol"):
        read_proxy_header(data)


@given(st.ip_addresses(), st.integers(0, 65535), st.binary(max_size=40))
def test_every_address_is_read_from_both_versions(address: IPv4Address | IPv6Address, port: int, rest: bytes) -> None:
    kind, family = ("TCP4", 0x11) if address.version == 4 else ("TCP6", 0x21)
    text = f"PROXY {kind} {address} {address} {port} 1\r\n".encode()
    binary = v2(family, address.packed * 2 + struct.pack("!HH", port, 1))
    if len(text) <= MAX_V1_BYTES and getattr(address, "scope_id", None) is None:
        assert read_proxy_header(text + rest) == ProxyHeader(len(text), (str(address), port))
    assert read_proxy_header(binary + rest) == ProxyHeader(len(binary), (str(address), port))


@given(st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", V2_SIGNATURE, V2_SIGNATURE + b"\x21\x11"]))
def test_any_bytes_are_a_header_a_part_of_one_or_refused(noise: bytes, before: bytes) -> None:
    try:
        found = read_proxy_header(before + noise)
    except BadProxyHeader:
        return
    assert found is None or 0 < found.size <= len(before + noise)
