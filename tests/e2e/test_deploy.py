"""The arrangement of deploy/ as plain processes: the same commands and settings, a real Redis Cluster and PostgreSQL.

What containers would bring is replaced: addresses by those of this machine, the balancer by connections of the tests.
The working directory stands for the file system that is read-only there, so nothing may be written to it.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import jwt
import pytest
import redis

from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import free_port
from dragoman.gateway.proxies import V2_SIGNATURE
from dragoman.tools.postgres import PostgresServer
from dragoman.tools.verify.clients import token as chat_token
from support.chat import ChatSpeaker
from support.cluster import Speaker
from support.deployment import DEPLOY, INSTANCES, REDIS, SECRETS, SERVICES, environment, last
from support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.cluster]

TIMEOUT_S = 60.0
BALANCER = "127.0.0.10"  # an address of this machine that stands for the balancer's
SECRET, PASSWORD = SECRETS["DRAGOMAN_SECURITY__SECRET"], "r" * 64


def token(kind: str, subject: str) -> str:
    claims = {"iss": "dragoman", "typ": kind, "sub": subject, "exp": int(time.time()) + 86_400}
    return jwt.encode(claims, SECRET, "HS256")


@dataclass(frozen=True)
class RedisHere:
    """Six servers, started and made a Cluster by the scripts of deploy/, with the password in a file."""

    ports: list[int]
    password_file: Path

    @property
    def urls(self) -> list[str]:
        return [f"redis://127.0.0.1:{port}" for port in self.ports[:3]]


@pytest.fixture(scope="module")
def redis_here(
    server_binary: ServerBinary, old_server_binary: ServerBinary, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisHere]:
    folder = tmp_path_factory.mktemp("deploy-redis")
    ports: set[int] = set()
    while len(ports) < len(REDIS):
        ports.add(free_port(with_bus=True))
    here = RedisHere(sorted(ports), folder / "redis_password")
    here.password_file.write_text(f"{PASSWORD}\n")
    (folder / "valkey-server").symlink_to(server_binary.path)
    (folder / "valkey-cli").symlink_to(Path(old_server_binary.path).with_name("redis-cli"))
    processes = [start_redis(folder, port, here.password_file) for port in here.ports]
    try:
        for port in here.ports:
            wait_for_redis(port)
        form_cluster(here.ports, folder)
        form_cluster(here.ports, folder)  # of one that is there already it only waits
        yield here
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start_redis(tools: Path, port: int, password_file: Path) -> "subprocess.Popen[bytes]":
    """As the services redis-1 to redis-6 do, each with a port and a folder of its own."""
    (tools / str(port)).mkdir()
    words = [word.replace("/start-redis.sh", str(DEPLOY / "start-redis.sh")) for word in REDIS["redis-1"]["command"]]
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "REDIS_PASSWORD_FILE": str(password_file)}
    options = ["--port", str(port), "--save", ""]
    return subprocess.Popen([*words, *options], env=env, cwd=tools / str(port), stdout=subprocess.DEVNULL)


def wait_for_redis(port: int) -> None:
    until = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with redis.Redis(port=port, protocol=2) as stranger:
                stranger.ping()
        except redis.AuthenticationError:  # it is there, and asks for the password
            return
        except redis.ConnectionError:
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            pytest.fail("no password is asked for")


def form_cluster(ports: list[int], tools: Path) -> None:
    """As the service redis-cluster does, with the command line of an older Redis in the place of Valkey's."""
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "REDISCLI_AUTH": PASSWORD}
    servers = [f"127.0.0.1:{port}" for port in ports]
    subprocess.run(["sh", str(DEPLOY / "form-cluster.sh"), *servers], env=env, check=True, timeout=60)


