"""`dragoman explain`: why a job went to its node, what it waited for, and how it ended."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, AsJson, segment, with_api
from dragoman.cli.output import Failure
from dragoman.cli.room import room_id
from dragoman.visible import visible

WIDTH = 80
LAST = "last"

# The time stamps of a job in their order: field, name, and what the job waited for until then.
STEPS = (
    ("cut_ms", "cut", ""),
    ("created_ms", "recorded", "for a node with a free slot"),
    ("reassigned_ms", "returned for another attempt", ""),
    ("dispatched_ms", "sent to the node", "for a node"),
    ("acked_ms", "acknowledged by the node", "for the acknowledgement"),
    ("started_ms", "started", "in the node's queue"),
    ("finished_ms", "finished", ""),
    ("released_ms", "slot released", ""),
    ("late_ms", "late result dropped", ""),
)
OF_AN_ATTEMPT = frozenset({"acked_ms", "started_ms"})
# What a job waited for until it finished, by the step before.
BEFORE_THE_END = {
    "created_ms": "for a node",
    "reassigned_ms": "for another node",
    "dispatched_ms": "for the node's answer",
    "acked_ms": "in the node's queue",
    "started_ms": "of work",
}

# Why an attempt ended and the job went on.
REASONS = {
    "node_lost": "the node disconnected",
    "ack_timeout": "the node did not acknowledge the job in time",
    "attempt_timeout": "the node did not answer in time",
    "model_not_available": "the node reported a missing model",
    "job_failed": "the node reported a failure",
    "untranslated": "the node returned the text untranslated",
    "assign_bounced": "the node was no longer connected",
    "assign_gone": "the node was no longer connected",
    "assign_full": "the inbox of the node's instance was full",
    "assign_too_large": "the job was too large for the inbox of the node's instance",
}

BY_TURN = {
    "hit": "Chosen: {chosen}, which has the earlier jobs of this turn.",
    "first": "It is the first job of its turn: later jobs of the turn go to {chosen} as well.",
    "offline": "The node of its turn was not connected, so any node could be chosen.",
    "not_in_pool": "The node of its turn was not eligible (not ready, cooling down, or tried before), "
    "so any node could be chosen.",
    "full": "The node of its turn had no slot left, not even a turn's extra one, so any node could be chosen.",
}

OBSTACLES = {
    "draining": "draining",
    "not_ready": "not ready: a service that the job needs is missing",
    "seen": "excluded: this job was tried there before",
    "cooling_down": "cooling down after reporting a missing model",
    "failing": "paused after failing several jobs in a row",
    "refused": "full when the slot was requested",
    "kept_free": "with one free slot, which is left to speech",
    "full": "full",
}

OUTCOMES = {
    "ok": "It was translated",
    "empty": "It contained nothing to translate",
    "failed": "It failed",
    "expired": "It exceeded the time limit of a job",
    "cancelled": "It was cancelled",
}

# By `release_state`: why nothing was sent although the job had a result.
DROPPED = {
    "late": "its utterance had been skipped or had failed already",
    "duplicate": "its utterance had a result already",
    "ahead": "its utterance was too far ahead of the oldest open one",
}


@with_api
def explain(
    api: Api,
    job: Annotated[
        str,
        typer.Argument(
            help="Job id, as in results and logs; `last` is the newest job. Or the id of a caption of a room.",
            metavar="JOB",
        ),
    ],
    room: Annotated[
        str, typer.Option("--room", metavar="ROOM", help="Room of a caption whose speaker has left: its id or link.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show why a job went to its node, what it waited for, and how it ended; of a caption, its recognition and every
    translation."""
    if ":" in job:
        _explain_caption(api, job.strip(), room, as_json=as_json)
        return
    found = api.get(f"/api/v1/jobs/{segment(_newest(api) if job == LAST else job.strip())}")
    if as_json:
        output.as_json(found)
        return
    _print(story(found))


def _print(lines_by_heading: Mapping[str, Sequence[str]]) -> None:
    for heading, lines in lines_by_heading.items():
        for line in lines:
            output.block(textwrap.fill(line, WIDTH, initial_indent=f"{heading:<7}", subsequent_indent=" " * 7))
            heading = ""


def _explain_caption(api: Api, caption: str, room: str, *, as_json: bool) -> None:
    query = f"?room={segment(room_id(api, room))}" if room else ""
    found = api.get(f"/api/v1/captions/{segment(caption)}{query}")
    if as_json:
        output.as_json(found)
        return
    for number, part in enumerate(caption_story(found)):
        if number:
            output.line("")
        _print(part)


