"""`dragoman explain`: what became of a job, in words: why it went where, what it waited for, how it ended."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, Token, Url
from dragoman.cli.failure import Failure
from dragoman.cli.settings import ConfigFile, Overrides, settings
from dragoman.visible import visible

WIDTH = 80
LAST = "last"

# The order of a life; each with what it is, and what was waited for until it came.
STEPS = (
    ("cut_ms", "cut", ""),
    ("created_ms", "recorded", "for a node with a free slot"),
    ("reassigned_ms", "taken back for another attempt", ""),
    ("dispatched_ms", "sent to its node", "for a node"),
    ("acked_ms", "taken by the node", "for the node's word"),
    ("started_ms", "begun", "in the node's queue"),
    ("finished_ms", "ended", ""),
    ("released_ms", "slot given back", ""),
    ("late_ms", "result received too late, dropped", ""),
)
OF_AN_ATTEMPT = frozenset({"acked_ms", "started_ms"})
# What a job waited for until it ended, by the step before.
BEFORE_THE_END = {
    "created_ms": "for a node",
    "reassigned_ms": "for another node",
    "dispatched_ms": "for the node's answer",
    "acked_ms": "in the node's queue",
    "started_ms": "for the work itself",
}

# Why an attempt ended and the job went on.
REASONS = {
    "node_lost": "the node was lost",
    "ack_timeout": "the node did not acknowledge the job in time",
    "attempt_timeout": "the node did not answer in time",
    "model_not_available": "the node said that a model is missing",
    "job_failed": "the node failed on it",
    "untranslated": "the node gave it back untranslated",
    "assign_bounced": "the node was not connected any more",
    "assign_gone": "the node was not connected any more",
    "assign_full": "the inbox of the node's instance was full",
    "assign_too_large": "the job was too large for the inbox of the node's instance",
}

BY_TURN = {
    "hit": "Its turn was on {chosen} already, so it went there too.",
    "first": "It is the first of a turn that goes on: what follows of the turn goes to {chosen} as well.",
    "offline": "The node of its turn was gone, so it was placed freely.",
    "not_in_pool": "The node of its turn could not have it (not ready, cooling down, or had it before), "
    "so it was placed freely.",
    "full": "The node of its turn was full beyond what a turn may exceed, so it was placed freely.",
}

OBSTACLES = {
    "draining": "leaving",
    "not_ready": "not ready for what the job needs",
    "seen": "out, having had this job before",
    "cooling_down": "cooling down after saying that a model is missing",
    "failing": "paused after failing several jobs in a row",
    "refused": "full when asked",
    "full": "full",
}

OUTCOMES = {
    "ok": "It was translated",
    "empty": "There was nothing in it to translate",
    "failed": "It failed",
    "expired": "It took longer than a job may",
    "cancelled": "It was cancelled",
}

# By `release_state`: why nothing was sent although the job had a result.
DROPPED = {
    "late": "its utterance had been skipped or had failed before",
    "duplicate": "its utterance had a result before",
    "ahead": "its utterance was too far ahead of the oldest open one",
}


def explain(
    ctx: typer.Context,
    job: Annotated[
        str,
        typer.Argument(help="Id of the job, as results and logs name it; or last, for the newest.", metavar="JOB"),
    ],
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the API answers.")] = False,
) -> None:
    """Tell why a job went where it went, what it waited for, and how it ended."""
    api = Api(settings(ctx, config, override).config, url, token)
    found = api.get(f"/api/v1/jobs/{quote(_newest(api) if job == LAST else job.strip(), safe='')}")
    if as_json:
        output.as_json(found, indent=2)
        return
    for heading, lines in story(found).items():
        for line in lines:
            output.block(textwrap.fill(line, WIDTH, initial_indent=f"{heading:<7}", subsequent_indent=" " * 7))
            heading = ""


def _newest(api: Api) -> str:
    """Of the whole cluster, by when it was recorded."""
    found = api.get("/api/v1/jobs?count=1").get("jobs") or []
    if not found:
        raise Failure("There is no job yet, or the last one ended more than an hour ago.")
    return str(found[0]["job_id"])


def story(job: Mapping[str, Any]) -> dict[str, list[str]]:
    """Lines by heading, safe to show."""
    lines = {
        "What": [_what(job)],
        "Where": [*_attempts(job), " ".join((*_not_again(job), *_where(job.get("receipt") or {}, _pair(job))))],
        "When": list(_when(job)),
        "End": [_end(job)],
    }
    return {heading: list(map(visible, found)) for heading, found in lines.items()}


def _pair(job: Mapping[str, Any]) -> str:
    return f"{job.get('src_lang', '?')} → {job.get('tgt_lang', '?')}"


def _what(job: Mapping[str, Any]) -> str:
    of = f"utterance {job.get('utterance_index', '?')} of session {job.get('session_id', '?')}"
    return f"{job.get('job_id', 'The job')}: {of}, {_pair(job)}; driven by instance {job.get('driver', '?')}."


# ---------------------------------------------------------------- where


def _attempts(job: Mapping[str, Any]) -> Iterator[str]:
    """Those that ended before the last one."""
    for past in job.get("attempts") or ():
        sent, ended = (str(past.get(name, "")) for name in ("dispatched_ms", "ended_ms"))
        after = f" after {_ms(int(ended) - int(sent))}" if sent.isdigit() and ended.isdigit() else ""
        where = f"at {past['node_id']} " if past.get("node_id") else ""
        yield f"Attempt {past.get('attempt', '?')} {where}ended{after}: {_reason(past)}."


def _reason(past: Mapping[str, Any]) -> str:
    reason = past.get("reason") or "for an unknown reason"
    return REASONS.get(reason, reason)


def _not_again(job: Mapping[str, Any]) -> Iterator[str]:
    """Of which attempt the receipt is: of the last one, or of one before that was placed."""
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
    """From the receipt of the last placement."""
    if not receipt:
        yield "No placement was recorded."
        return
    pool, chosen, affinity = receipt.get("pool", 0), receipt.get("chosen"), receipt.get("affinity")
    yield f"{_count(pool, 'node')} could serve {pair}." if pool else f"No node served {pair}."
    if affinity in BY_TURN:
        yield BY_TURN[affinity].format(chosen=chosen or "the node it finds")
    if chosen is None:
        yield from _obstacles(receipt)
    elif affinity != "hit":
        yield _choice(list(receipt.get("drawn") or []), chosen)
    if chosen is not None and receipt.get("text_only"):
        yield f"{chosen} is not known to speak {pair.rpartition(' ')[2]}: the result may be text only."


def _choice(drawn: list[str], chosen: str) -> str:
    if len(drawn) < 2:
        return f"It went to {chosen}."
    return f"Of {_names(drawn)}, drawn at random, {chosen} was the best that could take it."


def _obstacles(receipt: Mapping[str, Any]) -> Iterator[str]:
    names: Mapping[str, str] = receipt.get("names") or {}
    for reason, count in (receipt.get("counts") or {}).items():
        who = [name for name, why in names.items() if why == reason]
        yield f"{count} {'was' if count == 1 else 'were'} {OBSTACLES.get(reason, reason)}{_in_brackets(who)}."
    yield "So nobody had it."


# ---------------------------------------------------------------- when


def _when(job: Mapping[str, Any]) -> Iterator[str]:
    stamps = _stamps(job)
    if not stamps:
        yield "Nothing is recorded of its times."
        return
    began, before = stamps[0][1], stamps[0]
    for name, at in stamps:
        waited_for = BEFORE_THE_END.get(before[0], "") if name == "finished_ms" else _STEP[name][2]
        waited = f" ({_ms(at - before[1])} {waited_for})" if waited_for and at > before[1] else ""
        yield f"{'+' + _ms(at - began):>9}  {_STEP[name][1]}{waited}"
        before = name, at


_STEP = {step[0]: step for step in STEPS}


def _stamps(job: Mapping[str, Any]) -> list[tuple[str, int]]:
    """In the order they happened. Of an attempt that was taken back, nothing is told but that it was. A job that ended
    without a node has no slot to give back."""
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
        return f"It has not ended: {job.get('state', 'in an unknown state')}{on}, attempt {attempts}."
    code = f" ({job['code']})" if job.get("code") else ""
    where = "by" if outcome in ("ok", "empty") else "at"
    by = f" {where} {job['node_id']}" if job.get("node_id") else ""
    tries = "at the first attempt" if attempts == 1 else f"after {attempts} attempts"
    words = str(job.get("message", "")).rstrip(".")
    why = f" The reason: {words}." if words else ""
    return " ".join((f"{OUTCOMES.get(outcome, outcome)}{by}{code}, {tries}.{why}", *_release(job)))


def _release(job: Mapping[str, Any]) -> Iterator[str]:
    """What the client got of it."""
    state = job.get("release_state")
    if state == "skipped":
        yield "Its utterance was skipped: a later one was sent, and this one had no result within the release window."
    elif state == "backfilled":
        yield "The result was sent after a later one, marked backfilled."
    elif state in DROPPED:
        yield f"The result was dropped: {DROPPED[state]}."
    if "late_ms" in job:
        yield f"A result of {job.get('late_node_id', 'a node')} came after that, and was dropped."
    if job.get("state") != "RELEASED":
        yield "Its slot has not been given back yet."


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _names(names: list[str]) -> str:
    return ", ".join(names)


def _in_brackets(names: list[str]) -> str:
    return f" ({_names(names)})" if names else ""
