"""What is read of somebody before anything else: a proxy's words, the head of a request, its query, a token; and
settings."""

import base64
import time
from collections.abc import Callable
from ipaddress import ip_address
from random import Random
from typing import Any, Final
from urllib.parse import quote

import jwt
from aiohttp.test_utils import make_mocked_request

from dragoman.config import ConfigError, load
from dragoman.config.catalog import SETTINGS, variable_of
from dragoman.gateway import chat_user_api, handshake, http_requests, operator_api, proxies
from dragoman.gateway.authentication import Authenticator, Unauthorized
from dragoman.gateway.http_requests import BadRequest
from dragoman.gateway.proxies import BadForwarding, Proxies
from dragoman.services.chat.accounts import Denied
from dragoman.services.chat.credentials import BadToken, Tokens
from fuzz.mutate import MARK, ODD, BytesMutator, Case, JsonMutator, bytes_mutated, compact
from fuzz.refusal import is_good_refusal
from fuzz.search import Target

# ---------------------------------------------------------------- requests and tokens

HEADS: Final = [
    b"GET /ws/session?token=%b HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Origin: http://x\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Authorization: Bearer %b\r\nSec-WebSocket-Extensions: permessage-deflate" % (MARK.encode(), MARK.encode()),
    b"POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nUpgrade: websocket",
]


def request_head(case: Case) -> bool:
    handshake.wants_websocket(case.data)
    request = handshake.parse(case.data, ("127.0.0.1", 1))
    outcome = request if isinstance(request, handshake.Reject) else handshake.accept(request)
    if isinstance(outcome, handshake.Reject):
        is_good_refusal(outcome.body, "")
        head, _, told = outcome.to_bytes().partition(handshake.END_OF_HEAD)
        assert f"Content-Length: {len(told)}".encode() in head
        return False
    assert outcome.startswith(b"HTTP/1.1 101 ")
    assert b"xtensions" not in outcome
    return True


PROXY_HEADERS: Final = [
    b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 5010\r\nGET /",
    b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 5010\r\n",
    b"PROXY UNKNOWN\r\n",
    proxies.V2_SIGNATURE + b"\x21\x11\x00\x0c" + bytes(range(12)) + b"GET /",
    proxies.V2_SIGNATURE + b"\x21\x21\x00\x28" + bytes(range(40)),
    proxies.V2_SIGNATURE + b"\x20\x00\x00\x00",
]


def proxy_header(case: Case) -> bool:
    """Whatever follows it does not change how it is read, and less of it is not yet read."""
    try:
        found = proxies.read_proxy_header(case.data)
    except proxies.BadProxyHeader as error:
        is_good_refusal(str(error), "")
        return False
    if found is None:
        assert len(case.data) < 16 + proxies.MAX_V2_BYTES
        return False
    assert 0 < found.size <= len(case.data)
    assert proxies.read_proxy_header(case.data[: found.size] + b"\xff") == found
    assert proxies.read_proxy_header(case.data[: found.size - 1]) is None
    if found.client is not None:
        assert str(ip_address(found.client[0])) == found.client[0]
        assert 0 <= found.client[1] <= 65535
    return True


_TRUST: Final = Proxies(["10.0.0.0/8", "2001:db8:1::/48"])
FORWARDED: Final = [
    b"198.51.100.9, 203.0.113.7:80, [2001:db8::7]:1, 10.0.0.2\n",
    b'\nfor=198.51.100.9, for="[2001:db8::7]:80";proto=https;by=10.0.0.1, for=10.0.0.2;host="a\\"b"',
    b"203.0.113.7\nfor=203.0.113.7",
]


def forwarded(case: Case) -> bool:
    """Two headers, a line each."""
    one, _, other = case.data.decode("latin-1").partition("\n")
    headers = {"x-forwarded-for": one, "forwarded": other}
    try:
        found = _TRUST.peer("10.0.0.1", 7, lambda name: headers[name])
    except BadForwarding as error:
        is_good_refusal(str(error), "")
        return False
    assert str(ip_address(found.address)) == found.address
    assert _TRUST.peer("192.0.2.1", 7, lambda name: headers[name]).address == "192.0.2.1"
    return bool(found.proxy)


_NUMBERS: Final = ("count", "limit", "lastSeq", "since", "before", "after", "peerUserId")


MOST_REFUSED: Final = 3 * len(_NUMBERS)  # of a query that says nothing, those that must have a value


