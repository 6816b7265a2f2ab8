"""HTTP on the port that everybody shares: its places are few; nobody can keep them all, or have anything inflated."""

import asyncio
import gzip

from gateway_peers import connected, serving

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_one_that_only_stays_gives_its_place_to_one_that_asks() -> None:
    async with serving(max_http_connections=3) as listener, asyncio.timeout(20):
        async with connected(listener) as first, connected(listener) as second, connected(listener) as third:
            for idle in (first, second, third):
                await idle.send(GET)
                assert (await idle.answer()).status == 200
            async with connected(listener) as newcomer:
                await newcomer.send(GET)
                assert (await newcomer.answer()).status == 200
            assert await first.ended()
            for still in (second, third):
                await still.send(GET)
                assert (await still.answer()).status == 200


async def test_one_that_is_being_answered_keeps_its_place() -> None:
    async with serving(max_http_connections=1) as listener:
        async with connected(listener) as busy, connected(listener) as newcomer:
            await busy.send(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
            await newcomer.send(GET)
            refused = await newcomer.answer()
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")
            await busy.send(b"cde")
            assert (await busy.answer()).body == b'{"length": 5}'


async def test_a_compressed_body_is_not_inflated() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    head = f"POST /length HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    async with serving() as listener, connected(listener) as client:
        await client.send(head.encode() + bomb)
        assert (await client.answer()).body == b'{"length": %d}' % len(bomb)


async def test_what_says_it_is_compressed_and_is_not_harms_nobody() -> None:
    async with serving() as listener, connected(listener) as client:
        await client.send(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nno")
        assert (await client.answer()).body == b'{"length": 2}'
