"""The transcripts of the speech and node protocols use types and fields that exist.

A transcript may leave out fields (`…` between two of them) and shorten values; what is whole is decoded.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from dragoman.protocol.chat import Frame, FrameType, decode_frame, decode_server_frame
from dragoman.protocol.node import NodeMessage, ToNode
from dragoman.protocol.session import ClientMessage, ServerMessage
from support.tables import for_each

REFERENCE = Path(__file__).resolve().parents[3] / "docs/reference"
SAID = {kind.__struct_config__.tag: kind for kind in (*get_args(ClientMessage), *get_args(NodeMessage))}
HEARD = {kind.__struct_config__.tag: kind for kind in (*get_args(ToNode), *get_args(ServerMessage))}
LINE = re.compile(r"^([<>]) (\{.*\})$", re.M)


def lines() -> Iterator[tuple[str, str]]:
    for page in ("speech-protocol.md", "node-protocol.md"):
        text = (REFERENCE / page).read_text(encoding="utf-8")
        for section in re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S):
            yield from LINE.findall(section)


def fields(kind: Any) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)} | {"type"}


@for_each(list(lines()))
def test_a_line_has_a_type_and_fields_that_exist(way: str, line: str) -> None:
    known = SAID if way == ">" else HEARD
    said = re.match(r'\{"type":"(\w+)"', line)
    assert said is not None
    if said[1] == "sing":  # what nobody understands
        return
    top = re.sub(r"(?<=:)\[?\{(?:[^{}]|\{[^{}]*\})*\}\]?", "{}", re.sub(r"\},\{", ",", line))  # not of objects inside
    assert set(re.findall(r'"(\w+)":', top)) <= fields(known[said[1]])


@for_each([line for way, line in lines() if way == ">" and "sing" not in line])
def test_complete_transcript_is_parsed(line: str) -> None:
    whole = re.sub(r"[A-Za-z0-9+/]+…", "AwD4//4=", line)
    if "…" not in whole:
        msgspec.json.decode(whole, type=SAID[json.loads(whole)["type"]])


def test_there_are_transcripts_of_both_kinds_of_peers() -> None:
    types = {re.findall(r'"type":"(\w+)"', line)[0] for _, line in lines()}
    assert {
        "session_init",
        "translation_result",
        "session_resume",
        "node_register",
        "job_assign",
        "job_result",
    } <= types


@for_each(re.findall(r"^([→←]) (\{.*\})$", (REFERENCE / "chat-protocol.md").read_text(encoding="utf-8"), re.M))
def test_a_frame_of_chat_has_fields_that_exist(direction: str, line: str) -> None:
    frame = line.replace(":…", ":1")
    decoded: Frame = decode_frame(frame.encode()) if direction == "→" else decode_server_frame(frame.encode())
    assert decoded.type in set(FrameType)
    assert all(getattr(decoded, name.replace("from", "from_")) is not None for name in json.loads(frame))
