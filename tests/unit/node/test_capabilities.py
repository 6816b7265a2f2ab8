from dragoman.node.capabilities import Capabilities, usage_of_this_machine
from dragoman.protocol import codec
from dragoman.protocol.node import InstalledService, ResourceUsage, slots_of

IDLE = ResourceUsage(0.0, 0.0, 0)


def capabilities(**fields: object) -> Capabilities:
    known = {"asr": ["en"], "semantic": ["es"], "tts": ["es"], "slots": 3, "version": "1.2"}
    return Capabilities(**(known | fields))  # type: ignore[arg-type]


def test_a_registration_says_what_the_node_can() -> None:
    register = capabilities().register(None, "secret", draining=False)
    assert codec.decode_node(codec.encode(register))
    assert register.node_id is None
    assert register.token == "secret"
    assert slots_of(register.advanced_features) == 3
    assert register.language_capabilities is not None
    assert register.language_capabilities.asr_languages == ["en"]
    assert register.language_capabilities.semantic_languages == ["es"]
    assert {entry.type: entry.ready for entry in register.capability_by_type or ()} == {
        "asr": True,
        "nmt": True,
        "semantic": True,
        "tts": True,
    }


def test_a_node_that_cannot_speak_is_not_ready_for_tts() -> None:
    register = capabilities(tts=[]).register(None, None, draining=False)
    assert {entry.type for entry in register.capability_by_type or () if not entry.ready} == {"tts"}
    assert {service.type for service in register.installed_services or ()} == {"asr", "nmt", "semantic"}


def test_services_and_readiness_may_be_told() -> None:
    services = [InstalledService("whisper", "asr", "gpu", "running", "3")]
    heartbeat = capabilities(services=services, ready={"asr": True, "tone": False}).heartbeat(
        "node-1", IDLE, draining=False
    )
    assert heartbeat.installed_services == services
    assert {entry.type: entry.ready for entry in heartbeat.capability_by_type or ()} == {"asr": True, "tone": False}


def test_a_draining_node_is_ready_for_nothing() -> None:
    for message in (
        capabilities().register("n", None, draining=True),
        capabilities().heartbeat("n", IDLE, draining=True),
    ):
        assert not any(entry.ready for entry in message.capability_by_type or ())


def test_heartbeat_carries_the_load() -> None:
    usage = ResourceUsage(50, 60, 2, gpu_percent=70)
    heartbeat = capabilities().heartbeat("node-1", usage, draining=False)
    assert (heartbeat.node_id, heartbeat.resource_usage) == ("node-1", usage)
    assert codec.decode_node(codec.encode(heartbeat))


def test_short_form_serves_every_pair_of_its_languages() -> None:
    assert Capabilities.of(["en", "es"], 4) == Capabilities(["en", "es"], ["en", "es"], ["en", "es"], slots=4)


def test_the_usage_of_this_machine_is_in_percent() -> None:
    usage = usage_of_this_machine()
    assert 0 <= usage.cpu_percent <= 100
    assert 0 <= usage.mem_percent <= 100
