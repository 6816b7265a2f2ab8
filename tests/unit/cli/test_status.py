from typing import Any

import pytest

from dragoman.cli import output
from dragoman.cli.failure import Failure
from dragoman.cli.status import picture


def instance(name: str, alive: bool = True, **facts: Any) -> dict[str, Any]:
    told = {"instance": name, "alive": alive, "durability": "process", "version": "0.1.0", "inbox": {"waiting": 0}}
    return told | facts


def node(name: str, at: str, **facts: Any) -> dict[str, Any]:
    told = {"node_id": name, "instance": at, "slots": 4, "reserved": 1, "draining": False, "ready": ["asr", "tts"]}
    return told | {"languages": {"asr": ["en", "es"], "semantic": ["en", "es"], "tts": ["en", "es"]}} | facts


def cluster(*instances: dict[str, Any], nodes: list[dict[str, Any]] | None = None, **facts: Any) -> dict[str, Any]:
    shown = nodes or []
    told = {"told_by": "a", "instances": list(instances), "nodes": shown, "node_count": len(shown), "dead_letters": {}}
    return told | facts


def lines(told: dict[str, Any], width: int = 80) -> list[str]:
    console = output.console(pipe_width=width)
    with console.capture() as captured:
        console.print(picture(told))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_what_is_the_same_everywhere_is_said_once_above() -> None:
    told = cluster(instance("a"), instance("b"), instance("c", alive=False), nodes=[node("n", "b")])
    assert lines(told)[0] == "Dragoman 0.1.0: 2 instances, 1 node, durability process"


def test_differences_between_instances_are_named() -> None:
    told = cluster(instance("a"), instance("b", durability="fsync", version="0.2.0"))
    assert lines(told)[0] == "Dragoman 0.1.0, 0.2.0: 2 instances, 0 nodes, durability fsync, process"


def test_a_usual_name_fits_80_columns_and_a_longer_one_goes_on_in_the_next_line() -> None:
    usual, longer = "dragoman-7f9c8d6b5-x2x9k-1-a1b2c3", "dragoman-production-eu-central-1b-7f9c8d6b5-x2x9k-1-a1b2c3"
    shown = lines(cluster(instance(usual, sessions=12345, jobs=1234), instance(longer)))
    assert any(f" {usual} " in line for line in shown)
    assert max(map(len, shown)) <= 80
    assert longer in "".join(line.split("alive")[0].strip().removeprefix("2").strip() for line in shown[-5:])


def test_nodes_point_to_the_number_of_their_instance() -> None:
    shown = lines(cluster(instance("a"), instance("b"), nodes=[node("n1", "b"), node("n2", "gone")]))
    rows = {line.split()[0]: line.split() for line in shown if line.startswith("n")}
    assert rows["n1"] == ["n1", "#2", "1/4", "en", "es", "asr,", "tts"]
    assert rows["n2"][1] == "gone"


def test_many_languages_are_counted() -> None:
    codes = [f"l{number}" for number in range(100)]
    shown = lines(
        cluster(instance("a"), nodes=[node("n", "a", languages={"asr": codes, "semantic": ["en"], "tts": ["en"]})])
    )
    assert "l0 l1 l2 l3 l4 l5 l6 l7 +92 → en" in " ".join(" ".join(shown).split())


@pytest.mark.parametrize(
    ("tts", "ready", "shown"),
    [
        (["en", "es"], ["asr", "nmt", "tts"], "en → es fr (spoken: es)"),
        (["es", "fr"], ["asr", "nmt", "tts"], "en → es fr asr"),
        (["es", "fr"], None, "en → es fr not told"),
        ([], ["asr", "nmt", "tts"], "en → es fr (text only)"),
        (["es", "fr"], ["asr", "nmt"], "en → es fr (text only)"),
    ],
)
def test_what_a_node_cannot_speak_is_told_with_its_languages(
    tts: list[str], ready: list[str] | None, shown: str
) -> None:
    languages = {"asr": ["en"], "semantic": ["es", "fr"], "tts": tts}
    shown_lines = lines(cluster(instance("a"), nodes=[node("n", "a", languages=languages, ready=ready)]), width=120)
    assert shown in " ".join(" ".join(shown_lines).split())


@pytest.mark.parametrize(
    ("facts", "word"),
    [({"ready": None}, "not told"), ({"ready": []}, "nothing"), ({"draining": True}, "n (draining)")],
)
def test_the_state_of_a_node_is_told(facts: dict[str, Any], word: str) -> None:
    assert any(word in line for line in lines(cluster(instance("a"), nodes=[node("n", "a", **facts)])))


def test_the_state_of_an_instance_is_told() -> None:
    shown = lines(cluster(instance("a"), instance("b", draining=True), instance("c", alive=False)))
    states = {line.split()[1]: line.split()[2] for line in shown if line[:1].isdigit()}
    assert states == {"a": "alive", "b": "draining", "c": "dead"}


def test_dead_letters_are_told_also_of_instances_that_are_gone() -> None:
    shown = lines(cluster(instance("a"), dead_letters={"a": 1, "gone": 2}))
    assert shown[-1] == "3 dead letters: see dragoman dlq list"
    assert [line.split()[-1] for line in shown if line.startswith("1 ")] == ["1"]


def test_a_large_fleet_is_cut_and_counted() -> None:
    nodes = [node(f"n{number:03}", "a") for number in range(60)]
    shown = lines(cluster(instance("a"), nodes=nodes, node_count=1000))
    assert "… and 960 more nodes; see --json" in shown
    assert sum(line.startswith("n0") for line in shown) == 40


def test_names_are_not_markup() -> None:
    shown = "\n".join(lines(cluster(instance("[red]a[/red]"), nodes=[node("[/]n", "[red]a[/red]")])))
    assert "[red]a[/red]" in shown
    assert "[/]n" in shown


@pytest.mark.parametrize("told", [{}, {"instances": []}, cluster({"instance": "a"}), cluster(nodes=[{}])])
def test_what_is_not_a_cluster_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(Failure, match="not Dragoman"):
        picture(told)


def test_a_node_that_cools_down_or_fails_is_shown_with_the_time_it_is_out() -> None:
    nodes = [
        node("cool", "a", cooling_until_ms={"nmt@1": 41_500, "tts@1": 900}),
        node("paused", "a", failing={"paused_until_ms": 5_000, "pauses": 1}),
        node("probed", "a", failing={"paused_until_ms": 900, "pauses": 1}),
    ]
    shown = " ".join(" ".join(lines(cluster(instance("a"), nodes=nodes, now_ms=1_000), width=160)).split())
    assert "cool (nmt@1 cooling down, 41 s)" in shown
    assert "tts@1" not in shown
    assert "paused (failing, paused 4 s)" in shown
    assert "probed (failing, one job at a time)" in shown
