"""What operators see and switch of chat, from the command line, on a running server."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run
from dragoman.client.chat import Account, Refused, login
from dragoman.client.chat.accounts import ask
from dragoman.domain.chat.shards import shard_of, tag
from e2e.chat.chat_stage import SAVE_FIRST, SHARDS, ChatVisit, chat_stage, visiting_chat
from e2e.speech_stage import Stage
from key_leaks import Onlooker
from redis_servers import RedisAt
from waiting import wait_until


@pytest.fixture(scope="module")
def stage(redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with chat_stage(redis_server, tmp_path_factory.mktemp("chat-operators"), onlooker, SAVE_FIRST, 2) as up:
        yield up


class Command:
    """`dragoman …` against one of the instances, in this process: fast, and the same code."""

    def __init__(self, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
        self._stage, self._capsys = stage, capsys

    async def __call__(self, *args: str, code: int = 0, at: int = 0) -> str:
        """What it prints; its errors where it fails."""
        base = f"http://127.0.0.1:{self._stage.instances[at].port}"
        assert await asyncio.to_thread(run, [*args, "--url", base]) == code
        out, err = self._capsys.readouterr()
        return out or err

    async def json(self, *args: str, at: int = 0) -> Any:
        return json.loads(await self(*args, "--json", at=at))


@pytest.fixture
def dragoman(
    stage: Stage, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(stage, capsys)


async def letter_of(visit: ChatVisit, sender: int, to: int, **fields: object) -> str:
    """A message of `sender` that could not be saved, as the save stage leaves it; the name of the letter."""
    told: dict[str, object] = {
        "serverMsgId": 1 << 40, "clientMsgId": "dead-1", "fromUserId": sender, "toUserId": to, "msgType": "TEXT",
        "body": "a secret", "sendTs": 1, "createdAtMs": 1, "producerServerId": "i0", "mode": "save_first", "v": 1,
        "deadReason": "the row cannot be written", "tries": 5, "deadMs": 2, **fields,
    }  # fmt: skip
    shard = shard_of(sender, SHARDS)
    flat = [part for pair in told.items() for part in pair]
    id = await visit.redis.call("XADD", visit.keys.dead(tag(shard)), "*", *flat)
    return f"chat-{shard}/{id.decode()}"


# -- status


async def test_status_shows_every_shard_with_its_holder(stage: Stage, dragoman: Command) -> None:
    async def all_held() -> bool:
        return all(row["holder"] for row in (await dragoman.json("chat", "status"))["shards"])

    await wait_until(all_held)
    told = await dragoman("chat", "status")
    assert "accepted, saved, delivered" in told
    assert len([line for line in told.splitlines() if "i0" in line or "i1" in line]) == SHARDS


async def test_status_shows_the_save_lag_of_all_instances_together(stage: Stage, dragoman: Command) -> None:
    async with visiting_chat(stage) as visit:
        for _ in range(8):  # of shards at either instance
            alice = await visit.user()
            await alice.saved(await alice.chat(visit.uid()))

    async def lags() -> list[dict[str, float]]:
        return [(await dragoman.json("chat", "status", at=at))["save_lag_ms"] for at in (0, 1)]

    async def agree() -> bool:
        one, other = await lags()
        return one == other and one["p99"] is not None

    await wait_until(agree, 30)


async def test_where_a_message_is(stage: Stage, dragoman: Command) -> None:
    async with visiting_chat(stage) as visit:
        a, b = await visit.pair(0, 1)
        name = await a.chat(b.uid)
        await a.expect("ACK", ackType="saved")
        told = await dragoman("chat", "status", name, "--from", str(a.uid))
        assert told.startswith("It is saved.")
        where = await dragoman.json("chat", "status", name, "--from", str(a.uid), at=1)
        assert (where["state"], where["to"], where["msgSeq"]) == ("saved", str(b.uid), 1)


async def test_a_message_on_its_way_is_told_to_be(stage: Stage, dragoman: Command) -> None:
    async with visiting_chat(stage) as visit:
        a, b = await visit.pair()
        with visit.database_away():
            name = await a.chat(b.uid)
            await a.expect("ACK", ackType="accepted")
            assert (await dragoman("chat", "status", name, "--from", str(a.uid))).startswith("It is accepted")
        await a.expect("ACK", ackType="saved")


async def test_a_message_nobody_sent_is_unknown_and_whose_it_is_must_be_said(stage: Stage, dragoman: Command) -> None:
    assert (await dragoman("chat", "status", "none", "--from", "7", code=1)).startswith("No message of that sender")
    assert "--from USER" in await dragoman("chat", "status", "none", code=2)
    assert "nobody of that name" in await dragoman("chat", "status", "none", "--from", "Nobody Ever", code=1)


# -- switches


async def test_a_switch_takes_effect_on_every_instance_and_goes_back(stage: Stage, dragoman: Command) -> None:
    told = await dragoman("chat", "two-phase", "deliver_before_saved=on", "rollout_percent=50")
    assert "deliver_before_saved  on  (configured: off)" in told

    async def changed_there() -> bool:
        return bool((await dragoman.json("chat", "two-phase", at=1))["switches"]["rollout_percent"] == 50)

    await wait_until(changed_there)
    assert "(configured" not in await dragoman("chat", "two-phase", "--reset")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rollout_percent=101", "from 0 to 100"),
        ("enabled=perhaps", "on or off"),
        ("nothing=1", "there is no switch"),
    ],
)
async def test_a_switch_that_cannot_be_is_refused_with_a_reason(
    stage: Stage, dragoman: Command, change: str, said: str
) -> None:
    assert said in await dragoman("chat", "two-phase", change, code=1)
    assert "(configured" not in await dragoman("chat", "two-phase")


async def test_a_word_that_is_no_switch_is_a_usage_error(stage: Stage, dragoman: Command) -> None:
    assert "is not on, off" in await dragoman("chat", "two-phase", "deliver", code=2)


# -- dead letters


async def test_a_message_that_could_not_be_saved_is_a_letter_without_its_text(stage: Stage, dragoman: Command) -> None:
    async with visiting_chat(stage) as visit:
        letter = await letter_of(visit, visit.uid(), visit.uid())
        listed = await dragoman("dlq", "list")
        assert letter in listed
        assert "the row cannot be written" in listed
        shown = await dragoman("dlq", "show", letter)
        assert "dead-1" in shown
        assert "a secret" not in shown
        await dragoman("dlq", "drop", letter, "--yes")
        assert letter not in await dragoman("dlq", "list")


async def test_a_replayed_letter_is_accepted_anew_saved_and_delivered(stage: Stage, dragoman: Command) -> None:
    async with visiting_chat(stage) as visit:
        a, b = await visit.pair(0, 1)
        letter = await letter_of(visit, a.uid, b.uid)
        await dragoman("dlq", "replay", letter, "--yes")
        assert (await b.expect("SINGLE_CHAT"))["body"] == "a secret"
        assert (await a.expect("ACK", ackType="saved"))["clientMsgId"] == "dead-1"
        assert letter not in await dragoman("dlq", "list")


async def test_a_letter_whose_id_was_used_again_for_another_message_can_only_be_dropped(
    stage: Stage, dragoman: Command
) -> None:
    async with visiting_chat(stage) as visit:
        a, b = await visit.pair()
        await a.chat(b.uid, "another text", "dead-1")
        await a.expect("ACK", ackType="saved")
        letter = await letter_of(visit, a.uid, b.uid)
        assert "only dropped" in await dragoman("dlq", "replay", letter, "--yes", code=1)
        await dragoman("dlq", "drop", letter, "--yes")


async def test_a_letter_that_cannot_be_read_is_shown_and_can_only_be_dropped(stage: Stage, dragoman: Command) -> None:
    async with visiting_chat(stage) as visit:
        letter = await letter_of(visit, visit.uid(), visit.uid(), fromUserId="nobody")
        assert "only dropped" in await dragoman("dlq", "replay", letter, "--yes", code=1)
        await dragoman("dlq", "drop", letter, "--yes")


# -- accounts


def entering(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """Standard input, which is no terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))


