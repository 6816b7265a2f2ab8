"""What operators see and switch of chat, from the command line, on a running server."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run
from dragoman.client.chat import AccessDenied, Account, login
from dragoman.client.chat.accounts import ask
from dragoman.domain.chat.shards import shard_of, tag
from support.chat import SAVE_FIRST, SHARDS, ChatScenario, module_chat_harness, new_chat_scenario
from support.speech import Harness
from support.waiting import wait_until

harness = module_chat_harness(SAVE_FIRST, instances=2)


class Command:
    """`dragoman …` against one of the instances, in this process: fast, and the same code."""

    def __init__(self, harness: Harness, capsys: pytest.CaptureFixture[str]) -> None:
        self._stage, self._capsys = harness, capsys

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
    harness: Harness, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(harness, capsys)


async def letter_of(scenario: ChatScenario, sender: int, to: int, **fields: object) -> str:
    """A message of `sender` that could not be saved, as the save harness leaves it; the name of the letter."""
    told: dict[str, object] = {
        "serverMsgId": 1 << 40, "clientMsgId": "dead-1", "fromUserId": sender, "toUserId": to, "msgType": "TEXT",
        "body": "a secret", "sendTs": 1, "createdAtMs": 1, "producerServerId": "i0", "mode": "save_first", "v": 1,
        "deadReason": "the row cannot be written", "tries": 5, "deadMs": 2, **fields,
    }  # fmt: skip
    shard = shard_of(sender, SHARDS)
    flat = [part for pair in told.items() for part in pair]
    id = await scenario.redis.call("XADD", scenario.keys.dead(tag(shard)), "*", *flat)
    return f"chat-{shard}/{id.decode()}"


# -- status


async def test_status_shows_every_shard_with_its_holder(harness: Harness, dragoman: Command) -> None:
    async def all_held() -> bool:
        return all(row["holder"] for row in (await dragoman.json("chat", "status"))["shards"])

    await wait_until(all_held)
    told = await dragoman("chat", "status")
    assert "accepted, saved, delivered" in told
    assert len([line for line in told.splitlines() if "i0" in line or "i1" in line]) == SHARDS


async def test_status_shows_the_save_lag_of_all_instances_together(harness: Harness, dragoman: Command) -> None:
    async with new_chat_scenario(harness) as scenario:
        for _ in range(8):  # of shards at either instance
            alice = await scenario.user()
            await alice.saved(await alice.chat(scenario.uid()))

    async def lags() -> list[dict[str, float]]:
        return [(await dragoman.json("chat", "status", at=at))["save_lag_ms"] for at in (0, 1)]

    async def agree() -> bool:
        one, other = await lags()
        return one == other and one["p99"] is not None

    await wait_until(agree, 30)


async def test_status_of_a_message_names_where_it_is(scenario: ChatScenario, dragoman: Command) -> None:
    a, b = await scenario.pair(0, 1)
    name = await a.chat(b.uid)
    await a.expect("ACK", ackType="saved")
    told = await dragoman("chat", "status", name, "--from", str(a.uid))
    assert told.startswith("The message is saved.")
    where = await dragoman.json("chat", "status", name, "--from", str(a.uid), at=1)
    assert (where["state"], where["to"], where["msgSeq"]) == ("saved", str(b.uid), 1)


async def test_status_of_an_unsaved_message_is_accepted(scenario: ChatScenario, dragoman: Command) -> None:
    a, b = await scenario.pair()
    async with scenario.database_away():
        name = await a.chat(b.uid)
        await a.expect("ACK", ackType="accepted")
        assert (await dragoman("chat", "status", name, "--from", str(a.uid))).startswith("The message is accepted")
    await a.expect("ACK", ackType="saved")


async def test_unknown_message_is_reported_and_its_sender_must_be_named(harness: Harness, dragoman: Command) -> None:
    assert (await dragoman("chat", "status", "none", "--from", "7", code=1)).startswith("No message of that sender")
    assert "--from USER" in await dragoman("chat", "status", "none", code=2)
    assert "no user with this name" in await dragoman("chat", "status", "none", "--from", "Nobody Ever", code=1)


# -- switches


async def test_a_switch_takes_effect_on_every_instance_and_goes_back(harness: Harness, dragoman: Command) -> None:
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
async def test_invalid_switch_is_refused_with_a_reason(
    harness: Harness, dragoman: Command, change: str, said: str
) -> None:
    assert said in await dragoman("chat", "two-phase", change, code=1)
    assert "(configured" not in await dragoman("chat", "two-phase")


async def test_unknown_switch_is_a_usage_error(harness: Harness, dragoman: Command) -> None:
    assert "is neither on, off" in await dragoman("chat", "two-phase", "deliver", code=2)


# -- dead letters


async def test_dead_letter_of_a_message_hides_its_text(scenario: ChatScenario, dragoman: Command) -> None:
    letter = await letter_of(scenario, scenario.uid(), scenario.uid())
    listed = await dragoman("dlq", "list")
    assert letter in listed
    assert "the row cannot be written" in listed
    shown = await dragoman("dlq", "show", letter)
    assert "dead-1" in shown
    assert "a secret" not in shown
    await dragoman("dlq", "drop", letter, "--yes")
    assert letter not in await dragoman("dlq", "list")


async def test_replayed_dead_letter_is_accepted_saved_and_delivered(scenario: ChatScenario, dragoman: Command) -> None:
    a, b = await scenario.pair(0, 1)
    letter = await letter_of(scenario, a.uid, b.uid)
    await dragoman("dlq", "replay", letter, "--yes")
    assert (await b.expect("SINGLE_CHAT"))["body"] == "a secret"
    assert (await a.expect("ACK", ackType="saved"))["clientMsgId"] == "dead-1"
    assert letter not in await dragoman("dlq", "list")


async def test_dead_letter_whose_id_was_reused_can_only_be_dropped(scenario: ChatScenario, dragoman: Command) -> None:
    a, b = await scenario.pair()
    await a.chat(b.uid, "another text", "dead-1")
    await a.expect("ACK", ackType="saved")
    letter = await letter_of(scenario, a.uid, b.uid)
    assert "only dropped" in await dragoman("dlq", "replay", letter, "--yes", code=1)
    await dragoman("dlq", "drop", letter, "--yes")


async def test_unreadable_dead_letter_is_shown_and_can_only_be_dropped(
    scenario: ChatScenario, dragoman: Command
) -> None:
    letter = await letter_of(scenario, scenario.uid(), scenario.uid(), fromUserId="nobody")
    assert "only dropped" in await dragoman("dlq", "replay", letter, "--yes", code=1)
    await dragoman("dlq", "drop", letter, "--yes")


# -- accounts


def entering(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """Standard input, which is no terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))


