"""What the files in deploy/ name exists, and they agree with each other: commands, settings, ports, paths, addresses.

Images cannot be pulled everywhere these tests run, so nothing is built here. tests/e2e/test_deploy.py runs the same
arrangement as plain processes.
"""

import importlib.metadata
import ipaddress
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import COMMANDS, imported
from dragoman.cli.settings import VARIABLE
from dragoman.config import Config, ConfigError, load, load_with_sources
from dragoman.config.catalog import ENV_PREFIX, SETTINGS
from dragoman.gateway.http_application import HEALTH
from dragoman.instance.exposed import check_configuration
from dragoman.supervisor.main import GRACE_S
from support.deployment import (
    COMPOSE,
    DEPLOY,
    INSTANCES,
    REDIS,
    ROOT,
    SECRETS,
    SERVICES,
    environment,
    instructions,
    last,
)
from support.tables import for_each

CONFIG = DEPLOY / "config.toml"
REDIS_PORT = 6379
NOT_SETTINGS = {VARIABLE, "DRAGOMAN_NODE_TOKEN", "DRAGOMAN_PUBLISH"}

each_instance = pytest.mark.parametrize("name", INSTANCES)


def config(name: str = "dragoman-1", given: Mapping[str, str] = SECRETS) -> Config:
    return load(CONFIG, environment(name, given))


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


# -- the instances


def test_there_are_three_equal_instances() -> None:
    assert len(INSTANCES) == 3
    assert len({json.dumps({**service, "hostname": ""}) for service in INSTANCES.values()}) == 1
    assert {service["hostname"] for service in INSTANCES.values()} == set(INSTANCES)


@each_instance
def test_the_settings_of_an_instance_can_be_loaded(name: str) -> None:
    loaded = config(name)
    assert loaded.scheduler.phase2.enabled
    assert loaded.scheduler.phase2.redis.mode == "cluster"
    assert loaded.archive.url.startswith("postgresql://")


@each_instance
def test_every_variable_is_a_setting(name: str) -> None:
    ours = {key for key in environment(name) if key.startswith(ENV_PREFIX)} - NOT_SETTINGS
    assert ours <= {setting.variable for setting in SETTINGS.values()}


def test_the_instances_read_the_file_that_is_mounted() -> None:
    for name, service in INSTANCES.items():
        assert f"./config.toml:{environment(name)[VARIABLE]}:ro" in service["volumes"]


def test_a_setting_is_in_the_file_or_in_the_environment_not_in_both() -> None:
    tree = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    assert {SETTINGS[key].variable for key in dotted(tree)}.isdisjoint(environment("dragoman-1"))