def caption_story(found: Mapping[str, Any]) -> Iterator[dict[str, list[str]]]:
    """The caption, its recognition, and each translation; control characters are escaped."""
    text = f"“{found['text']}”" if found["kind"] == "original" else f"lost: {found['text']}"
    who = f"{found['speaker']} in {found['lang']}, {'said' if found['source'] == 'speech' else 'written'}: {text}."
    yield {"Text": [visible(f"{found['caption_id']} in room {found['room_id']}."), visible(who)]}
    if found["source"] == "speech":
        recognition = found["recognition"]
        yield story(recognition) if recognition else {"What": ["Its recognition: no job is recorded any more."]}
    for one in found["translations"]:
        job, target = one["job"], visible(one["lang"])
        ends = {"pending": "is not translated yet", "done": f"“{one['text']}”", "untranslated": f"none: {one['text']}"}
        again = f" Planned {one['planned']} times." if one["planned"] > 1 else ""
        lines = {"Into": [visible(f"{target}: {ends.get(one['state'], one['state'])}.{again}")]}
        by_speech = "Translated by the job that recognised it, or its job is not recorded any more."
        yield lines | (story(job) if job else {"What": [by_speech]})


def _newest(api: Api) -> str:
    """The id of the job of the cluster that was recorded last."""
    found = api.get("/api/v1/jobs?count=1").get("jobs") or []
    if not found:
        raise Failure("No job is recorded: there was none yet, or the last one ended more than an hour ago.")
    return str(found[0]["job_id"])


def story(job: Mapping[str, Any]) -> dict[str, list[str]]:
    """The lines to print, by heading; control characters are escaped."""
    lines = {
        "What": [_what(job)],
        "Where": [
            *_attempts(job),
            " ".join((*_attempt_of_receipt(job), *_where(job.get("receipt") or {}, _pair(job)))),
        ],
        "When": list(_when(job)),
        "End": [_end(job)],
    }
    return {heading: list(map(visible, found)) for heading, found in lines.items()}


def _pair(job: Mapping[str, Any]) -> str:
    return f"{job.get('src_lang', '?')} → {job.get('tgt_lang', '?')}"


def _what(job: Mapping[str, Any]) -> str:
    of = f"utterance {job.get('utterance_index', '?')} of session {job.get('session_id', '?')}"
    if kind := job.get("text_kind"):
        of = "a text of chat" if kind == "chat" else f"a text of {kind} {job.get('session_id', '?')}"
    return f"{job.get('job_id', 'The job')}: {of}, {_pair(job)}; driven by instance {job.get('driver', '?')}."


# ---------------------------------------------------------------- where


def _attempts(job: Mapping[str, Any]) -> Iterator[str]:
    """One line for each attempt before the last one."""
    for past in job.get("attempts") or ():
        sent, ended = (str(past.get(name, "")) for name in ("dispatched_ms", "ended_ms"))
        after = f" after {_ms(int(ended) - int(sent))}" if sent.isdigit() and ended.isdigit() else ""
        where = f"at {past['node_id']} " if past.get("node_id") else ""
        yield f"Attempt {past.get('attempt', '?')} {where}ended{after}: {_reason(past)}."


def _reason(past: Mapping[str, Any]) -> str:
    reason = past.get("reason") or "unknown reason"
    return REASONS.get(reason, reason)


def _attempt_of_receipt(job: Mapping[str, Any]) -> Iterator[str]:
    """Name the attempt that the receipt belongs to: the last one, or the last one that found a node."""
    if "reassigned_ms" not in job:
        return
    attempt = job.get("attempt", "?")
    if job.get("node_id"):
        yield f"Attempt {attempt}:"
    elif (job.get("receipt") or {}).get("chosen") is None:
        yield f"For attempt {attempt}:"
    else:
        yield f"No node was found for attempt {attempt}. Before that:"


