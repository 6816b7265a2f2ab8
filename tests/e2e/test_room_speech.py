"""What is said aloud in a room: recognised once, read by everybody in their own language, on any instances."""

import asyncio
import struct
import sys
from collections.abc import Sequence
from typing import Any

import pybase64

from dragoman.client import Failed
from dragoman.domain.rooms import EntryKind
from dragoman.protocol.rooms import Caption, CaptionPartial, RoomMessage, RoomSettings
from support.raw_node import Message, RawNode, Work, silent
from support.redis_servers import LONG_CLUSTER
from support.rooms import FEATURES, Member, languages, room, translates, translation, translator
from support.speech import TIMEOUT_S, Harness, Scenario, Talker, module_harness
from support.voice import vowel
from support.waiting import wait_until

A, B = 0, 1
RATE = 16_000
PCM: dict[str, Any] = {"audio_format": "pcm16", "sample_rate": RATE, "vad": False}  # what is sent is no voice
FLAGS: dict[str, object] = {
    "rooms__translate_timeout_ms": 5000,
    "rooms__captions_per_minute": 0,
    "speech__release__ack_timeout_ms": 2500,
}
FIRST_FOREIGN = 1_000_000_000
SOUND = pybase64.b64encode(bytes(640)).decode()
harness = module_harness(FLAGS, FLAGS, on=("single", LONG_CLUSTER))


