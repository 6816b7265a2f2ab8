"""The PROXY protocol: the header is read whole or not at all, and never further than it goes."""

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.proxy_protocol import MAX_V1_BYTES, MAX_V2_BYTES, SIGNATURE, BadProxyHeader, Header, read

FOUR = b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 5010\r\n"
SIX = b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 5010\r\n"


def v2(family: int, body: bytes, command: int = 0x21) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(body)) + body


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


@pytest.mark.parametrize(("data", "client"), WHOLE)
def test_a_header_names_the_client_and_ends_where_the_request_begins(
    data: bytes, client: tuple[str, int] | None
) -> None:
    assert read(data + b"GET / HTTP/1.1\r\n") == Header(len(data), client)


@pytest.mark.parametrize("data", [data for data, _ in WHOLE])
def test_a_part_of_a_header_asks_for_the_rest(data: bytes) -> None:
    assert [size for size in range(1, len(data)) if read(data[:size]) is not None] == []


@pytest.mark.parametrize(
    "data",
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
    ],
)
def test_a_malformed_header_is_refused(data: bytes) -> None:
    with pytest.raises(BadProxyHeader, match="malformed"):
        read(data)


@pytest.mark.parametrize("data", [b"PROXY " + b"x" * MAX_V1_BYTES, v2(0x11, bytes(MAX_V2_BYTES + 1))[:16]])
def test_a_header_that_is_too_long_is_refused_before_it_has_arrived(data: bytes) -> None:
    with pytest.raises(BadProxyHeader, match="longer than"):
        read(data)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"P0", b"\r\n\r\nGET", b"\x16\x03\x01", b"proxy "])
def test_a_connection_without_a_header_is_told_which_setting_asks_for_one(data: bytes) -> None:
    with pytest.raises(BadProxyHeader, match=r"server\.proxy_protocol"):
        read(data)


@given(st.ip_addresses(), st.integers(0, 65535), st.binary(max_size=40))
def test_every_address_is_read_from_both_versions(address: IPv4Address | IPv6Address, port: int, rest: bytes) -> None:
    kind, family = ("TCP4", 0x11) if address.version == 4 else ("TCP6", 0x21)
    text = f"PROXY {kind} {address} {address} {port} 1\r\n".encode()
    binary = v2(family, address.packed * 2 + struct.pack("!HH", port, 1))
    if len(text) <= MAX_V1_BYTES and getattr(address, "scope_id", None) is None:
        assert read(text + rest) == Header(len(text), (str(address), port))
    assert read(binary + rest) == Header(len(binary), (str(address), port))


@given(st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", SIGNATURE, SIGNATURE + b"\x21\x11"]))
def test_any_bytes_are_a_header_a_part_of_one_or_refused(noise: bytes, before: bytes) -> None:
    try:
        found = read(before + noise)
    except BadProxyHeader:
        return
    assert found is None or 0 < found.size <= len(before + noise)