def _where(receipt: Mapping[str, Any], pair: str) -> Iterator[str]:
    """Explain the receipt of the last placement."""
    if not receipt:
        yield "No placement was recorded."
        return
    pool, chosen, affinity = receipt.get("pool", 0), receipt.get("chosen"), receipt.get("affinity")
    yield f"{output.many(pool, 'node')} could serve {pair}." if pool else f"No node served {pair}."
    if affinity in BY_TURN:
        yield BY_TURN[affinity].format(chosen=chosen or "the chosen node")
    if chosen is None:
        yield from _obstacles(receipt)
    elif affinity != "hit" and receipt.get("previewed"):
        yield f"Chosen: {chosen}, which has heard the utterance while it was spoken."
    elif affinity != "hit":
        yield _choice(list(receipt.get("drawn") or []), pool, chosen)
    if chosen is not None and receipt.get("text_only"):
        yield f"{chosen} may have no voice for {pair.rpartition(' ')[2]}: the result may be text only."


def _choice(drawn: list[str], pool: int, chosen: str) -> str:
    if len(drawn) < 2:
        return f"Chosen: {chosen}."
    candidates = f"Candidates: {', '.join(drawn)} ({len(drawn)} random of {pool})."
    return f"{candidates} Chosen: {chosen}, best by GPU queue, then free slots."


def _obstacles(receipt: Mapping[str, Any]) -> Iterator[str]:
    names: Mapping[str, str] = receipt.get("names") or {}
    for reason, count in (receipt.get("counts") or {}).items():
        listed = ", ".join(name for name, why in names.items() if why == reason)
        yield f"{count} {OBSTACLES.get(reason, reason)}{f' ({listed})' if listed else ''}."
    yield "No node was chosen."


# ---------------------------------------------------------------- when


def _when(job: Mapping[str, Any]) -> Iterator[str]:
    stamps = _stamps(job)
    if not stamps:
        yield "No times are recorded."
        return
    began, before = stamps[0][1], stamps[0]
    for name, at in stamps:
        waited_for = BEFORE_THE_END.get(before[0], "") if name == "finished_ms" else _STEP[name][2]
        waited = f" ({_ms(at - before[1])} {waited_for})" if waited_for and at > before[1] else ""
        yield f"{'+' + _ms(at - began):>9}  {_STEP[name][1]}{waited}"
        before = name, at


_STEP = {step[0]: step for step in STEPS}


def _stamps(job: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The recorded time stamps in their order.

    Stamps of an attempt before the last one are left out, and a job without a node has no slot to release.
    """
    found = {name: int(job[name]) for name, _, _ in STEPS if str(job.get(name, "")).isdigit()}
    if "created_ms" in found and str(job.get("waited_ms", "")).isdigit():
        found["cut_ms"] = found["created_ms"] - int(job["waited_ms"])
    again = found.get("reassigned_ms")
    if again is not None:
        found = {name: at for name, at in found.items() if name not in OF_AN_ATTEMPT or at >= again}
        if found.get("dispatched_ms", again) < again:
            del found["dispatched_ms"]
    if not job.get("node_id"):
        found.pop("released_ms", None)
    order = list(_STEP)
    return sorted(found.items(), key=lambda item: (item[1], order.index(item[0])))


def _ms(ms: int) -> str:
    return f"{ms} ms" if ms < 10_000 else f"{ms / 1000:.1f} s"


# ---------------------------------------------------------------- the end


def _end(job: Mapping[str, Any]) -> str:
    attempts = int(job["attempt"]) if str(job.get("attempt", "")).isdigit() else 1
    outcome = job.get("outcome")
    if not outcome:
        on = f" at {job['node_id']}" if job.get("node_id") else ""
        return f"It has not ended: {job.get('state', 'unknown state')}{on}, attempt {attempts}."
    code = f" ({job['code']})" if job.get("code") else ""
    where = "by" if outcome in ("ok", "empty") else "at"
    by = f" {where} {job['node_id']}" if job.get("node_id") else ""
    tries = "at the first attempt" if attempts == 1 else f"after {attempts} attempts"
    words = str(job.get("message", "")).rstrip(".")
    why = f" Reason: {words}." if words else ""
    return " ".join((f"{OUTCOMES.get(outcome, outcome)}{by}{code}, {tries}.{why}", *_release(job)))


def _release(job: Mapping[str, Any]) -> Iterator[str]:
    """What the client received."""
    state = job.get("release_state")
    if state == "skipped":
        yield "Its utterance was skipped: no result arrived within the release window after a later utterance."
    elif state == "backfilled":
        yield "The result was sent after a later one, marked as backfilled."
    elif state in DROPPED:
        yield f"The result was dropped: {DROPPED[state]}."
    if "late_ms" in job:
        yield f"A result of {job.get('late_node_id', 'a node')} arrived after that and was dropped."
    if job.get("state") != "RELEASED":
        yield "Its slot is not released yet."
