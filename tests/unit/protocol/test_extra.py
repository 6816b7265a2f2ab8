"""`extra` of a job_result: clients get the documented keys alone, and a node's wrong value breaks nothing."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocol import codec, extra
from dragoman.protocol.fields import ABSENT
from dragoman.protocol.session import ServiceTimings

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
READ = (*extra.CLIENT_KEYS, "service_timings", "asr_ms", "nmt_ms", "tts_ms", "assignedNodeId")


def test_clients_get_the_documented_keys_alone_and_none_that_is_null() -> None:
    given_by_node = {"language_probability": 0.98, "emotion": None, "assignedNodeId": "n", "raw_asr_text": "secret"}
    assert json.loads(bytes(extra.for_clients(codec.raw(given_by_node)))) == {"language_probability": 0.98}


@pytest.mark.parametrize("given_by_node", [ABSENT, codec.raw({}), codec.raw({"assignedNodeId": "n"})])
def test_clients_get_no_extra_if_no_documented_key_has_a_value(given_by_node: msgspec.Raw) -> None:
    assert extra.for_clients(given_by_node) is ABSENT


@pytest.mark.parametrize(
    ("given_by_node", "found"),
    [
        ({"language": "de", "language_probability": 0.7}, ("de", 0.7)),
        ({"language": "de", "language_probabilities": {"de": 0.6, "en": 0.4}}, ("de", 0.6)),
        ({"language": "de"}, ("de", 1.0)),
        ({"language_probability": 0.98, "language_probabilities": {"zh": 0.98, "en": 0.01}}, ("zh", 0.98)),
        ({"language_probability": 0.98}, None),
        ({"language": "d e"}, None),
        ({"language": 5, "language_probabilities": ["zh"]}, None),
        ({"language_probabilities": {"zh": "much"}}, None),
    ],
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
def test_whatever_a_node_sends_can_be_read(given_by_node: dict[str, Any]) -> None:
    raw = codec.raw(given_by_node)
    kept = extra.for_clients(raw)
    told = json.loads(bytes(kept)) if kept else {}
    assert told == {key: given_by_node[key] for key in extra.CLIENT_KEYS if given_by_node.get(key) is not None}
    extra.service_timings(raw, None)
    found = extra.detected_language(raw)
    assert found is None or 0 <= found[1] <= 1
