from http import HTTPStatus
from random import Random

import pytest

from dragoman.client import SessionError, Unreachable
from dragoman.client.backoff import Backoff
from dragoman.client.dialler import Dialler
from dragoman.client.link import Closed
from dragoman.embedded.engine import free_port
from dragoman.protocol.codes import Close
from unit.client.fake_server import serving


def dialler(*urls: str, patience_s: float = 5.0) -> Dialler:
    backoff = Backoff(0.001, 0.002, rng=Random(1))
    return Dialler(urls, lambda _: None, backoff, connect_s=5, patience_s=patience_s)


def nowhere() -> str:
    return f"ws://127.0.0.1:{free_port()}/ws/session"


async def dial_once(dials: Dialler) -> None:
    await (await dials.dial()).close()


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with serving() as server:
        await dial_once(dialler(nowhere(), server.url))
        assert len(server.connections) == 1


async def test_the_first_time_every_address_is_tried_once() -> None:
    first, second = nowhere(), nowhere()
    with pytest.raises(Unreachable, match=f"no server answers at {second}"):
        await dial_once(dialler(first, second))


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (HTTPStatus.NOT_FOUND, Unreachable, "HTTP 404, not as a server of sessions"),
        (HTTPStatus.SERVICE_UNAVAILABLE, Unreachable, "HTTP 503"),
        (HTTPStatus.UNAUTHORIZED, SessionError, "does not let us in"),
        (HTTPStatus.FORBIDDEN, SessionError, "does not let us in"),
    ],
)
async def test_a_server_that_says_no_is_quoted(status: HTTPStatus, error: type[SessionError], words: str) -> None:
    async with serving() as server:
        server.refuses_with = status
        with pytest.raises(error, match=words):
            await dial_once(dialler(server.url))


@pytest.mark.parametrize("url", ["", "nonsense", "http//x", "ftp://127.0.0.1/"])
async def test_what_is_no_address_is_told_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not the address of a server"):
        await dial_once(dialler(url))


def test_a_session_needs_an_address() -> None:
    with pytest.raises(ValueError, match="at least one address"):
        dialler()


async def lose(dials: Dialler, code: int = 1006, reason: str = "") -> None:
    await dial_once(dials)
    dials.opened()
    dials.lost(Closed(code, reason))


async def test_a_lost_connection_is_tried_again_until_patience_is_over() -> None:
    async with serving() as server:
        dials = dialler(server.url, patience_s=0.05)
        await lose(dials)
        server.refuses_with = HTTPStatus.SERVICE_UNAVAILABLE
        with pytest.raises(Unreachable, match="HTTP 503"):
            await dials.dial()


async def test_a_lost_connection_goes_to_the_next_address() -> None:
    async with serving() as one, serving() as other:
        dials = dialler(one.url, other.url)
        await lose(dials)
        await dial_once(dials)
        assert (len(one.connections), len(other.connections)) == (1, 1)


async def test_a_server_that_is_back_in_time_is_found() -> None:
    async with serving() as server:
        dials = dialler(server.url, nowhere(), nowhere(), nowhere())
        await lose(dials)
        await dial_once(dials)
        assert len(server.connections) == 2


@pytest.mark.parametrize(("code", "name"), [(Close.UNAUTHORIZED, "UNAUTHORIZED"), (4999, "4999")])
async def test_a_code_that_says_do_not_come_back_ends_it(code: int, name: str) -> None:
    async with serving() as server:
        with pytest.raises(SessionError, match="never again") as error:
            await lose(dialler(server.url), code, "never again")
        assert error.value.code == name


@pytest.mark.parametrize("code", [1000, 1006, 1011, Close.SHUTDOWN, Close.SLOW_CONSUMER, 4499])
async def test_every_other_code_says_come_back(code: int) -> None:
    async with serving() as server:
        dials = dialler(server.url)
        await lose(dials, code)
        await dial_once(dials)


async def test_a_token_in_an_address_is_not_told() -> None:
    with pytest.raises(Unreachable) as error:
        await dial_once(dialler(nowhere().replace("//", "//me:s3cret@") + "?token=s3cret"))
    assert "s3cret" not in str(error.value)