async def says(member: Member, ms: int = 400, *, final: bool = True) -> None:
    """Loud enough not to be taken for silence."""
    await member.room.send(b"\x00\x20\x00\xe0" * (RATE * ms // 2000), final=final)


def said(job: Message) -> str:
    return f"said {job['utterance_index']} in {job['src_lang']}"


async def recognises(node: RawNode, job: Message) -> None:
    """Only what the pipeline asks for is answered; the text names the utterance."""
    if job.get("text"):
        await translates(node, job)
    else:
        whole = translation(job["tgt_lang"], said(job)) if job["pipeline"]["use_nmt"] else ""
        await node.answer(job, text_asr=said(job), text_translated=whole)


async def recogniser(
    scenario: Scenario, langs: Sequence[str], at: int = A, work: Work = recognises, more: Sequence[str] = ()
) -> RawNode:
    return await scenario.node(at, languages=langs, work=work, features=(*FEATURES, *more))


class Partials:
    """The partial texts that a member is shown, and whether its caption was there before."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.after_caption: list[str] = []
        self._captions: set[str] = set()

    def __call__(self, message: RoomMessage) -> None:
        if isinstance(message, CaptionPartial):
            self.texts.append(message.text)
            self.after_caption += [message.text] * (message.caption_id in self._captions)
        elif hasattr(message, "caption_id"):
            self._captions.add(message.caption_id)


async def test_what_one_member_says_another_reads_in_its_language_on_another_instance(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en], A)
        await translator(scenario, [en, es], B)
        ann = await met.join(en, A, **PCM)
        berta = await met.join(es, B)
        await says(ann)
        seen = await berta.shows(translation(es, f"said 0 in {en}"))
        assert (seen.speaker, seen.original, seen.id) == ("member 0", f"said 0 in {en}", f"{ann.room.session_id}:u0")
        await ann.shows(f"said 0 in {en}")
        await met.check(1)
        assert [job["pipeline"]["use_nmt"] for job in node.jobs] == [False]


async def test_four_members_in_three_languages_read_everything_and_each_utterance_is_recognised_once(
    harness: Harness,
) -> None:
    en, es, fr = langs = languages(3)
    async with room(harness) as (scenario, met):
        nodes = [await recogniser(scenario, langs, at) for at in (A, B)]
        await translator(scenario, langs, A)
        await translator(scenario, langs, B)
        members = [await met.join(lang, at, **PCM) for lang, at in ((en, A), (es, B), (fr, A), (en, B))]
        for _ in range(3):
            await asyncio.gather(*(says(one) for one in members))
        log = await met.check(12)
        assert sum(entry.kind is EntryKind.ORIGINAL for entry in log) == 12
        assert sum(entry.kind is EntryKind.TRANSLATION for entry in log) == 24
        recognised = [(job["session_id"], job["utterance_index"]) for node in nodes for job in node.jobs]
        assert len(recognised) == len(set(recognised)) == 12


async def test_language_that_only_a_whole_node_serves_is_translated_by_the_job_of_the_utterance(
    harness: Harness,
) -> None:
    en, es, fr, nowhere = languages(4)
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en, fr], B)
        await translator(scenario, [en, es], A)
        ann, berta = await met.join(en, A, **PCM), await met.join(es, B)
        carla, alone = await met.join(fr, A), await met.join(nowhere, A)
        await wait_until(lambda: ann.room.count == 4, TIMEOUT_S)
        await says(ann)
        await carla.shows(translation(fr, f"said 0 in {en}"))
        await berta.shows(translation(es, f"said 0 in {en}"))
        assert (await alone.until(lambda caption: bool(caption.untranslated))).untranslated == "no_node"
        assert [(job["tgt_lang"], job["pipeline"]["use_nmt"]) for job in node.jobs] == [(fr, True)]
        await met.check(1)


async def test_detected_language_decides_what_is_translated_when_a_member_speaks_any(harness: Harness) -> None:
    en, es = languages(2)

    async def detects(node: RawNode, job: Message) -> None:
        await node.answer(job, text_asr="hola", text_translated="", extra={"language": es})

    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en, es], A, work=detects)
        await translator(scenario, [en, es], B)
        ann = await met.join("auto", A, hears=en, **PCM)
        berta = await met.join(es, B)
        await says(ann)
        seen = await ann.shows(translation(en, "hola"))
        assert (seen.lang, seen.translated_into) == (es, en)
        await berta.shows("hola")
        assert (await node.job())["src_lang"] == "auto"
        await met.check(1)


async def test_every_member_is_informed_when_an_utterance_fails(harness: Harness) -> None:
    en, es = languages(2)
    failures: list[Any] = []

    async def fails(node: RawNode, job: Message) -> None:
        await node.fail(job, "INVALID_MESSAGE")

    async with room(harness) as (scenario, met):
        await recogniser(scenario, [en], work=fails)
        ann = await met.join(en, A, **PCM, on_event=failures.append)
        berta = await met.join(es, B)
        await says(ann)
        seen = await berta.until(lambda caption: bool(caption.lost))
        assert (seen.id, seen.speaker, seen.lost) == (f"{ann.room.session_id}:u0", "member 0", "failed")
        await ann.until(lambda caption: bool(caption.lost))
        await wait_until(lambda: any(isinstance(one, Failed) for one in failures), TIMEOUT_S)
        await met.check(1)


async def test_empty_utterance_is_no_caption(harness: Harness) -> None:
    (en,) = languages(1)

    async def hears_nothing_first(node: RawNode, job: Message) -> None:
        text = said(job) if job["utterance_index"] else ""
        await node.answer(job, text_asr=text, text_translated="", extra={} if text else {"reason": "ASR_EMPTY"})

    async with room(harness) as (scenario, met):
        await recogniser(scenario, [en], work=hears_nothing_first)
        ann = await met.join(en, A, **PCM)
        for _ in range(2):
            await says(ann)
        await ann.shows(f"said 1 in {en}")
        assert [entry.caption for entry in await met.check(1)] == [f"{ann.room.session_id}:u1"]


async def test_caption_that_is_recognised_after_a_later_one_is_marked(harness: Harness) -> None:
    (en,) = languages(1)
    marks: dict[str, bool | None] = {}

    def note(message: RoomMessage) -> None:
        if isinstance(message, Caption):
            marks[message.text] = message.backfilled

    async def not_the_first(node: RawNode, job: Message) -> None:
        await (recognises(node, job) if job["utterance_index"] else node.ack(job))

    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en], work=not_the_first)
        ann = await met.join(en, A, **PCM, on_message=note)
        for _ in range(2):
            await says(ann)
        await ann.shows(f"said 1 in {en}")
        await recognises(node, await node.job())
        await met.check(2)
        assert marks == {f"said 1 in {en}": None, f"said 0 in {en}": True}


async def test_skipped_utterance_is_lost_in_the_log_and_its_late_result_changes_nothing(harness: Harness) -> None:
    (en,) = languages(1)

    async def never_the_first(node: RawNode, job: Message) -> None:
        await (recognises(node, job) if job["utterance_index"] else node.ack(job))

    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en], work=never_the_first)
        ann, berta = await met.join(en, A, **PCM), await met.join(en, B)
        for _ in range(2):
            await says(ann)
        assert (await berta.until(lambda caption: bool(caption.lost))).lost == "skipped"
        await recognises(node, await node.job())
        await says(ann)
        await berta.shows(f"said 2 in {en}")
        log = await met.check(3)
        assert [entry.kind for entry in log if entry.caption.endswith(":u0")] == [EntryKind.LOST]


async def test_member_that_wants_voice_gets_the_sound_and_no_other(harness: Harness) -> None:
    en, es = languages(2)

    async def speaks(node: RawNode, job: Message) -> None:
        sound = SOUND if job["pipeline"]["use_tts"] else ""
        text = translation(job["tgt_lang"], job["text"])
        await node.answer(job, text_asr="", text_translated=text, tts_audio=sound, tts_format="pcm16")

    async with room(harness) as (scenario, met):
        await recogniser(scenario, [en], A)
        node = await translator(scenario, [en, es], A, speaks)
        ann = await met.join(en, A, **PCM)
        loud, quiet = await met.join(es, B, voice=True), await met.join(es, B)
        await says(ann)
        seen = await loud.shows(translation(es, f"said 0 in {en}"))
        assert (seen.audio, seen.audio_format) == (bytes(640), "pcm16")
        assert (await quiet.shows(translation(es, f"said 0 in {en}"))).audio == b""
        assert (await node.job())["pipeline"]["use_tts"] is True
        late = await met.join(es, B, voice=True)
        assert (await late.shows(translation(es, f"said 0 in {en}"))).audio == b""
        await met.check(1)


async def test_words_are_shown_while_they_are_recognised_to_those_that_hear_the_language(harness: Harness) -> None:
    en, es = languages(2)
    shown = [Partials() for _ in range(3)]

    async def slowly(node: RawNode, job: Message) -> None:
        for count in range(1, 41):
            await node.partial(job, f"word {count}")
            await asyncio.sleep(0.02)
        await recognises(node, job)

    async with room(harness) as (scenario, met):
        await recogniser(scenario, [en], A, work=slowly)
        await translator(scenario, [en, es], A)
        ann = await met.join(en, A, **PCM, on_message=shown[0])
        await met.join(en, B, on_message=shown[1])
        await met.join(es, B, on_message=shown[2])
        await wait_until(lambda: ann.room.count == 3, TIMEOUT_S)
        await says(ann)
        await met.check(1)
        for one in shown[:2]:
            assert "word 1" in one.texts
            assert 2 <= len(one.texts) < 20  # three a second
            assert not one.after_caption
        assert not shown[2].texts


async def test_words_are_shown_while_they_are_spoken_and_before_there_is_a_job(harness: Harness) -> None:
    from dragoman.protocol.rooms import RoomSettings

    en, es = languages(2)
    shown = [Partials() for _ in range(3)]
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en], A, more=("preview", "previews:1"))
        await translator(scenario, [en, es], A)
        settings = RoomSettings(vocabulary=["Dragoman"])
        ann = await met.join(en, B, **PCM, on_message=shown[0], settings=settings)
        await met.join(en, A, on_message=shown[1])
        await met.join(es, A, on_message=shown[2])
        await wait_until(lambda: ann.room.count == 3, TIMEOUT_S)
        await says(ann, final=False)
        opening = await node.until("preview_open")
        assert (opening["src_lang"], opening["vocabulary"]) == (en, ["Dragoman"])
        about = {"preview_id": opening["preview_id"], "node_id": node.id, "trace_id": opening["trace_id"]}
        where = {"session_id": opening["session_id"], "utterance_index": opening["utterance_index"]}
        await node.say("asr_partial", text="we have", is_final=False, **about, **where)
        for one in shown[:2]:
            await wait_until(lambda one=one: one.texts == ["we have"], TIMEOUT_S)  # type: ignore[misc]
        assert not node.jobs
        await says(ann)
        await met.check(1)
        assert not any(one.after_caption for one in shown)
        assert not shown[2].texts


async def test_room_tells_nodes_its_vocabulary_and_what_the_speaker_said_before(harness: Harness) -> None:
    (en,) = languages(1)
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en])
        ann = await met.join(en, A, **PCM, settings=RoomSettings(vocabulary=["Dragoman"]))
        await says(ann)
        await ann.shows(f"said 0 in {en}")
        await says(ann)
        job = await node.job(2)
        assert (job["vocabulary"], job["context_text"]) == (["Dragoman"], f"said 0 in {en}")


async def test_existing_clients_and_new_ones_speak_and_read_in_one_room(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await recogniser(scenario, [en, es], A)
        await translator(scenario, [en, es], B)
        berta = await met.join(es, B, **PCM)
        old, other = [await scenario.talker(at, src_lang=en, tgt_lang=es) for at in (A, B)]
        for talker in (old, other):
            await talker.say("room_join", room_code=berta.room.code, display_name="Old")
            await talker.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        await wait_until(lambda: berta.room.count == 3, TIMEOUT_S)
        for number in range(2):
            await old.speak(final=True)
            await berta.shows(translation(es, f"said {number} in {en}"))
            result = await result_of(other)
            assert (result["session_id"], result["text_translated"]) == (old.session_id, f"said {number} in {en}")
            assert (result["utterance_index"], result["tts_format"]) == (FIRST_FOREIGN + number, "pcm16")
        await says(berta)
        for talker, index in ((old, 0), (other, 2)):
            result = await result_of(talker)
            assert (result["text_asr"], result["text_translated"]) == (
                f"said 0 in {es}",
                translation(en, f"said 0 in {es}"),
            )
            assert result["utterance_index"] == FIRST_FOREIGN + index
        await old.pong()
        assert not [m for m in old.heard if m["type"] in ("translation_result", "caption", "caption_partial")]


async def result_of(talker: Talker) -> Message:
    return await talker.until(lambda m: m["type"] == "translation_result", TIMEOUT_S)


async def test_members_on_different_instances_exchange_raw_voice(harness: Harness) -> None:
    (en,) = languages(1)
    async with room(harness) as (scenario, met):
        berta = await met.join(en, A)
        one, other = [await scenario.talker(at, src_lang=en, tgt_lang=en) for at in (A, B)]
        for talker in (one, other):
            await talker.say("room_join", room_code=berta.room.code)
            await talker.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        wish = {"target_session_id": other.session_id, "receive_raw_voice": False}
        await one.say("room_raw_voice_preference", room_code=berta.room.code, **wish)
        listed = await other.until(lambda m: m["type"] == "room_members" and bool(wishes(m, one.session_id)), TIMEOUT_S)
        assert wishes(listed, one.session_id) == {other.session_id: False}
        await other.say("webrtc_offer", room_code=berta.room.code, to=one.session_id, sdp={"type": "offer"})
        offer = await one.until(lambda m: m["type"] == "webrtc_offer", TIMEOUT_S)
        assert (offer["to"], offer["sdp"]) == (other.session_id, {"type": "offer"})


def wishes(members: Message, session_id: str) -> Message:
    nothing: Message = {}
    return next(
        (one["raw_voice_preferences"] for one in members["members"] if one["session_id"] == session_id), nothing
    )


async def test_muted_member_and_listener_of_a_paused_room_are_refused_without_a_job(harness: Harness) -> None:
    (en,) = languages(1)
    failures: list[Any] = []
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en])
        ann = await met.join(en, A, **PCM, on_event=failures.append)
        await ann.room.update(muted=True)
        await says(ann)
        await wait_until(
            lambda: [one.code for one in failures if isinstance(one, Failed)] == ["NOT_ALLOWED"], TIMEOUT_S
        )
        await ann.room.update(muted=False)
        await says(ann)
        await ann.shows(f"said 1 in {en}")
        assert len(node.jobs) == 1
        await met.check(1)


async def test_what_is_said_before_joining_is_private_and_what_is_said_before_leaving_is_a_caption(
    harness: Harness,
) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en, es], A)
        berta = await met.join(en, B)
        old = await scenario.talker(A, src_lang=en, tgt_lang=es)
        await old.speak()
        await old.pong()
        await old.say("room_join", room_code=berta.room.code)
        await old.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        assert (await old.result(0))["text_asr"] == f"said 0 in {en}"
        await old.speak()
        await old.say("room_leave", room_code=berta.room.code)
        await berta.shows(f"said 1 in {en}")
        await wait_until(lambda: berta.room.count == 1, TIMEOUT_S)
        await old.speak(final=True)
        assert (await old.result(2))["text_asr"] == f"said 2 in {en}"
        assert [job["tgt_lang"] for job in node.jobs] == [es, en, es]
        await met.check(1)


async def test_member_that_ends_without_a_result_has_lost_what_it_said(harness: Harness) -> None:
    (en,) = languages(1)
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en], work=silent)
        berta = await met.join(en, B)
        old = await scenario.talker(A, src_lang=en, tgt_lang=en)
        await old.say("room_join", room_code=berta.room.code)
        await old.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        await old.speak(final=True)
        await node.job()
        await old.ws.close()
        assert (await berta.until(lambda caption: bool(caption.lost))).lost == "left"
        await met.check(1)


async def test_utterance_is_one_caption_when_its_speaker_resumes_on_another_instance(harness: Harness) -> None:
    en, es = languages(2)
    held: list[Message] = []
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en], A, work=lambda node, job: held.append(job))
        await translator(scenario, [en, es], B)
        ann, berta = await met.join(en, A, B, **PCM), await met.join(es, B)
        await says(ann)
        await node.job()
        await says(ann, final=False)
        assert ann.room.socket is not None
        ann.room.socket.abort()
        await wait_until(lambda: ann.room.socket is not None, TIMEOUT_S)
        await ann.room.cut()
        await node.job(2)
        for job in held:
            await recognises(node, job)
        for number in range(2):
            await berta.shows(translation(es, f"said {number} in {en}"))
        await met.check(2)


async def run_of(*command: str, standard_input: bytes = b"") -> tuple[int, str]:
    """Exit code and output of a `dragoman` command."""
    pipe = asyncio.subprocess.PIPE
    program = (sys.executable, "-m", "dragoman.cli.main", *command)
    process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe, stderr=pipe)
    out, err = await process.communicate(standard_input)
    return process.returncode or 0, out.decode() + err.decode()


def wav_of_unknown_length(samples: bytes) -> bytes:
    """As a program writes it to a pipe."""
    head = b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return head + b"data\xff\xff\xff\xff" + samples


async def test_stream_on_standard_input_is_captioned_and_its_caption_is_explained(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await recogniser(scenario, [en], A)
        node = await translator(scenario, [en, es], B)
        berta = await met.join(es, B)
        server = f"http://127.0.0.1:{harness.instances[A].port}"
        sound = wav_of_unknown_length(vowel(500, RATE))
        say = ("say", "--room", berta.room.code, "--from", en, "--name", "Stream", "--url", server, "-")
        code, output = await run_of(*say, standard_input=sound)
        seen = await berta.shows(translation(es, f"said 0 in {en}"))
        assert (code, seen.speaker) == (0, "Stream"), output
        assert f"said 0 in {en}  [{seen.id}]" in output
        code, output = await run_of("explain", seen.id, "--room", berta.room.id, "--url", server)
        assert code == 0, output
        words = " ".join(output.split())
        assert f"Stream in {en}, said: “said 0 in {en}”." in words
        assert f"Into {es}: “{seen.text}”." in words
        assert (await node.job())["job_id"] in words
        await met.check(1)
        code, output = await run_of("explain", f"{seen.id}9", "--room", berta.room.id, "--url", server)
        assert (code != 0, "no such caption" in output) == (True, True)