def query(rng: Random) -> Case:
    values = [
        rng.choice((*ODD, "7", "100", "1001", "0", "-0", " 7", "1_0", "7\n", "٧", "²", "1|j", "1-1")) for _ in range(3)
    ]
    if rng.random() < 0.3:
        values[0] = bytes_mutated(rng, values[0][:200].encode()).decode(errors="replace")
    return Case("&".join(f"{rng.choice(_NUMBERS)}={quote(value[:4900])}" for value in values).encode())


def queries(case: Case) -> bool:
    """The parameters of what is asked over HTTP, as each handler reads them."""
    asked = make_mocked_request("GET", f"/x?{case.data.decode()}")
    refused = 0
    for name in _NUMBERS:
        text = asked.query.get(name, "")
        readers: list[Callable[[], Any]] = [
            lambda: http_requests.count_of({"count": text}, max_count=operator_api.MAX_LETTERS),  # noqa: B023
            lambda: operator_api._letter_id(text),  # noqa: B023
            lambda: http_requests.count_of({"count": text}),  # noqa: B023
            lambda: http_requests.text_of(asked.query, name),  # noqa: B023
            lambda: chat_user_api._number(asked, name, 0),  # noqa: B023
        ]
        for read in readers:
            try:
                read()
            except (BadRequest, Denied) as error:
                refused += 1
                is_good_refusal(
                    error.message if isinstance(error, Denied) else str(error), "", 600
                )  # the start is quoted
    return refused < MOST_REFUSED


SECRET: Final = "a secret that is long enough for HS256, and only for these tests"
_TOKENS: Final = Tokens([SECRET], "mini-im", 600, 600)
_DOOR: Final = Authenticator((SECRET,), "dragoman", chat=_TOKENS)
_NOW: Final = int(time.time())
_CLAIMS: Final = [
    compact({"iss": "mini-im", "iat": _NOW, "exp": _NOW + 86_400, "uid": 7, "typ": "access", "sv": 0, "jti": "x"}),
    compact({"iss": "dragoman", "exp": _NOW + 86_400, "typ": "client", "sub": "ann", "tenant": "default", "nbf": 1}),
    compact({"iss": "dragoman", "exp": _NOW + 86_400, "typ": "node", "sub": "n-1"}),
]
_claims = JsonMutator(_CLAIMS, kind="")
_HEADERS: Final = [
    b'{"alg":"HS256","typ":"JWT"}',
    b'{"alg":"none"}',
    b'{"alg":"HS256","kid":7,"b64":false,"crit":["x"]}',
]
_headers = JsonMutator(_HEADERS, kind="")


def token(rng: Random) -> Case:
    """Signed by us half of the time: what else is in a token is read only then."""
    head = _HEADERS[0] if rng.random() < 0.7 else _headers(rng).data
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (head, _claims(rng).data))
    key = SECRET if rng.random() < 0.8 else "another"
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(signed, key.encode())
    whole = signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    return Case(whole if rng.random() < 0.8 else bytes_mutated(rng, whole))


def tokens(case: Case) -> bool:
    text = case.data.decode(errors="surrogateescape")
    taken = False
    for read in (_TOKENS.read_access, _TOKENS.read_refresh):
        try:
            access = read(text, time.time())
            assert 0 < access.uid < 2**63
            taken = True
        except BadToken as error:
            is_good_refusal(str(error), "")
    for kind in ("client", "node", "operator"):
        try:
            principal = _DOOR.identify(kind, text)
            assert not principal.anonymous
            taken = True
        except Unauthorized as error:
            is_good_refusal(str(error), "")
    return taken


# ---------------------------------------------------------------- settings


def setting(rng: Random) -> Case:
    key = rng.choice(sorted(SETTINGS))
    value = rng.choice(
        (*ODD, "7", "-7", "0.5", "nan", "inf", "1e999", "true", "[", "[1,2]", '["a"]', "a,b", "{}", "1_000")
    )
    if rng.random() < 0.2:
        value = bytes_mutated(rng, value[:100].encode()).decode(errors="replace")
    return Case(f"{key}={value}".encode())


def settings(case: Case) -> bool:
    key, _, value = case.data.decode().partition("=")
    taken = False
    for env, flags in (({variable_of(key): value}, {}), ({}, {key: value})):
        try:
            load(None, env, flags)
            taken = True
        except ConfigError as error:
            for sentence in error.sentences:
                is_good_refusal(sentence, "", 200_000)  # it may quote: the value is the operator's own
    return taken


TARGETS: Final = (
    Target("request_head", BytesMutator(HEADS), request_head),
    Target("proxy_header", BytesMutator(PROXY_HEADERS), proxy_header),
    Target("forwarded", BytesMutator(FORWARDED), forwarded),
    Target("query", query, queries),
    Target("token", token, tokens),
    Target("setting", setting, settings),
)