@dataclass
class Deployment:
    """What `docker compose up` would start, in `folder`."""

    redis: RedisHere
    archive_url: str
    folder: Path
    prefix: str = field(default_factory=lambda: f"t-{uuid4().hex[:12]}")
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, words: list[str], env: dict[str, str]) -> None:
        (self.folder / name).mkdir()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("DRAGOMAN_")}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "dragoman.cli.main", *words],
                cwd=self.folder / name,
                env={**clean, **env},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_instance(self, name: str) -> None:
        self.ports[name] = free_port()
        here = {
            "DRAGOMAN_CONFIG": str(DEPLOY / "config.toml"),
            "DRAGOMAN_ARCHIVE__URL": self.archive_url,
            "DRAGOMAN_SCHEDULER__PHASE2__REDIS__CLUSTER_URLS": ",".join(self.redis.urls),
            "DRAGOMAN_SCHEDULER__PHASE2__REDIS__PASSWORD_FILE": str(self.redis.password_file),
            "DRAGOMAN_SCHEDULER__PHASE2__REDIS__KEY_PREFIX": self.prefix,
            "DRAGOMAN_SERVER__HOST": "127.0.0.1",
            "DRAGOMAN_SERVER__PORT": str(self.ports[name]),
            "DRAGOMAN_SERVER__TRUSTED_PROXIES": BALANCER,
            "DRAGOMAN_SERVER__ADMIN_HOST": "127.0.0.1",
            "DRAGOMAN_SERVER__ADMIN_PORT": "0",
        }
        self.start(name, SERVICES[name]["command"], {**environment(name), **here})

    def start_node(self, at: str) -> None:
        words = [word.replace(f"{at}:5010", f"127.0.0.1:{self.ports[at]}") for word in SERVICES["sim-node"]["command"]]
        other = [at for at, word in enumerate(words) if "ws://dragoman-" in word]
        for position in reversed(other):  # the addresses of the others: this node is to be on one instance
            del words[position - 1 : position + 1]
        node_id = words[words.index("--node-id") + 1]
        self.start("sim-node", words, {"DRAGOMAN_NODE_TOKEN": token("node", node_id)})

    def healthy(self, name: str) -> bool:
        """What the image's health check would find."""
        probe = json.loads(last("HEALTHCHECK").partition("CMD ")[2])[2].replace(":5010", f":{self.ports[name]}")
        return (
            subprocess.run([sys.executable, "-c", probe], capture_output=True, timeout=20, check=False).returncode == 0
        )

    def stop(self) -> dict[str, int]:
        """Asks all to end, as compose does; how each of them ended."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        # A node with a result that nobody takes any more keeps it for its own 30 s.
        return {name: process.wait(60) for name, process in self.processes.items()}

    def kill(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))


class Visitor:
    def __init__(self, up: Deployment, http: aiohttp.ClientSession) -> None:
        self.up, self.http = up, http

    async def get(self, name: str, path: str) -> Any:
        headers = {"Authorization": f"Bearer {token('operator', 'o')}"}
        async with self.http.get(f"http://127.0.0.1:{self.up.ports[name]}{path}", headers=headers) as answer:
            return await answer.json(content_type=None)

    async def ready(self, name: str) -> bool:
        return bool((await self.get(name, "/health/ready"))["ready"])

    async def socket(self, name: str, path: str) -> aiohttp.ClientWebSocketResponse:
        return await self.http.ws_connect(f"ws://127.0.0.1:{self.up.ports[name]}{path}")

    async def chat_user(self, name: str, uid: int) -> ChatSpeaker:
        speaker = ChatSpeaker(uid, await self.socket(name, "/ws"))
        await speaker.auth(chat_token(uid, secret=SECRET))
        return speaker

    async def knows_the_node(self, name: str) -> list[Any]:
        return list((await self.get(name, "/api/v1/cluster"))["nodes"])

    async def released(self, name: str, job_id: str) -> dict[str, Any]:
        job = await self.get(name, f"/api/v1/jobs/{job_id}")
        return job if job.get("state") == "RELEASED" else {}


@asynccontextmanager
async def new_scenario(up: Deployment) -> AsyncIterator[Visitor]:
    connector = aiohttp.TCPConnector(force_close=True)  # a connection that began with HTTP stays with HTTP
    async with aiohttp.ClientSession(connector=connector) as http:
        yield Visitor(up, http)


@pytest.fixture(scope="module")
def up(
    redis_here: RedisHere, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    deployment = Deployment(redis_here, postgres_server.new_database(), tmp_path_factory.mktemp("deploy"))

    async def all_ready() -> None:
        async with new_scenario(deployment) as visitor:
            for name in INSTANCES:
                await wait_until(lambda: visitor.ready(name), TIMEOUT_S, name, aiohttp.ClientError)  # noqa: B023

    try:
        for name in INSTANCES:
            deployment.start_instance(name)
        asyncio.run(all_ready())
        yield deployment
    except AssertionError:
        print(deployment.logs())
        raise
    finally:
        deployment.kill()


async def test_three_instances_are_ready_and_keep_what_they_accept_in_two_servers(up: Deployment) -> None:
    async with new_scenario(up) as visitor:
        for name in INSTANCES:
            assert up.healthy(name)
            told = (await visitor.get(name, "/api/v1/cluster"))["instances"]
            assert sorted((row["alive"], row["durability"]) for row in told) == [(True, "replicated")] * 3


async def test_the_balancer_is_answered_with_its_header_and_not_without(up: Deployment) -> None:
    client = V2_SIGNATURE + b"\x21\x11\x00\x0c" + bytes([203, 0, 113, 7, 172, 30, 57, 10, 18, 103, 19, 146])
    check = V2_SIGNATURE + b"\x20\x00\x00\x00"
    for header, status in ((client, b"200"), (check, b"200"), (b"", b"400")):
        reader, writer = await asyncio.open_connection("127.0.0.1", up.ports["dragoman-1"], local_addr=(BALANCER, 0))
        writer.write(header + b"GET /health/ready HTTP/1.1\r\nHost: balancer\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), TIMEOUT_S)).split()[1] == status
        writer.close()


async def test_a_message_crosses_from_one_instance_to_another(up: Deployment) -> None:
    async with new_scenario(up) as visitor:
        alice, bob = await visitor.chat_user("dragoman-1", 1001), await visitor.chat_user("dragoman-3", 1002)
        name = await alice.chat(bob.uid, "across")
        await alice.expect("ACK", ackType="accepted", clientMsgId=name)
        id = await alice.saved(name)
        message = await bob.expect("SINGLE_CHAT", clientMsgId=name, body="across")
        assert int(message["serverMsgId"]) == id
        await bob.ack(id, to=alice.uid)
        await alice.expect("ACK", ackType="delivered")


async def test_speech_on_one_instance_is_translated_by_a_node_on_another(up: Deployment) -> None:
    up.start_node("dragoman-1")
    async with new_scenario(up) as visitor:
        await wait_until(lambda: visitor.knows_the_node("dragoman-2"), TIMEOUT_S, "the node")
        speaker = Speaker(await visitor.socket("dragoman-2", "/ws/session"))
        await speaker.init(token=token("client", "c"))
        await speaker.utterance(0)
        result = await speaker.result(0, TIMEOUT_S)
        assert result["text_translated"]
        job = await wait_until(lambda: visitor.released("dragoman-3", result["job_id"]), TIMEOUT_S)
        assert (job["node_id"], job["outcome"]) == ("sim-1", "ok")
        assert job["driver"] == (await visitor.get("dragoman-2", "/health/ready"))["instance"]
        assert job["driver"] != (await visitor.get("dragoman-1", "/health/ready"))["instance"]


async def test_every_process_of_the_deployment_ends_on_sigterm_and_writes_no_file(up: Deployment) -> None:
    assert set(up.stop().values()) == {0}
    assert [path for name in up.processes for path in (up.folder / name).iterdir()] == []