def dotted(tree: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{before}{name}.")
        else:
            yield before + name


def test_an_instance_is_killed_only_when_its_drain_is_over() -> None:
    for service in INSTANCES.values():
        assert seconds(service["stop_grace_period"]) > config().server.drain_s + GRACE_S


def test_the_connections_of_all_instances_are_fewer_than_postgres_takes() -> None:
    assert len(INSTANCES) * config().archive.pool < 97  # of a hundred three are kept for superusers


# -- commands


def command_lines() -> list[list[str]]:
    given = [service["command"] for service in SERVICES.values() if service.get("image") == "dragoman"]
    return [*given, json.loads(last("CMD"))]


@for_each(command_lines())
def test_every_command_exists_with_its_options(words: list[str]) -> None:
    command = imported({each.name: each for each in COMMANDS}[words[0]])
    options = {name for parameter in command.params for name in parameter.opts}
    assert [word for word in words[1:] if word.startswith("-") and word not in options] == []
    command.make_context(words[0], words[1:])  # values as well


def test_nodes_dial_where_an_instance_listens() -> None:
    urls = [word for words in command_lines() for word in words if "://" in word]
    assert urls
    for url in urls:
        host, port, path = re.fullmatch(r"ws://([\w-]+):(\d+)(/.*)", url).groups()  # type: ignore[union-attr]
        assert (host in INSTANCES, int(port), path) == (True, config().server.port, "/ws/node")


# -- secrets


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_has_a_default(name: str) -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert f"${{{name}:?" in text
    assert f"${{{name}:-" not in text
    assert f"{name}=" not in text


def test_without_the_secret_no_instance_would_start() -> None:
    with pytest.raises(ConfigError, match=r"security\.secret"):
        config(given={**SECRETS, "DRAGOMAN_SECURITY__SECRET": ""})


def test_files_of_secrets_are_not_committed() -> None:
    assert {"/deploy/.env", "/deploy/secrets/"} <= set((ROOT / ".gitignore").read_text(encoding="utf-8").splitlines())


def test_redis_password_is_a_file_and_on_no_command_line() -> None:
    (name,) = COMPOSE["secrets"]
    assert COMPOSE["secrets"][name] == {"file": "./secrets/redis_password"}
    for each in (*INSTANCES, *REDIS, "redis-cluster"):
        assert SERVICES[each]["secrets"] == [name]
    inside = f"/run/secrets/{name}"
    assert config().scheduler.phase2.redis.password_file == inside
    for script in ("start-redis.sh", "form-cluster.sh"):
        assert inside in (DEPLOY / script).read_text(encoding="utf-8")
    for service in REDIS.values():
        assert inside in service["healthcheck"]["test"][1]
        assert not [word for word in service["command"] if word in ("--requirepass", "--masterauth")]
    assert "REDIS_PASSWORD" not in (DEPLOY / "compose.yaml").read_text(encoding="utf-8")


def test_exposed_check_finds_the_problems_that_the_security_guide_explains(tmp_path: Path) -> None:
    password = tmp_path / "redis_password"
    password.write_text("r" * 64)
    password.chmod(0o644)  # as deploy/README.md makes it
    variables = {
        **environment("dragoman-1"),
        "DRAGOMAN_SECURITY__SECRET": "0123456789abcdef" * 4,
        "DRAGOMAN_SCHEDULER__PHASE2__REDIS__PASSWORD_FILE": str(password),
    }
    found = [result.name for result in check_configuration(load_with_sources(CONFIG, variables)) if result.problems]
    guide = (ROOT / "docs/guides/secure.md").read_text(encoding="utf-8").partition("### What it reports")[2]
    assert found == re.findall(r"^\| (\w+) \|", guide.partition("\n## ")[0], re.M)[1:]


# -- around the instances


@for_each(SERVICES)
def test_every_service_is_pinned_restarted_and_may_not_gain_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["image"] == "dragoman" or re.search(r":\d+\.\d+(\.\d+)?-", service["image"])
    assert service["restart"] == ("on-failure" if name == "redis-cluster" else "unless-stopped")
    assert name == "redis-cluster" or "no-new-privileges:true" in service["security_opt"]


@for_each(sorted(set(SERVICES) - {"redis-cluster"}))  # which ends when it is done
def test_every_service_says_whether_it_is_healthy(name: str) -> None:
    assert "healthcheck" in SERVICES[name] or name in INSTANCES  # theirs is in the image


def test_one_port_is_published_and_leads_to_every_instance() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == SERVICES["balancer"]["ports"] == ["${DRAGOMAN_PUBLISH:-5010}:5010"]
    text = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    assert re.findall(r"bind :(\d+)", text) == ["5010"]
    servers = re.findall(r"^ *server ([\w-]+) ([\w-]+):(\d+)$", text, re.M)
    assert servers == [(name, name, str(config().server.port)) for name in INSTANCES]
    assert set(re.findall(r"GET (\S+)", text)) <= set(HEALTH)


def test_only_the_balancer_may_name_the_address_of_a_client() -> None:
    server, balancer = config().server, SERVICES["balancer"]["networks"]["inside"]["ipv4_address"]
    assert (server.trusted_proxies, server.proxy_protocol) == ((balancer,), True)
    assert config().limits.connections_per_address > 0
    text = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    assert re.findall(r"^ *default-server send-proxy-v2 check ", text, re.M)


def test_every_line_of_the_balancer_is_one_we_know() -> None:
    lines = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8").splitlines()
    words = [line.split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert set(words) <= {
        *("global", "defaults", "resolvers", "frontend", "backend", "maxconn", "mode", "timeout", "parse-resolv-conf"),
        *("hold", "bind", "default_backend", "balance", "option", "default-server", "server"),
    }
    assert "default_backend instances" in "".join(lines)
    assert "backend instances" in lines


def test_the_balancer_is_more_patient_than_the_pings() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    idle = max(config().server.ping_idle_s, config().chat.silent_s)
    assert all(seconds(value) > idle for value in re.findall(r"timeout (?:client|server) +(\S+)", text))


def test_instances_find_redis_and_postgres() -> None:
    loaded = config()
    for url in loaded.scheduler.phase2.redis.cluster_urls:
        host, port = re.fullmatch(r"redis://([\w-]+):(\d+)", url).groups()  # type: ignore[union-attr]
        assert (host in REDIS, int(port)) == (True, REDIS_PORT)
    told = environment("postgres")
    user, database, password = (told[f"POSTGRES_{part}"] for part in ("USER", "DB", "PASSWORD"))
    assert loaded.archive.url == f"postgresql://{user}:{password}@postgres:5432/{database}"


def test_the_cluster_has_three_masters_with_a_replica_each_at_fixed_addresses() -> None:
    subnet = ipaddress.ip_network(COMPOSE["networks"]["inside"]["ipam"]["config"][0]["subnet"])
    addresses = [service["networks"]["inside"]["ipv4_address"] for service in REDIS.values()]
    assert len({*addresses, SERVICES["balancer"]["networks"]["inside"]["ipv4_address"]}) == 7
    assert all(ipaddress.ip_address(address) in subnet for address in addresses)
    assert SERVICES["redis-cluster"]["command"] == [f"{address}:{REDIS_PORT}" for address in addresses]
    assert set(SERVICES["redis-cluster"]["depends_on"]) == set(REDIS)


def test_redis_keeps_what_it_accepted() -> None:
    for service in REDIS.values():
        options = dict(zip(service["command"][2::2], service["command"][3::2], strict=True))
        assert (options["--appendonly"], options["--appendfsync"]) == ("yes", "everysec")


@pytest.mark.parametrize("script", ["form-cluster.sh", "start-redis.sh"])
def test_every_script_can_be_read_and_is_where_it_is_started(script: str) -> None:
    subprocess.run(["sh", "-n", str(DEPLOY / script)], check=True, timeout=10)
    started = [service for service in SERVICES.values() if f"./{script}:/{script}:ro" in service.get("volumes", [])]
    assert started == [
        service
        for service in SERVICES.values()
        if f"/{script}" in [*service.get("entrypoint", []), *service.get("command", [])]
    ]
    assert started


def test_every_volume_network_and_service_named_is_there() -> None:
    for service in SERVICES.values():
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"]
    kept = [volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    volumes = [volume for volume in kept if not volume.startswith("./")]
    assert len(volumes) == len(set(volumes))


# -- the image


def test_the_base_is_pinned() -> None:
    assert re.fullmatch(r"BASE=python:3\.11\.\d+-slim-\w+", last("ARG"))
    assert {rest.split()[0] for word, rest in instructions() if word == "FROM"} == {"${BASE}"}


def test_everything_copied_is_there_and_not_ignored() -> None:
    lines = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = [
        word for each, rest in instructions() if each == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    ]
    assert set(copied) == let_in
    assert all((ROOT / path).exists() for path in copied)


def test_image_runs_as_an_unprivileged_user() -> None:
    user, group = last("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert [word for word, _ in instructions()].index("USER") > 0


def test_the_image_is_asked_whether_it_is_ready() -> None:
    probe = last("HEALTHCHECK").partition("CMD ")[2]
    port, path = re.search(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", probe).groups()  # type: ignore[union-attr]
    assert (int(port), path) == (config().server.port, "/health/ready")
    assert path in HEALTH
    compile(json.loads(probe)[2], "probe", "exec")


def test_the_image_drains_when_it_is_stopped_and_starts_the_command() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert last("STOPSIGNAL") == "SIGTERM"
    assert json.loads(last("ENTRYPOINT"))[0] in scripts
    assert int(last("EXPOSE")) == config().server.port


def test_shell_in_the_image_can_be_read() -> None:
    for word, rest in instructions():
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True, timeout=10)
            assert shlex.split(rest)


# -- what the image installs


def pins(path: Path) -> dict[str, set[str]]:
    """Each pinned package and its hashes."""
    found: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if pin := re.match(r"([\w.-]+)(?:\[[\w,-]+\])?(==[^\s;]+)", line):
            hashes = found.setdefault(pin[1] + pin[2], set())
        found_hash = re.search(r"--hash=(\S+)", line)
        if found_hash:
            hashes.add(found_hash[1])
    return found


@pytest.mark.parametrize("lock", [DEPLOY / "requirements.lock", ROOT / "requirements.lock"])
def test_every_lock_names_the_versions_that_the_tests_ran_with(lock: Path) -> None:
    mine, all_of_them = pins(lock), pins(ROOT / "requirements-dev.lock")
    assert mine
    assert {pin for pin, hashes in mine.items() if not hashes or not hashes <= all_of_them.get(pin, set())} == set()


def test_the_image_installs_everything_that_is_needed_and_no_tools() -> None:
    names = {pin.partition("==")[0] for pin in pins(DEPLOY / "requirements.lock")}
    assert needed("dragoman", "server") - names == set()
    assert names.isdisjoint({"pytest", "mypy", "ruff", "hatchling", "pip-tools", "playwright", "setuptools", "pip"})
    assert "redis" not in names  # redis-py, which only tools use


def needed(package: str, extra: str = "") -> set[str]:
    """What it requires on this platform, with one of its extras and those that this extra names."""
    found: set[str] = set()
    for requirement in importlib.metadata.requires(package) or []:
        name = re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")
        of_extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        if "python_version" in requirement or (of_extra and of_extra[1] != extra):
            continue
        if name == package:
            for another in requirement.partition("[")[2].partition("]")[0].split(","):
                found |= needed(package, another.strip())
        else:
            found.add(name)
    return found


def test_the_wheel_is_made_by_tools_of_the_lock() -> None:
    asked = re.search(r"\^\(([\w|-]+)\)==", (DEPLOY / "Containerfile").read_text(encoding="utf-8"))
    assert asked is not None
    tools = set(asked[1].split("|"))
    assert tools <= {pin.partition("==")[0] for pin in pins(ROOT / "requirements.lock")}
    assert needed("hatchling") | {"hatchling"} <= tools
