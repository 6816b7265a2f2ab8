"""The chat SDK against real instances: receipts, history, two instances, and one that is killed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.client.chat import AccessDenied, Chat, SendFailed, Translation, login
from dragoman.tools.processes import InstanceProcess, NodeProcess
from dragoman.tools.verify.clients import LOAD_TIMING, token
from support.cluster import running
from support.redis_servers import RedisAt
from support.waiting import wait_until

ANN, BEN = 71, 72


@asynccontextmanager
async def served(
    redis: RedisAt, folder: Path, prefix: str, count: int = 1, **flags: object
) -> AsyncIterator[list[InstanceProcess]]:
    settings = {"archive__url": f"sqlite:///{folder / 'chat.db'}", "chat__two_phase__enabled": True, **flags}
    async with running(redis, folder, prefix) as cluster:
        yield [await cluster.instance(**settings) for _ in range(count)]


def chat(uid: int, *instances: InstanceProcess, in_flight: int = 1) -> Chat:
    urls = [f"ws://127.0.0.1:{one.port}/ws" for one in instances]
    return Chat(urls, token=lambda: token(uid), in_flight=in_flight, timing=LOAD_TIMING)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({}, id="save_first"),
        pytest.param({"chat__two_phase__enabled": False}, id="off", marks=pytest.mark.long),
        pytest.param({"chat__two_phase__deliver_before_saved": True}, id="deliver_first", marks=pytest.mark.long),
    ],
)
async def test_every_receipt_comes_across_two_instances(
    redis_at: RedisAt, prefix: str, tmp_path: Path, flags: dict[str, object]
) -> None:
    async with served(redis_at, tmp_path, prefix, 2, **flags) as (first, second):
        async with chat(ANN, first) as ann, chat(BEN, second) as ben:
            sents = [await ann.send(BEN, f"message {number}") for number in range(20)]
            messages = ben.messages()
            heard = [await anext(messages) for _ in range(20)]
            assert [message.body for message in heard] == [sent.body for sent in sents]
            for sent in sents:
                await sent.accepted
                await sent.saved
                await sent.delivered
            ben.read(heard[-1])
            for sent in sents:
                await sent.read
            assert [message.server_msg_id for message in heard] == [sent.server_msg_id for sent in sents]


async def test_a_chat_goes_on_at_the_next_instance_when_one_is_killed(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    async with served(redis_at, tmp_path, prefix, 2) as (first, second):
        async with chat(ANN, first, second) as ann, chat(BEN, second) as ben:
            await (await ann.send(BEN, "before")).saved
            first.kill()
            sents = [await ann.send(BEN, f"after {number}") for number in range(10)]
            for sent in sents:
                await sent.saved
            messages = ben.messages()
            heard = [(await anext(messages)).body for _ in range(11)]
            assert heard == ["before", *(sent.body for sent in sents)]


async def test_account_is_created_has_history_and_is_removed(redis_at: RedisAt, prefix: str, tmp_path: Path) -> None:
    async with served(redis_at, tmp_path, prefix, security__secret="s" * 40, chat__registration="open") as (here,):
        base = f"http://127.0.0.1:{here.port}"
        cora, dean = await login(base, "cora", "secret of cora"), await login(base, "dean", "secret of dean")
        with pytest.raises(AccessDenied, match="unauthorized"):
            await login(base, "cora", "another")
        async with Chat(f"ws://127.0.0.1:{here.port}/ws", token=cora.token, timing=LOAD_TIMING) as chat:
            for body in ("one", "two"):
                await (await chat.send(dean.user_id, body)).saved
            with pytest.raises(SendFailed, match="cannot_send_to_self"):
                await (await chat.send(cora.user_id, "me")).saved
            assert [said.body for said in await dean.history(cora.user_id)] == ["two", "one"]
            (conversation,) = await dean.conversations()
            assert conversation["unreadCount"] == 2
            await login(base, "cora", "secret of cora")  # elsewhere: the old token is of no use any more

            async def is_out() -> bool:
                if chat.connected:
                    await chat.send(dean.user_id, "am I still in?")
                return not chat.connected

            await wait_until(is_out, tolerate=AccessDenied)
            with pytest.raises(AccessDenied, match="session_invalid"):
                await anext(chat.messages())


async def test_messages_are_read_in_another_language_across_two_instances(
    redis_at: RedisAt, prefix: str, tmp_path: Path
) -> None:
    translated: list[Translation] = []
    async with served(redis_at, tmp_path, prefix, 2) as (first, second):
        node = NodeProcess([first.port], tmp_path / "node.log", languages="en,es", jitter_ms=0)
        try:
            await wait_until(lambda: knows_a_node(second))
            ben = Chat(
                f"ws://127.0.0.1:{second.port}/ws", token=lambda: token(BEN), timing=LOAD_TIMING,
                translate="es", on_translation=translated.append,
            )  # fmt: skip
            async with chat(ANN, first) as ann, ben:
                sent = await ann.send(BEN, "good morning", lang="en")
                message = await anext(ben.messages())
                assert (message.body, message.lang) == ("good morning", "en")
                await wait_until(lambda: len(translated) == 1)
                found = await ann.translate(sent.server_msg_id or 0, "es")
                assert found == translated[0]
                assert found.body
                unknown = await ben.translate(message.server_msg_id + 1, "es")
                assert (unknown.body, unknown.reason) == (None, "message_not_found")
        finally:
            node.close()


async def knows_a_node(instance: InstanceProcess) -> bool:
    return bool((await instance.get("/api/v1/public/languages"))["text"])
