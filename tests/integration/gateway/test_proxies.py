"""Clients behind trusted proxies, over real sockets: their own addresses count, and nobody can borrow another."""

import asyncio
import json
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from dragoman.gateway import Connection, Listener
from dragoman.gateway.http_requests import peer_of
from dragoman.gateway.proxies import V2_SIGNATURE, Proxies
from support.gateway import Answer, Echo, RawClient, connected, serving, until, upgrade
from support.waiting import ON_BOTH_LOOPS

pytestmark = ON_BOTH_LOOPS

PROXY, ELSEWHERE = "127.0.0.3", "127.0.0.1"  # two addresses of this machine
ANN, BOB = "203.0.113.7", "198.51.100.9"
TRUST = Proxies([PROXY])
PROTOCOL = Proxies([PROXY], protocol=True)


def v1(address: str) -> bytes:
    return f"PROXY TCP4 {address} 192.0.2.1 4711 5010\r\n".encode()


def v2(address: str) -> bytes:
    body = bytes(map(int, address.split("."))) + bytes(4) + struct.pack("!HH", 4711, 5010)
    return V2_SIGNATURE + struct.pack("!BBH", 0x21, 0x11, len(body)) + body


LOCAL = V2_SIGNATURE + struct.pack("!BBH", 0x20, 0, 0)


def get(path: str = "/whoami", **headers: str) -> bytes:
    fields = {"Host": "x", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return "\r\n".join([f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items()), "", ""]).encode()


class Site:
    """Tells each request its address; `/wait` does not answer before `go`."""

    def __init__(self) -> None:
        self.go, self.waiting, self.sockets = asyncio.Event(), 0, list[Connection]()

    def app(self) -> web.Application:
        async def whoami(request: web.Request) -> web.Response:
            return web.Response(text=peer_of(request).address)

        async def wait(request: web.Request) -> web.Response:
            self.waiting += 1
            await self.go.wait()
            return web.Response(text="done")

        app = web.Application()
        app.add_routes([web.get("/whoami", whoami), web.get("/wait", wait)])
        return app

    def endpoint(self) -> Echo:
        return Echo(conns=self.sockets)


async def told(client: RawClient, request: bytes) -> Answer:
    await client.send(request)
    return await client.answer()


async def asked(listener: Listener, request: bytes, come_from: str = PROXY) -> Answer:
    async with connected(listener, come_from=come_from) as client:
        return await told(client, request)


