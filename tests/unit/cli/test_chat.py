import pytest

from dragoman.cli.chat import base, socket
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.main import run


@pytest.mark.parametrize(
    ("given", "http", "ws"),
    [
        ("localhost:5010", "http://localhost:5010", "ws://localhost:5010/ws"),
        ("http://host:5010/", "http://host:5010", "ws://host:5010/ws"),
        ("ws://host:5010/ws", "http://host:5010", "ws://host:5010/ws"),
        ("https://host/behind/a/proxy", "https://host/behind/a/proxy", "wss://host/behind/a/proxy/ws"),
        ("[::1]:5010", "http://[::1]:5010", "ws://[::1]:5010/ws"),
    ],
)
def test_an_address_may_be_given_in_many_ways(given: str, http: str, ws: str) -> None:
    assert base(given) == http
    assert socket(http) == ws


@pytest.mark.parametrize("given", ["", "ftp://host", "http://", "host:port", "a b", "host:0"])
def test_what_is_no_address_is_told(given: str) -> None:
    with pytest.raises(Failure, match="is not an address like http://"):
        base(given)


@pytest.mark.parametrize("args", [[], ["--as", "alice"], ["--to", "bob"]])
def test_a_chat_needs_two(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", *args]) == USAGE
    assert "dragoman chat --as alice --to bob" in capsys.readouterr().err


def test_no_server_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "--as", "alice", "--to", "bob", "--url", "127.0.0.1:1"]) == 1
    assert "Is it running? Try --url, or start one: dragoman demo." in capsys.readouterr().err
