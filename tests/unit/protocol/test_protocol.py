"""Ids, codes, audio and unknown fields of the protocols."""

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from dragoman.protocol import audio, codec, extra, ids, peer
from dragoman.protocol.audio import AudioFrame, FrameKind
from dragoman.protocol.codes import BadAudio, Close, ErrorCode, ProtocolError, may_come_back
from dragoman.protocol.fields import ABSENT
from dragoman.protocol.node import advanced_features, previews_of, slots_of
from dragoman.protocol.session import ServiceTimings
from support.tables import for_each


def test_close_codes_below_4500_ask_the_peer_to_come_back() -> None:
    for close in Close:
        assert 4000 <= close <= 4999
        assert may_come_back(close) == (close < 4500)


def test_a_peer_comes_back_after_a_close_that_is_not_ours() -> None:
    assert may_come_back(1000)
    assert may_come_back(1006)
    assert may_come_back(1011)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
READ = (*extra.CLIENT_KEYS, "service_timings", "asr_ms", "nmt_ms", "tts_ms", "assignedNodeId")


def test_clients_get_the_documented_keys_alone_and_none_that_is_null() -> None:
    given_by_node = {"language_probability": 0.98, "emotion": None, "assignedNodeId": "n", "raw_asr_text": "secret"}
    assert json.loads(bytes(extra.for_clients(codec.raw(given_by_node)))) == {"language_probability": 0.98}


@for_each([ABSENT, codec.raw({}), codec.raw({"assignedNodeId": "n"})])
def test_clients_get_no_extra_if_no_documented_key_has_a_value(given_by_node: msgspec.Raw) -> None:
    assert extra.for_clients(given_by_node) is ABSENT


@for_each(
    [
        ({"language": "de", "language_probability": 0.7}, ("de", 0.7)),
        ({"language": "de", "language_probabilities": {"de": 0.6, "en": 0.4}}, ("de", 0.6)),
        ({"language": "de"}, ("de", 1.0)),
        ({"language_probability": 0.98, "language_probabilities": {"zh": 0.98, "en": 0.01}}, ("zh", 0.98)),
        ({"language_probability": 0.98}, None),
        ({"language": "d e"}, None),
        ({"language": 5, "language_probabilities": ["zh"]}, None),
        ({"language_probabilities": {"zh": "much"}}, None),
    ]
)
def test_the_detected_language_is_the_one_named_or_the_likeliest(
    given_by_node: dict[str, Any], found: tuple[str, float] | None
) -> None:
    assert extra.detected_language(codec.raw(given_by_node)) == found


def test_the_times_of_the_steps_are_read_wherever_a_node_tells_them() -> None:
    flat = codec.raw({"asr_ms": 1, "nmt_ms": 2.5})
    nested = codec.raw({"service_timings": {"asr_ms": 1, "nmt_ms": 2.5, "tts_ms": -1}})
    assert extra.service_timings(flat, 9.0) == extra.service_timings(nested, 9.0) == ServiceTimings(1.0, 2.5, None, 9.0)
    assert extra.service_timings(ABSENT, None) is None


def test_every_key_that_clients_get_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/speech-protocol.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \|", page.split("## What a result carries")[1].split("## ")[0], re.M)
    assert tuple(documented) == extra.CLIENT_KEYS


@given(st.dictionaries(st.sampled_from(READ), JSON))
def test_any_node_message_can_be_decoded(given_by_node: dict[str, Any]) -> None:
    raw = codec.raw(given_by_node)
    kept = extra.for_clients(raw)
    told = json.loads(bytes(kept)) if kept else {}
    assert told == {key: given_by_node[key] for key in extra.CLIENT_KEYS if given_by_node.get(key) is not None}
    extra.service_timings(raw, None)
    found = extra.detected_language(raw)
    assert found is None or 0 <= found[1] <= 1


UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


@for_each(
    [
        (ids.session_id, r"s-[0-9A-F]{32}"),
        (ids.node_id, r"node-[0-9A-F]{8}"),
        (ids.job_id, rf"job-{UUID4}"),
        (ids.turn_id, UUID4),
        (ids.trace_id, UUID4),
        (ids.resume_token, r"[A-Za-z0-9_-]{32}"),
    ]
)
def test_an_id_has_its_shape_and_is_new_every_time(make: Callable[[], str], shape: str) -> None:
    first, second = make(), make()
    assert re.fullmatch(shape, first)
    assert first != second


