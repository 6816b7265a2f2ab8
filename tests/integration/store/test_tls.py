"""Redis behind TLS: who is trusted, and with which certificate we are let in.

The servers that come with us speak no TLS, so a proxy of the test's own does, in front of a real one.
"""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from dragoman.config.schema import Redis as RedisSettings
from dragoman.instance.redis_check import CannotStart, connected, credentials_of
from dragoman.store.errors import StoreError
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated, SingleRedis
from support.cluster import config
from support.redis_servers import RedisAt
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single"], indirect=True)

TIMEOUT_S = 60.0


class Authority:
    """Signs certificates for 127.0.0.1, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl")
        self.folder = folder
        folder.mkdir()
        self.certificate = folder / "ca.pem"
        self._run("req", "-x509", *self._new_key("ca"), "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority")

    def sign(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1")
        self._run("req", *self._new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        self._run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signer)
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def _new_key(self, name: str) -> tuple[str, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        return (*curve, "-nodes", "-keyout", f"{name}.key")

    def _run(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "other")


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def behind_tls(redis_at: RedisAt, ours: Authority) -> AsyncIterator[str]:
    """The URL of a proxy that asks for a certificate of ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ours.sign("server"))
    context.load_verify_locations(ours.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    host, port = redis_at.url.removeprefix("redis://").split("/")[0].split(":")

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        behind_reader, behind_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pass_on(reader, behind_writer), pass_on(behind_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*(task for task in serving if task is not None))


def files(authority: Authority, client: tuple[Path, Path] | None = None) -> dict[str, str]:
    told = {"tls_ca_file": str(authority.certificate)}
    if client is not None:
        told |= {"tls_cert_file": str(client[0]), "tls_key_file": str(client[1])}
    return told


async def test_an_instance_reaches_redis_with_its_authority_and_its_certificate(
    redis_at: RedisAt, prefix: str, keys: Keys, ours: Authority
) -> None:
    async with behind_tls(redis_at, ours) as url:
        flags = {f"scheduler__phase2__redis__{name}": value for name, value in files(ours, ours.sign("us")).items()}
        settings = config(redis_at, prefix, **{**flags, "scheduler__phase2__redis__url": url})
        redis = await connected(settings, None)
        blocking = Dedicated(redis, keys.audit, "blocking")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await redis.call("SET", keys.node_epoch("n"), "through TLS", "PX", 60_000)
                assert await redis.call("GET", keys.node_epoch("n")) == b"through TLS"
                assert await blocking.call("GET", keys.node_epoch("n"), patience_s=TIMEOUT_S) == b"through TLS"
        finally:
            await blocking.close()
            await redis.close()


async def test_a_server_of_another_authority_is_not_trusted(
    redis_at: RedisAt, ours: Authority, other: Authority
) -> None:
    async with behind_tls(redis_at, ours) as url:
        for told in (files(other, ours.sign("us")), {}):
            redis = SingleRedis(url, credentials=credentials_of(msgspec.convert(told, RedisSettings)))
            try:
                await wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in redis.last_error, TIMEOUT_S)  # noqa: B023
            finally:
                await redis.close()


async def test_without_a_certificate_that_the_server_asks_for_nothing_is_answered(
    redis_at: RedisAt, ours: Authority, other: Authority
) -> None:
    async with behind_tls(redis_at, ours) as url:
        for client in (None, other.sign("stranger")):
            redis = SingleRedis(url, credentials=credentials_of(msgspec.convert(files(ours, client), RedisSettings)))
            try:
                await wait_until(lambda: bool(redis.last_error), TIMEOUT_S)  # noqa: B023
                with pytest.raises(StoreError):
                    await redis.call("GET", "x")
            finally:
                await redis.close()


@pytest.mark.parametrize("wrong", ["tls_ca_file", "tls_cert_file", "tls_key_file"])
def test_files_that_cannot_be_used_are_named_before_anything_starts(
    redis_at: RedisAt, ours: Authority, tmp_path: Path, wrong: str
) -> None:
    for bad in (tmp_path / "gone", ours.folder / "names"):
        told = {**files(ours, ours.sign("us")), wrong: str(bad)}
        with pytest.raises(CannotStart, match=rf"scheduler\.phase2\.redis\.{wrong}"):
            credentials_of(msgspec.convert(told, RedisSettings))
