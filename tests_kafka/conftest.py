"""A real Kafka broker on loopback for these tests, which `make test-kafka` runs.

They are not in the default suite: it needs no broker and no Maven.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
JARS = Path(os.environ.get("JOINWEIR_KAFKA", REPOSITORY / ".cache" / "kafka"))
START_SECONDS = 120


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"


def main_class(name: str) -> str:
    """The full name of a class of the broker's jars; its package depends on Kafka's version."""
    for jar in sorted((JARS / "broker").glob("kafka*.jar")):
        for entry in zipfile.ZipFile(jar).namelist():
            if entry.endswith(f"/{name}.class"):
                return entry.removesuffix(".class").replace("/", ".")
    raise LookupError(f"no class {name} in {JARS / 'broker'}")


def kafka_command(name: str, *arguments: str, heap: str = "256m") -> list[str]:
    return [java(), f"-Xmx{heap}", "-cp", f"{JARS / 'broker'}/*", main_class(name), *arguments]


def free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _die_with_parent() -> None:
    """In the child: be killed when the tests' process is gone, even by kill -9 (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Broker:
    """A running broker."""

    address: str

    def create_topic(self, topic: str, partitions: int = 2) -> None:
        at = ("--bootstrap-server", self.address, "--topic", topic)
        self._run("TopicCommand", "--create", *at, "--partitions", str(partitions))

    def produce(self, topic: str, lines: Sequence[str]) -> None:
        at = ("--bootstrap-server", self.address, "--topic", topic)
        # One row a request would go to one partition after the other; a small batch mixes them.
        self._run("ConsoleProducer", *at, "--batch-size", "2048", given="\n".join(lines) + "\n")

    def consume(self, topic: str, n: int) -> list[str]:
        """The values of n messages, each after its key and a tab."""
        at = ("--bootstrap-server", self.address, "--topic", topic)
        key = ("--property", "print.key=true")
        most = ("--max-messages", str(n), "--timeout-ms", "60000")
        return self._run("ConsoleConsumer", *at, "--from-beginning", *key, *most).splitlines()

    @staticmethod
    def _run(name: str, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            kafka_command(name, *arguments), input=given, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One node that is broker and controller (KRaft), on free ports of 127.0.0.1."""
    if not (JARS / "versions.json").exists():
        pytest.fail(f"no Kafka in {JARS}; run: make test-kafka", pytrace=False)
    folder = tmp_path_factory.mktemp("broker")
    client, controller = free_ports(2)
    properties = folder / "server.properties"
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "log",
        # One node can keep no copies.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    Broker._run("StorageTool", "format", "-t", cluster, "-c", str(properties))
    said = folder / "broker.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            kafka_command("Kafka", str(properties), heap="512m"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            _wait_for(client, process, said)
            yield Broker(f"127.0.0.1:{client}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(port: int, process: subprocess.Popen, said: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    pytest.fail(f"the broker did not start: {said.read_text()[-3000:]}", pytrace=False)


@dataclass
class Runner:
    """Starts `joinweir run` in processes of its own, and sees to it that none is left."""

    folder: Path
    started: list[subprocess.Popen]

    def start(self, job: Path, *options: str) -> subprocess.Popen:
        sources = str(REPOSITORY / "src")
        path = os.pathsep.join(filter(None, (sources, os.environ.get("PYTHONPATH"))))
        log = (self.folder / f"run{len(self.started)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "joinweir", "run", str(job), "--json", *options],
            env=os.environ
            | {
                "JOINWEIR_JARS": str(JARS / "connector"),
                "PYTHONPATH": path,
                "PYSPARK_PYTHON": sys.executable,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()
        self.started.append(process)
        return process

    def kill(self, process: subprocess.Popen) -> None:
        """kill -9 of the command and of its JVM, and wait until both are gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()
        while _alive(process.pid):
            time.sleep(0.05)

    def errors(self) -> str:
        return "\n".join(p.read_text()[-3000:] for p in sorted(self.folder.glob("run*.log")))


def _alive(group: int) -> bool:
    """Whether a process of the group is left; one that waits to be reaped is not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = re.sub(r"^.*\) ", "", stat.read_text()).split()
            if fields[0] != "Z" and int(fields[2]) == group:
                return True
    return False


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    running = Runner(tmp_path, [])
    try:
        yield running
    finally:
        for process in running.started:
            running.kill(process)
