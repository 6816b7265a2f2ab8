"""`extra` of a job_result: the values that the server reads, and those that clients get.

Nodes may put anything into it, such as diagnostics and names of their services. Clients get only CLIENT_KEYS. Nodes are
not trusted: a value of the wrong type counts as missing.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from dragoman.protocol.fields import ABSENT
from dragoman.protocol.session import ServiceTimings

CLIENT_KEYS = (
    "audio_ms",
    "language",
    "language_probability",
    "language_probabilities",
    "emotion",
    "speech_rate",
    "voice_style",
)
_STEPS = ("asr_ms", "nmt_ms", "tts_ms")
_NULL = b"null"
_LANGUAGE = re.compile(r"[A-Za-z0-9_-]{1,35}")

_encode = msgspec.json.Encoder().encode
_decode_keys = msgspec.json.Decoder(dict[str, Raw]).decode


class _Read(msgspec.Struct):
    language: Any = None
    language_probability: Any = None
    language_probabilities: Any = None
    service_timings: Any = None
    asr_ms: Any = None
    nmt_ms: Any = None
    tts_ms: Any = None


_decode_read = msgspec.json.Decoder(_Read).decode


def for_clients(extra: Raw) -> Raw:
    """The documented keys that have a value; ABSENT if there is none."""
    if not extra:
        return ABSENT
    try:
        given = _decode_keys(extra)
    except (ValueError, RecursionError):
        return ABSENT
    kept = {key: given[key] for key in CLIENT_KEYS if key in given and bytes(given[key]) != _NULL}
    return Raw(_encode(kept)) if kept else ABSENT


def detected_language(extra: Raw) -> tuple[str, float] | None:
    """The language a node recognised and how sure it is: `language`, or the likeliest of `language_probabilities`."""
    read = _read(extra)
    given = read.language_probabilities if isinstance(read.language_probabilities, Mapping) else {}
    likely = {str(lang): p for lang, chance in given.items() if (p := _number(chance, at_most=1.0)) is not None}
    lang = read.language if isinstance(read.language, str) else max(likely, key=lambda one: likely[one], default="")
    if not _LANGUAGE.fullmatch(lang):
        return None
    probability = _number(read.language_probability, at_most=1.0)
    return lang, likely.get(lang, 1.0) if probability is None else probability


def service_timings(extra: Raw, total_ms: float | None) -> ServiceTimings | None:
    """The time of each step, which nodes put into `extra` itself or into its `service_timings`; None if all are
    unknown."""
    read = _read(extra)
    nested = read.service_timings if isinstance(read.service_timings, Mapping) else {}
    steps = {name: _number(getattr(read, name)) for name in _STEPS}
    steps = {name: _number(nested.get(name)) if ms is None else ms for name, ms in steps.items()}
    known = {name: ms for name, ms in {**steps, "total_ms": total_ms}.items() if ms is not None}
    return ServiceTimings(**known) if known else None


def _read(extra: Raw) -> _Read:
    try:
        return _decode_read(extra) if extra else _Read()
    except (ValueError, RecursionError):
        return _Read()


def _number(value: Any, at_most: float = 1e9) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= at_most else None
