"""The verdict over one part of a run: ledgers, recordings and facts in, every broken promise out, in words. Pure.

A promise is one function, in `chat_ledger`, `check_speech`, `check_nodes` or `check_stores`; this puts them together
and counts. What Redis may have forgotten by its durability class is counted apart, never passed over.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.tools.verify import check_nodes, check_stores
from dragoman.tools.verify.chat_ledger import ChatLedger, Entry
from dragoman.tools.verify.check_speech import Ends, SessionCheck
from dragoman.tools.verify.facts import Facts
from dragoman.tools.verify.findings import Disturbance, Finding, Forgiven, Rules
from dragoman.tools.verify.node_events import Kind, NodeEvent
from dragoman.tools.verify.recordings import Recordings
from dragoman.tools.verify.speech_ledger import SpeechLedger

__all__ = ["Disturbance", "Finding", "Forgiven", "Rules", "Verdict", "judge"]

LOST = frozenset({"lost", "false saved", "untold", "undelivered", "unanswered"})
DOUBLED = frozenset({"doubled", "duplicate", "settled twice", "sent again", "started twice", "saved twice"})
OUT_OF_ORDER = frozenset({"reorder", "held back", "accepted after saved", "ts went back"})
LATE = frozenset({"late"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """`told`: messages accepted, or saved where that is the only word, and utterances cut; `kept`: those that ended as
    promised."""

    told: int
    kept: int
    lost: int
    forgiven_lost: int
    doubled: int
    out_of_order: int
    late: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()  # worth knowing, and no broken promise

    @property
    def ok(self) -> bool:
        return not self.findings


def judge(
    chat: ChatLedger,
    speech: SpeechLedger,
    recorded: Sequence[NodeEvent],
    facts: Facts,
    forgiven: Forgiven | None = None,
    *,
    before: Facts | None = None,
    rules: Rules | None = None,
) -> Verdict:
    """`before`: the stores at rest before this part began; without it, they are taken to have been in order."""
    forgiven, before, rules = forgiven or Forgiven(), before or Facts(), rules or Rules()
    # Silence that no node had heard is not waited for, and may be cut after the stores were looked at.
    late = {event.job for event in recorded if event.kind is Kind.GIVEN and event.at > facts.looked_at}
    late -= {event.job for event in recorded if event.kind is Kind.GIVEN and event.at <= facts.looked_at}
    seen = [event for event in recorded if not event.job or event.job not in late]
    recordings = Recordings([event for event in seen if not event.session or event.session in speech.sessions])
    found = [*_chat(chat, facts, forgiven, rules)]
    ends = Ends()
    jobs = {name: job for name, job in facts.jobs.items() if job.session in speech.sessions}
    for spoken in speech.sessions.values():
        fact = facts.sessions.get(spoken.id)
        check = SessionCheck(spoken, fact, recordings, forgiven, rules, ends, jobs, facts.looked_at)
        found += check.findings()
    found += check_nodes.findings(recordings, jobs, forgiven, rules)
    found += check_stores.findings(facts, before, speech, forgiven)
    if not chat.told and not ends.told:
        found.append(Finding("nothing told", "nobody was promised anything, so nothing was put to the test"))
    return _counted(chat, speech, ends, facts, before, forgiven, found)


def _chat(chat: ChatLedger, facts: Facts, forgiven: Forgiven, rules: Rules) -> list[Finding]:
    def may_be_lost(entry: Entry) -> bool:
        return forgiven.may_be_forgotten(entry.accepted_at)

    broken = chat.check(facts.rows, facts.dead, forgiven=may_be_lost, ack_grace_s=rules.ack_grace_s)
    return [Finding(*sentence.split(": ", 1)) for sentence in broken]


def _counted(
    chat: ChatLedger,
    speech: SpeechLedger,
    ends: Ends,
    facts: Facts,
    before: Facts,
    forgiven: Forgiven,
    found: list[Finding],
) -> Verdict:
    kinds = Counter(finding.kind for finding in found)

    def count(several: frozenset[str]) -> int:
        return sum(kinds[kind] for kind in several)

    forgotten = tuple(check_stores.forgotten(facts, before, forgiven))
    return Verdict(
        told=chat.told + ends.told,
        kept=chat.kept(facts.rows) + ends.kept,
        lost=count(LOST),
        forgiven_lost=len(chat.lost) + ends.forgiven,
        doubled=count(DOUBLED),
        out_of_order=count(OUT_OF_ORDER),
        late=count(LATE),
        findings=tuple(found),
        notes=(*_notes(ends, speech, facts, before), *(f"forgotten by Redis: {sentence}" for sentence in forgotten)),
    )


def _notes(ends: Ends, speech: SpeechLedger, facts: Facts, before: Facts) -> list[str]:
    notes = [f"{ends.skipped} utterances were skipped"] * bool(ends.skipped)
    codes = Counter(failure.code for one in speech.sessions.values() for failure in one.failures)
    notes += [f"{count} utterances failed with {code}, and their speakers were told" for code, count in codes.items()]
    return notes + [f"dead letter: {letter}" for letter in facts.letters if letter not in before.letters]