@pytest.mark.parametrize(("make", "bits"), [(ids.session_id, 128), (ids.resume_token, 192)])
def test_secret_ids_come_completely_from_the_secrets_module(
    make: Callable[[], str], bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def urandom(size: int) -> bytes:
        drawn.append(size)
        return b"\0" * size

    monkeypatch.setattr("secrets.token_bytes", urandom)
    made = {make(), make()}
    assert len(made) == 1, "nothing else is in it"
    assert drawn == [bits // 8] * 2


@pytest.mark.parametrize(("make", "fixed", "letters"), [(ids.session_id, 2, 16), (ids.resume_token, 0, 64)])
def test_no_letter_of_what_must_not_be_guessed_is_likelier_than_another(
    make: Callable[[], str], fixed: int, letters: int
) -> None:
    """A generator with a fixed part, or a weak one, shows in places where some letters hardly come up."""
    made = [make()[fixed:] for _ in range(letters * 100)]
    assert len(set(made)) == len(made)
    for place in zip(*made, strict=True):
        counts = Counter(place)
        assert len(counts) == letters
        assert max(counts.values()) < 200  # of 100 on average: ten standard deviations


def test_group_and_request_are_named_after_what_they_belong_to() -> None:
    assert ids.group_id("s-1", 3) == "group_s-1_3"
    assert ids.request_id("s-1", 3, "en") == "s-1:3:en"


@for_each(
    [
        ("acme/ann", "acme"),
        ("default/a/b", "default"),
        ("~chat/7", "default"),
        ("~anonymous/local", "default"),
        ("", ""),
    ]
)
def test_chat_users_and_anonymous_clients_belong_to_the_default_tenant(owner: str, tenant: str) -> None:
    assert ids.tenant_of(owner) == tenant


def test_a_node_of_ours_says_what_it_can() -> None:
    assert advanced_features(4) == ["job_ack", "resume", "reattempt", "drain", "slots:4"]
    assert slots_of(advanced_features(4)) == 4
    assert previews_of(advanced_features(4)) == 0
    assert advanced_features(4, previews=2)[-2:] == ["slots:4", "previews:2"]
    assert previews_of(advanced_features(4, previews=2)) == 2
    assert previews_of(["previews:2"]) == 0, "it does not say that it can"


@for_each([None, [], ["slots"], ["slots:"], ["slots:0"], ["slots:-1"], ["slots:x"], ["slots:٣"]])
def test_a_node_that_says_no_sensible_number_says_none(features: list[str] | None) -> None:
    assert slots_of(features) is None


def test_unknown_entry_type_is_refused_in_a_short_sentence() -> None:
    with pytest.raises(ProtocolError, match="Unknown message type: invalid value 'xxx") as refused:
        peer.decode_inbox(b'{"type":"%b"}' % (b"x" * 100_000))
    assert len(refused.value.message) < 300


@for_each(
    [
        (b'{"type":"evict","node_id":"n"}', "Required field `epoch` is missing"),
        (b'{"type":"evict","node_id":"n","epoch":"x"}', "Field `epoch`: expected `int`, got `str`"),
        (b'{"type":"evict","node_id":"n","epoch":' + b"9" * 5000 + b"}", "Field `epoch`: integer value out of range"),
        (b"[" * 100_000, "not a JSON object|nested too deeply|expected `object`"),
        (b"\xff\xfe", "not valid JSON"),
    ]
)
def test_an_entry_that_cannot_be_read_is_refused_with_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        peer.decode_inbox(data)


@for_each([b"{", b"[]", b'{"type":"later"}', b'{"type":"node_lost","node_id":1,"epoch":1}', b"\xff"])
def test_an_announcement_that_cannot_be_read_is_none(data: bytes) -> None:
    assert peer.decode_announcement(data) is None


packets = st.lists(st.binary(min_size=1, max_size=300), max_size=20)


@given(packets)
def test_a_run_has_as_many_packets_as_were_put_in(some: list[bytes]) -> None:
    assert audio.opus_packets(audio.opus_run(some)) == len(some)


@given(packets, packets)
def test_runs_joined_are_a_longer_run(some: list[bytes], more: list[bytes]) -> None:
    joined = audio.opus_run(some) + audio.opus_run(more)
    assert audio.duration_ms("opus", joined, 16000) == 20 * (len(some) + len(more))


@given(packets.filter(bool), st.integers(1, 300))
def test_a_run_cut_within_a_packet_is_refused(some: list[bytes], cut: int) -> None:
    run = audio.opus_run(some)
    with pytest.raises(BadAudio):
        audio.opus_packets(run[: -min(cut, len(some[-1]) + 1)])


@for_each([b"\x00", b"\x00\x00", b"\x01\x00", b"\x01\x00\xf8\x00\x00", bytes(640)])
def test_a_packet_of_no_bytes_is_no_packet(run: bytes) -> None:
    with pytest.raises(BadAudio):
        audio.opus_packets(run)


def test_silence_counts_by_packets_not_by_bytes() -> None:
    assert audio.duration_ms("opus", audio.opus_run([audio.SILENCE_PACKET] * 50), 16000) == 1000


def test_pcm_counts_by_samples_and_rate() -> None:
    assert audio.duration_ms("pcm16", bytes(8192), 16000) == 256
    assert audio.duration_ms("pcm16", bytes(96000), 48000) == 1000
    assert audio.duration_ms("pcm16", b"", 16000) == 0


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(BadAudio):
        audio.duration_ms("pcm16", b"\x00", 16000)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(BadAudio, match="mp3"):
        audio.duration_ms("mp3", b"", 16000)


def test_bad_audio_is_an_invalid_message() -> None:
    with pytest.raises(ProtocolError) as refused:
        audio.opus_packets(b"\x01")
    assert refused.value.code is ErrorCode.INVALID_MESSAGE


@given(st.binary(max_size=500))
def test_base64_goes_there_and_back(data: bytes) -> None:
    assert audio.decode_base64(audio.encode_base64(data)) == data


def test_no_payload_is_no_audio() -> None:
    assert audio.decode_base64(ABSENT) == b""
    assert audio.decode_base64(audio.NO_AUDIO) == b""


def test_base64_that_was_escaped_by_its_writer_is_read() -> None:
    assert audio.decode_base64(Raw(b'"\\/\\/8\\u003d"')) == b"\xff\xff"


@for_each([b'"A"', b'"AA=A"', b'"AAA A"', b'"AA__"', b'"\\n"', '"é"'.encode()])
def test_broken_base64_is_refused(text: bytes) -> None:
    with pytest.raises(BadAudio):
        audio.decode_base64(Raw(text))


u32 = st.integers(0, 2**32 - 1)
session_ids = st.text(max_size=60).filter(lambda text: len(text.encode()) < 256)


@given(session_ids, u32, u32, st.booleans(), st.binary(max_size=100))
def test_a_chunk_frame_goes_there_and_back(session: str, seq: int, ts: int, final: bool, data: bytes) -> None:
    frame = AudioFrame(FrameKind.CHUNK, session, seq, ts, final, data)
    assert audio.parse_frame(audio.build_frame(frame)) == frame


@given(session_ids, u32, u32)
def test_a_final_frame_goes_there_and_back(session: str, seq: int, ts: int) -> None:
    frame = AudioFrame(FrameKind.FINAL, session, seq, ts, True, b"")
    assert audio.parse_frame(audio.build_frame(frame)) == frame


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"\x01" + rest))
def test_any_frame_is_read_or_refused(data: bytes) -> None:
    with suppress(BadAudio):
        audio.parse_frame(data)


@for_each(product([1794767637640, 2**40, 2**40 - 1, 2**40 + 5], [-2000, 0, 1, 30_000, 2**30]))
def test_the_low_half_of_a_time_is_enough_to_know_it(now_ms: int, age_ms: int) -> None:
    then = now_ms - age_ms
    assert audio.full_timestamp(then % 2**32, now_ms) == then


@pytest.mark.parametrize("most", [audio.MAX_CHUNK_PACKETS, audio.MAX_PACKETS])
def test_a_message_with_more_packets_than_the_bound_is_refused_without_counting_them_all(most: int) -> None:
    tiny = b"\x01\x00\xff"
    assert audio.opus_packets(tiny * most, most) == most
    broken_behind_the_bound = tiny * (most + 1) + b"\xff"
    with pytest.raises(BadAudio, match=f"more than {most} Opus packets"):
        audio.opus_packets(broken_behind_the_bound, most)