def reason(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"])


async def test_requests_of_one_kept_alive_connection_may_have_different_clients() -> None:
    site = Site()
    async with serving(app=site.app(), proxies=TRUST) as listener:
        async with connected(listener, come_from=PROXY) as proxy:
            for address in (ANN, BOB, ANN):
                assert (await told(proxy, get(X_Forwarded_For=f"1.1.1.1, {address}"))).body.decode() == address
            assert (await told(proxy, get(Forwarded=f'for="{BOB}:80"'))).body.decode() == BOB
            assert (await told(proxy, get())).body.decode() == PROXY
            refused = await told(proxy, get(Forwarded=f"for={BOB}", X_Forwarded_For=ANN))
            assert (refused.status, "X-Forwarded-For" in reason(refused)) == (400, True)
        assert (await asked(listener, get(X_Forwarded_For=ANN), ELSEWHERE)).body.decode() == ELSEWHERE


async def test_headers_on_lines_of_their_own_are_one_list() -> None:
    async with serving(app=Site().app(), proxies=TRUST) as listener:
        lines = get(X_Forwarded_For=BOB).replace(b"\r\n\r\n", f"\r\nX-Forwarded-For: {ANN}\r\n\r\n".encode())
        assert (await asked(listener, lines)).body.decode() == ANN


async def test_a_websocket_has_the_address_of_its_client_also_behind_other_requests() -> None:
    site = Site()
    async with serving({"/ws": site.endpoint}, app=site.app(), proxies=TRUST) as listener:
        async with connected(listener, come_from=PROXY) as first, connected(listener, come_from=PROXY) as second:
            assert (await told(first, upgrade("/ws", X_Forwarded_For=ANN))).status == 101
            assert (await told(second, get(X_Forwarded_For=ANN))).status == 200
            assert (await told(second, upgrade("/ws", X_Forwarded_For=BOB))).status == 101
            assert [conn.peer[0] for conn in site.sockets] == [ANN, BOB]
            assert [listener.registry.addresses.of(address) for address in (ANN, BOB, PROXY)] == [1, 1, 0]
        bad = await asked(listener, upgrade("/ws", Forwarded='for="'))
        assert (bad.status, "malformed" in reason(bad)) == (400, True)
        async with connected(listener) as direct:
            assert (await told(direct, upgrade("/ws", X_Forwarded_For=ANN))).status == 101
            assert site.sockets[-1].peer[0] == ELSEWHERE


async def test_a_client_cannot_use_up_the_sockets_of_others_behind_its_proxy() -> None:
    async with serving(max_per_address=1, proxies=TRUST) as listener, AsyncExitStack() as stack:
        for address, status in ((ANN, 101), (ANN, 429), (BOB, 101)):
            client = await stack.enter_async_context(connected(listener, come_from=PROXY))
            assert (await told(client, upgrade(X_Forwarded_For=address))).status == status


async def test_client_cannot_use_up_the_http_connections_of_others_behind_its_proxy() -> None:
    site = Site()
    async with (
        serving(app=site.app(), proxies=TRUST, max_http_per_address=1) as listener,
        connected(listener, come_from=PROXY) as one,
        connected(listener, come_from=PROXY) as other,
    ):
        await one.send(get("/wait", X_Forwarded_For=ANN))
        await until(lambda: site.waiting == 1)
        refused = await told(other, get(X_Forwarded_For=ANN))
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert listener.counters.refused == {503: 1}
        assert (await told(other, get(X_Forwarded_For=BOB))).status == 200
        site.go.set()
        assert (await one.answer()).status == 200
        assert (await told(other, get(X_Forwarded_For=ANN))).status == 200


@pytest.mark.parametrize("header", [v1, v2])
async def test_the_proxy_protocol_names_the_client_of_a_connection(header: Callable[[str], bytes]) -> None:
    site = Site()
    async with serving({"/ws": site.endpoint}, app=site.app(), proxies=PROTOCOL) as listener:
        async with connected(listener, come_from=PROXY) as proxy:
            assert (await told(proxy, header(ANN) + get())).body.decode() == ANN
            assert (await told(proxy, get(X_Forwarded_For=BOB))).body.decode() == ANN  # Ann is no trusted proxy
            assert (await told(proxy, upgrade("/ws"))).status == 101
            assert site.sockets[0].peer == (ANN, 4711)
        async with connected(listener, come_from=PROXY) as proxy:
            for byte in header(BOB) + upgrade("/ws"):
                await proxy.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await proxy.answer()).status == 101
            assert site.sockets[1].peer == (BOB, 4711)
        assert (await asked(listener, header(PROXY) + get(X_Forwarded_For=ANN))).body.decode() == ANN
        assert (await asked(listener, get(), ELSEWHERE)).body.decode() == ELSEWHERE


async def test_a_health_check_of_the_proxy_itself_has_the_address_of_the_proxy() -> None:
    async with serving(app=Site().app(), proxies=PROTOCOL) as listener:
        assert (await asked(listener, LOCAL + get())).body.decode() == PROXY
        assert (await asked(listener, b"PROXY UNKNOWN\r\n" + get())).body.decode() == PROXY


@pytest.mark.parametrize("request_head", [get(), upgrade()], ids=["http", "websocket"])
async def test_a_connection_of_a_trusted_proxy_without_its_header_is_refused(request_head: bytes) -> None:
    async with serving(app=Site().app(), proxies=PROTOCOL) as listener:
        for bad in (request_head, b"PROXY TCP4 x y 1 2\r\n" + request_head, v2(ANN)[:14] + b"\xff\xff"):
            answer = await asked(listener, bad)
            assert (answer.status, "PROXY protocol header" in reason(answer)) == (400, True)


@pytest.mark.parametrize("proxies", [PROTOCOL, TRUST, Proxies()], ids=["elsewhere", "off", "nobody trusted"])
@pytest.mark.parametrize("header", [v1, v2])
async def test_proxy_header_of_an_untrusted_peer_is_refused(proxies: Proxies, header: Callable[[str], bytes]) -> None:
    async with serving(app=Site().app(), proxies=proxies) as listener:
        for request_head in (get(), upgrade()):
            answer = await asked(listener, header(ANN) + request_head, ELSEWHERE)
            assert (answer.status, "server.trusted_proxies" in reason(answer)) == (400, True)


async def test_proxy_that_sends_half_of_its_header_times_out() -> None:
    async with serving(proxies=PROTOCOL, head_timeout_s=0.2) as listener:
        assert (await asked(listener, v2(ANN)[:20])).status == 408
        assert (await asked(listener, v2(ANN) + b"GET")).status == 408