async def logged_in(stage: Stage, name: str, password: str, at: int = 0) -> Account:
    return await login(f"http://127.0.0.1:{stage.instances[at].port}", name, password)


async def test_an_operator_adds_a_user_and_sets_its_password(
    stage: Stage, dragoman: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    entering(monkeypatch, "the first password")
    told = await dragoman("chat", "user", "add", "ada")
    ada = await logged_in(stage, "ada", "the first password")
    assert told == f"ada is user {ada.user_id}.\n"
    entering(monkeypatch, "another")
    assert "this name is taken" in await dragoman("chat", "user", "add", "ada", code=1)
    entering(monkeypatch, "the second password")
    assert "must log in again" in await dragoman("chat", "user", "passwd", "ada", at=1)
    with pytest.raises(Refused, match="unauthorized"):
        await logged_in(stage, "ada", "the first password", at=1)
    assert (await logged_in(stage, "ada", "the second password")).user_id == ada.user_id
    entering(monkeypatch, "whatever")
    assert "there is no account of this name" in await dragoman("chat", "user", "passwd", "nobody at all", code=1)
    entering(monkeypatch, "")
    assert "No password was given" in await dragoman("chat", "user", "add", "eve", code=2)
    audit = await dragoman("audit")
    assert "chat.user.add" in audit
    assert "chat.user.passwd" in audit
    assert "password" not in audit.replace("chat.user.passwd", "")


async def test_removing_a_user_ends_its_connection_and_its_tokens(stage: Stage, dragoman: Command) -> None:
    carl = await logged_in(stage, "carl", "secret of carl")
    async with visiting_chat(stage) as visit:
        speaker = await visit.stranger(1, carl.user_id)
        await speaker.auth(await carl.token())
        assert "Nothing was changed" in await dragoman("chat", "user", "remove", "carl")
        assert "is removed" in await dragoman("chat", "user", "remove", "carl", "--yes")
        assert (await speaker.expect("ERROR"))["reason"] in ("kicked", "session_invalid")
    verdict = await ask("POST", carl.base_url, "/auth/verify", json={"accessToken": await carl.token()})
    assert (verdict["ok"], verdict["reason"]) == (False, "session_invalid")
    assert "there is no account" in await dragoman("chat", "user", "remove", "carl", "--yes", code=1)
    assert (await logged_in(stage, "carl", "a new carl")).user_id != carl.user_id


async def test_invite_codes_are_refused_where_they_are_not_used(dragoman: Command) -> None:
    assert "invite codes are not used here" in await dragoman("chat", "invite", code=1)
