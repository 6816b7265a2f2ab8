"""What instances tell each other: read again as it was written, refused in a sentence of bounded length."""

import pytest

from dragoman.protocol import peer
from dragoman.protocol.errors import ProtocolError


def test_an_entry_of_a_type_nobody_knows_is_refused_in_a_short_sentence() -> None:
    with pytest.raises(ProtocolError, match="Unknown message type: invalid value 'xxx") as refused:
        peer.decode_inbox(b'{"type":"%b"}' % (b"x" * 100_000))
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"type":"evict","node_id":"n"}', "Required field `epoch` is missing"),
        (b'{"type":"evict","node_id":"n","epoch":"x"}', "Field `epoch`: expected `int`, got `str`"),
        (b'{"type":"evict","node_id":"n","epoch":' + b"9" * 5000 + b"}", "Field `epoch`: integer value out of range"),
        (b"[" * 100_000, "not a JSON object|nested too deeply|expected `object`"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused_with_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        peer.decode_inbox(data)


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"type":"later"}', b'{"type":"node_lost","node_id":1,"epoch":1}', b"\xff"]
)
def test_an_announcement_that_cannot_be_read_is_none(data: bytes) -> None:
    assert peer.decode_announcement(data) is None