async def logged_in(harness: Harness, name: str, password: str, at: int = 0) -> Account:
    return await login(f"http://127.0.0.1:{harness.instances[at].port}", name, password)


async def test_an_operator_adds_a_user_and_sets_its_password(
    harness: Harness, dragoman: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    entering(monkeypatch, "the first password")
    told = await dragoman("chat", "user", "add", "ada")
    ada = await logged_in(harness, "ada", "the first password")
    assert told == f"ada is user {ada.user_id}.\n"
    entering(monkeypatch, "another")
    assert "an account with this name exists already" in await dragoman("chat", "user", "add", "ada", code=1)
    entering(monkeypatch, "the second password")
    assert "must log in again" in await dragoman("chat", "user", "passwd", "ada", at=1)
    with pytest.raises(AccessDenied, match="unauthorized"):
        await logged_in(harness, "ada", "the first password", at=1)
    assert (await logged_in(harness, "ada", "the second password")).user_id == ada.user_id
    entering(monkeypatch, "whatever")
    assert "there is no account with this name" in await dragoman("chat", "user", "passwd", "nobody at all", code=1)
    entering(monkeypatch, "")
    assert "No password was given" in await dragoman("chat", "user", "add", "eve", code=2)
    audit = await dragoman("audit")
    assert "chat.user.add" in audit
    assert "chat.user.passwd" in audit
    assert "password" not in audit.replace("chat.user.passwd", "")


async def test_removing_a_user_ends_its_connection_and_its_tokens(harness: Harness, dragoman: Command) -> None:
    carl = await logged_in(harness, "carl", "secret of carl")
    async with new_chat_scenario(harness) as scenario:
        speaker = await scenario.stranger(1, carl.user_id)
        await speaker.auth(await carl.token())
        assert "Nothing was changed" in await dragoman("chat", "user", "remove", "carl")
        assert "is removed" in await dragoman("chat", "user", "remove", "carl", "--yes")
        assert (await speaker.expect("ERROR"))["reason"] in ("kicked", "session_invalid")
    verdict = await ask("POST", carl.base_url, "/auth/verify", json={"accessToken": await carl.token()})
    assert (verdict["ok"], verdict["reason"]) == (False, "session_invalid")
    assert "there is no account" in await dragoman("chat", "user", "remove", "carl", "--yes", code=1)
    assert (await logged_in(harness, "carl", "a new carl")).user_id != carl.user_id


async def test_invite_codes_are_refused_where_they_are_not_used(dragoman: Command) -> None:
    assert "invite codes are not used here" in await dragoman("chat", "invite", code=1)
