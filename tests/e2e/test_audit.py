"""What an operator does by command is in the audit, with the name of its token; and `dragoman audit` tells it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Dragoman, answer, serve

WOULD_DRAIN = "would drain the instance nobody\nNothing was changed. Repeat the command with --yes to do it.\n"
SECRET = "a-secret-of-more-than-thirty-two-bytes"


class Office:
    """A server that asks who one is, and an operator who has a token for it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.env = folder, {"DRAGOMAN_SECURITY__SECRET": SECRET}
        self.server: Dragoman = serve(folder / "server", env=self.env).until("Dragoman is ready after")
        self.url = f"http://{self.server.base}"
        made = ("token", "operator", "--subject", "olga", "--tenant", "acme")
        _, token, _ = answer(folder / "mint", *made, env=self.env)
        self.env = {"DRAGOMAN_OPERATOR_TOKEN": token.strip()}

    def does(self, *args: str) -> tuple[int, str, str]:
        return answer(self.folder / "desk", *args, "--url", self.url, env=self.env)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    made = Office(tmp_path_factory.mktemp("office"))
    with made.server:
        yield made


def test_audit_has_the_actor_action_and_outcome_of_every_command(office: Office) -> None:
    assert office.does("audit") == (0, "No operator has changed anything yet.\n", "")
    assert office.does("chat", "two-phase", "rollout_percent=50")[0] == 0
    assert office.does("chat", "two-phase", "rollout_percent=500")[0] == 1
    assert office.does("chat", "two-phase", "--reset")[0] == 0
    assert office.does("dlq", "drop", "nobody/1-1", "--yes")[0] == 1
    assert office.does("dlq", "replay", "nobody/1-1", "--yes")[0] == 1
    assert office.does("drain", "instance", "nobody")[:2] == (0, WOULD_DRAIN)
    assert office.does("drain", "instance", "nobody", "--yes")[0] == 1
    assert office.does("drain", "node", "nobody", "--yes")[0] == 1
    assert office.does("drain", "node", "nobody", "--undo", "--yes")[0] == 1
    assert office.does("session", "end", "s-nobody", "--yes")[0] == 1
    assert office.does("chat", "disconnect", "9", "--yes")[0] == 1
    code, out, _ = office.does("audit", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {(row["who"], row["tenant"]) for row in rows} == {("olga", "acme")}
    assert [(row["action"], row["target"], row["result"].partition(":")[0]) for row in reversed(rows)] == [
        ("chat.switch", "rollout_percent", "done"),
        ("chat.switch", "chat", "refused"),
        ("chat.switches.reset", "chat", "done"),
        ("dlq.drop", "nobody/1-1", "refused"),
        ("dlq.replay", "nobody/1-1", "refused"),
        ("instance.drain", "nobody", "refused"),
        ("node.drain", "nobody", "refused"),
        ("node.undrain", "nobody", "refused"),
        ("session.end", "s-nobody", "refused"),
        ("chat.disconnect", "9", "refused"),
    ]
    assert rows[-1]["detail"].endswith("→ 50")
