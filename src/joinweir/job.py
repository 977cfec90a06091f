"""A job file: what `joinweir run` joins, read and checked as a whole before Spark starts.

Every problem of the file is found in one pass and told in one line that names file, section and
key. Secrets are named by environment variable, never written in the file; what is read here holds
only those names, so that a job can be printed or logged.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import JoinweirError, unknown
from .layout import ACCOUNTINGS
from .policies import read_policy
from .simulation import ALLOCATIONS, Landmark, landmark
from .streams import GENERATORS
from .units import duration_us, memory_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_FORMATS = ("parquet", "json", "csv")
SOURCES = (*FILE_FORMATS, "kafka", "generator")
SINKS = ("parquet", "console", "kafka")
CLOSED = ("left", "both")
EMITS = ("matches", "shed", "both")
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
GENERATED_COLUMNS = ("key", "ts", "value", "payload")  # of the generator source
OPTION_TABLES = ("options", "conf")
AVAILABLE_NOW = "available now"

_SECRET = re.compile(
    r"passw|secret|token|jaas|credential|(access|private|api|account)[._-]?key", re.IGNORECASE
)
# Only such names are shown: what looks otherwise may be the secret itself, put there by mistake.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_LOGIN_IN_URL = re.compile(r"://[^/?#\s]*@")
_TYPES = (
    "array", "bigint", "binary", "boolean", "byte", "char", "character", "date", "dec",
    "decimal", "double", "float", "geography", "geometry", "int", "integer", "interval", "long",
    "map", "numeric", "real", "short", "smallint", "string", "struct", "time", "timestamp",
    "timestamp_ltz", "timestamp_ntz", "tinyint", "varchar", "variant",
)  # fmt: skip


class JobError(JoinweirError):
    """All that is wrong with a job file: `problems`, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


# --- what a job is -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Login:
    """Name and password for a Kafka broker; the password stays in the environment."""

    mechanism: str
    username: str
    password_env: str

    def jaas(self, environment: Mapping[str, str]) -> str:
        """What Kafka's clients read as ``sasl.jaas.config``; it holds the password."""

        def quoted(text: str) -> str:
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'

        username, password = quoted(self.username), quoted(environment[self.password_env])
        module = LOGIN_MODULES[self.mechanism]
        return f"{module} required username={username} password={password};"


@dataclass(frozen=True)
class Options:
    """Options for Spark's reader or writer; `from_environment` maps some to variables."""

    plain: Mapping[str, str] = field(default_factory=dict)
    from_environment: Mapping[str, str] = field(default_factory=dict)
    login: Login | None = None

    def filled(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """All options, secrets included: for Spark only, never for a message."""
        options = dict(self.plain)
        options |= {name: environment[v] for name, v in self.from_environment.items()}
        if self.login:
            options["kafka.sasl.jaas.config"] = self.login.jaas(environment)
        return options


@dataclass(frozen=True)
class Source:
    """One stream: where it comes from. `columns` are its columns as far as the file tells."""

    name: str
    format: str
    path: str | None = None
    schema: str | None = None
    columns: tuple[str, ...] | None = None
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Join:
    """The arguments of `window_join`."""

    on: Any
    time: Any
    within: Any
    memory: Any = None
    max_rows: Any = None
    allocation: str | None = None
    policy: str = "gdj"
    lateness: Any = "0 seconds"
    closed: str = "left"
    shards: int | None = None
    accounting: str | None = None
    emit: str = "matches"
    columns: Any = None
    suffixes: Any = None
    seed: int = 0


@dataclass(frozen=True)
class Sink:
    """Where the results go."""

    format: str
    path: str | None = None
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] | None = None
    rows: int = 20
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Query:
    """How the query runs: its checkpoint, and every how long a micro-batch starts."""

    name: str
    checkpoint: str | None = None
    trigger: str | None = None  # a duration, AVAILABLE_NOW, or None: as soon as possible


@dataclass(frozen=True)
class SparkSettings:
    """Which Spark runs it."""

    master: str | None = "local[*]"
    remote: str | None = None
    jars: str | None = None
    packages: tuple[str, ...] | None = None  # None: the Kafka connector, if it is needed
    log: str | None = None
    options: Options = field(default_factory=Options)  # spark.* settings


@dataclass(frozen=True)
class Job:
    """A whole job, checked."""

    file: str
    sources: tuple[Source, ...]
    join: Join
    sink: Sink
    query: Query
    spark: SparkSettings

    @property
    def needs_kafka(self) -> bool:
        """Whether Spark must have its Kafka connector."""
        return "kafka" in {self.sink.format, *(source.format for source in self.sources)}


# --- reading -----------------------------------------------------------------------------------
def read_job(
    file: str | Path,
    environment: Mapping[str, str] = os.environ,
    check_generator: Callable[[Mapping[str, str]], object] | None = None,
) -> Job:
    """Read and check a job file.

    Parameters
    ----------
    file
        A TOML file; relative paths in it start at its directory. See docs/jobs.md.
    environment
        Where secrets are looked up: that they are there, not what they are.
    check_generator
        Raises a `JoinweirError` for bad options of the generator source, which `joinweir.spark`
        knows.

    Raises
    ------
    JobError
        With everything that is wrong, a line each.
    """
    file = Path(file)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise JobError([f"{file}: no such file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise JobError([f"{file}: cannot be read: {reason}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise JobError([f"{file}: not valid TOML: {error}"]) from None
    return _JobReader(file, document, environment, check_generator).job()


class _Section:
    """A table of the file, taken key by key; what is wrong goes to one list for all sections."""

    def __init__(self, reader: _JobReader, name: str, table: Any, *, required: bool) -> None:
        self.reader, self.name, self.table = reader, name, table
        self.known: list[str] = []
        self.there = isinstance(table, Mapping)
        if table is None:
            self.table = {}
            if required:
                reader.problems.append(f"{reader.file}: [{name}]: the section is missing")
        elif not self.there:
            self.table = {}
            reader.problems.append(f"{reader.file}: {name}: must be a section, [{name}]")

    def problem(self, key: str, message: object) -> None:
        self.reader.problems.append(f"{self.reader.file}: [{self.name}] {key}: {message}")

    def take(self, key: str, read: Callable[[Any], Any], default: Any = None, *, needed=False):
        """The value of a key as `read` gives it; a JoinweirError of it becomes a problem."""
        self.known.append(key)
        if key not in self.table:
            if needed and self.there:
                self.problem(key, "is missing")
            return default
        if (self.name, key) in self.reader.secret_keys:  # told already, and never shown
            return default
        try:
            return read(self.table[key])
        except JoinweirError as error:
            self.problem(key, error)
            return default

    def text(self, key: str, choices: Sequence[str] = (), default: Any = None, *, needed=False):
        def read(value: Any) -> str:
            value = _text(value)
            if choices and value not in choices:
                raise unknown("choice", value, choices)
            return value

        return self.take(key, read, default, needed=needed)

    def options(self, key: str = "options") -> tuple[dict[str, str], dict[str, str]]:
        """The tables KEY and KEY_env: option → value, and option → environment variable."""
        plain = self.take(key, _plain_options, {})
        named = self.take(f"{key}_env", _plain_options, {})
        for option in plain.keys() & named.keys():
            self.problem(f"{key}.{option}", f"is in {key}_env, too; keep one of them")
        return plain, named

    def done(self) -> None:
        """Complain about keys that nobody took."""
        for key in self.table:
            if key not in self.known and (self.name, key) not in self.reader.secret_keys:
                self.reader.problems.append(
                    f"{self.reader.file}: [{self.name}] {unknown('key', key, self.known)}"
                )


class _JobReader:
    def __init__(self, file: Path, document: dict, environment, check_generator) -> None:
        self.file, self.document, self.environment = file, document, environment
        self.check_generator = check_generator
        self.folder = file.resolve().parent
        self.problems: list[str] = []
        self.secret_keys: set[tuple[str, str]] = set()

    def job(self) -> Job:
        self._check_secrets()
        sections = ("source", "join", "sink", "query", "spark")
        for name in self.document:
            if name not in sections:
                self.problems.append(f"{self.file}: {unknown('section', name, sections)}")
        sources = self._sources()
        join = self._join(sources)
        sink = self._sink(join)
        query = self._query(sink)
        spark = self._spark(join, sink)
        self._check_places(sources, sink, query)
        if self.problems:
            raise JobError(self.problems)
        return Job(str(self.file), sources, join, sink, query, spark)

    def _section(self, name: str, table: Any, *, required: bool = True) -> _Section:
        return _Section(self, name, table, required=required)

    # --- secrets
    def _check_secrets(self) -> None:
        """Refuse secrets in the file, and look whether those named by variable are there."""
        for path, value in _leaves(self.document):
            above, key = _in_its_table(path)
            section = ".".join(above)
            where = f"{self.file}: [{section}] {key}" if above else f"{self.file}: {key}"
            table = above[-1] if above else ""
            if key.endswith("_env") or table.endswith("_env"):
                if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
                    self.problems.append(
                        f"{where}: must be the name of an environment variable, in capitals"
                    )
                elif not self.environment.get(value):
                    self.problems.append(f"{where}: the environment variable {value} is not set")
            elif _SECRET.search(key):
                self.secret_keys.add((section, key))
                fix = f"[{section}_env] '{key}'" if table in OPTION_TABLES else f"{key}_env"
                self.problems.append(
                    f"{where}: secrets do not belong in the file; put it into an environment"
                    f" variable, and the variable's name here as {fix}"
                )
            elif isinstance(value, str) and _LOGIN_IN_URL.search(value):
                self.secret_keys.add((section, key))
                self.problems.append(f"{where}: has a login in its address; take it out")

    # --- paths
    def _place(self, value: Any) -> str:
        """A path, absolute unless it is an address such as s3a://…"""
        text = _text(value)
        return text if "://" in text else str(self.folder / Path(text).expanduser())

    def _directory(self, value: Any) -> str:
        place = self._place(value)
        if "://" not in place and Path(place).exists() and not Path(place).is_dir():
            raise JoinweirError(f"{place} is a file; give a directory")
        return place

    def _file(self, value: Any) -> str:
        place = Path(self._place(value))
        if place.is_dir() or not place.parent.is_dir():
            raise JoinweirError(f"{place} cannot be written: give a file in a directory")
        return str(place)

    def _check_places(self, sources: tuple[Source, ...], sink: Sink, query: Query) -> None:
        used: dict[str, str] = {}
        named = [(f"source.{s.name}", "path", s.path) for s in sources]
        named += [("sink", "path", sink.path), ("query", "checkpoint", query.checkpoint)]
        for section, key, place in named:
            if place is None:
                continue
            if place in used and not (section.startswith("source") and "source" in used[place]):
                self.problems.append(
                    f"{self.file}: [{section}] {key}: {place} is {used[place]}, too"
                )
            used.setdefault(place, f"[{section}] {key}")

    # --- sources
    def _sources(self) -> tuple[Source, ...]:
        tables = self.document.get("source")
        if not isinstance(tables, Mapping) or len(tables) < 2:
            self.problems.append(
                f"{self.file}: [source.NAME]: two or more are needed, such as [source.left] and"
                " [source.right]; their order in the file is that of the join"
            )
            tables = tables if isinstance(tables, Mapping) else {}
        return tuple(self._source(i, name, table) for i, (name, table) in enumerate(tables.items()))

    def _source(self, i: int, name: str, table: Any) -> Source:
        section = self._section(f"source.{name}", table)
        kind = section.text("format", SOURCES, needed=True)
        if kind == "generator":
            source = self._generator(i, name, section)
        elif kind == "kafka":
            source = self._kafka_source(name, section)
            section.done()
        elif kind in FILE_FORMATS:
            source = self._files(name, kind, section)
            section.done()
        else:
            source = Source(name, "")
        return source

    def _generator(self, i: int, name: str, section: _Section) -> Source:
        section.text("generator", list(GENERATORS))
        given = {k: v for k, v in section.table.items() if k != "format"}
        try:
            options = {"side": str(i + 1)} | _plain_options(given)
            if self.check_generator and given.get("generator", "zipf_pair") in GENERATORS:
                self.check_generator(options)
        except JoinweirError as error:
            self.problems.append(f"{self.file}: [{section.name}] {error}")
            options = {}
        payload = any("payload" in key for key in options)
        columns = GENERATED_COLUMNS if payload else GENERATED_COLUMNS[:-1]
        return Source(name, "generator", columns=columns, options=Options(options))

    def _files(self, name: str, kind: str, section: _Section) -> Source:
        path = section.take("path", self._place, needed=True)
        schema = section.take("schema", _schema)
        pace = section.take("max_files_per_batch", _at_least(1))
        plain, named = section.options()
        if pace is not None:
            plain["maxFilesPerTrigger"] = str(pace)
        columns = schema and schema[1]
        if path and "://" not in path:
            matching = _matching(path)
            if not matching:
                section.problem("path", f"{path}: no such directory")
            elif Path(path).is_file():
                # Spark follows directories; of a single file it would see no change.
                section.problem("path", f"{path} is a file; give the directory that it is in")
            elif kind == "parquet" and schema is None and "schema" not in section.table:
                columns = _parquet_columns(section, matching)
        if kind != "parquet" and "schema" not in section.table:
            section.problem("schema", f"is missing: {kind} files do not tell their columns' types")
        return Source(name, kind, path, schema and schema[0], columns, Options(plain, named))

    def _kafka_source(self, name: str, section: _Section) -> Source:
        topics = section.take("topic", _names, needed=True)
        schema = section.take("schema", _schema, needed=True)
        offsets = section.text("starting_offsets", ("earliest", "latest"))
        pace = section.take("max_rows_per_batch", _at_least(1))
        options = self._kafka(section)
        own = {
            "subscribe": ",".join(topics or ()),
            "startingOffsets": offsets,
            "maxOffsetsPerTrigger": pace and str(pace),
        }
        plain = {k: v for k, v in own.items() if v is not None} | options.plain
        options = Options(plain, options.from_environment, options.login)
        return Source(name, "kafka", None, schema and schema[0], schema and schema[1], options)

    def _kafka(self, section: _Section) -> Options:
        """What Kafka's readers and writers have in common: where it is, and who we are."""
        servers = section.take("bootstrap_servers", _servers, needed=True)
        protocol = section.text("security_protocol", SECURITY_PROTOCOLS)
        mechanism = section.text("sasl_mechanism", list(LOGIN_MODULES))
        username = section.text("sasl_username")
        password_env = section.text("sasl_password_env")
        plain, named = section.options()
        login = None
        given = {
            "sasl_mechanism": mechanism,
            "sasl_username": username,
            "sasl_password_env": password_env,
        }
        if any(key in section.table for key in given):
            for key in given:
                if key not in section.table:
                    section.problem(key, f"is missing: {', '.join(given)} go together")
            if protocol is not None and not protocol.startswith("SASL"):
                section.problem("security_protocol", f"{protocol} takes no sasl_ keys")
            if all(given.values()):
                login = Login(mechanism, username, password_env)
        own = {
            "kafka.bootstrap.servers": servers,
            "kafka.security.protocol": protocol or (login and "SASL_SSL"),
            "kafka.sasl.mechanism": mechanism,
        }
        return Options({k: v for k, v in own.items() if v is not None} | plain, named, login)

    # --- join
    def _join(self, sources: tuple[Source, ...]) -> Join:
        section = self._section("join", self.document.get("join"))
        k = max(len(sources), 2)
        on = section.take("on", lambda value: _key_columns(value, k), needed=True)
        time = section.take("time", lambda value: _one_or_each(value, _text, k), needed=True)
        join = Join(
            on=on,
            time=time,
            within=section.take("within", lambda v: _one_or_each(v, _window, k), needed=True),
            memory=section.take("memory", lambda v: _one_or_each(v, _memory, k)),
            max_rows=section.take("max_rows", lambda v: _one_or_each(v, _at_least(1), k)),
            allocation=section.text("allocation", ALLOCATIONS),
            policy=section.take("policy", _policy, Join.policy),
            lateness=section.take("lateness", lambda v: _one_or_each(v, _length, k), Join.lateness),
            closed=section.text("closed", CLOSED, Join.closed),
            shards=section.take("shards", _at_least(1)),
            accounting=section.text("accounting", ACCOUNTINGS),
            emit=section.text("emit", EMITS, Join.emit),
            columns=section.take("columns", lambda v: _columns(v, k)),
            suffixes=section.take("suffixes", lambda v: _each(v, _text, k)),
            seed=section.take("seed", _at_least(0), 0),
        )
        section.done()
        if "memory" in section.table and "max_rows" in section.table:
            section.problem("memory", "max_rows is given, too; keep one of them")
        budget = section.table.get("memory", section.table.get("max_rows"))
        if "allocation" in section.table:
            if budget is None:
                section.problem("allocation", "needs memory or max_rows to allocate")
            elif isinstance(budget, list):
                section.problem("allocation", "does not go with a budget per stream")
        self._check_columns(section, sources, on, time)
        return join

    def _check_columns(self, section: _Section, sources, on: Any, time: Any) -> None:
        for i, source in enumerate(sources):
            named = [("on", name) for name in on or ()] + [("time", time)] * (time is not None)
            for key, name in named:
                name = name if isinstance(name, str) else name[i] if i < len(name) else None
                if name is not None and source.columns is not None and name not in source.columns:
                    what = f"column of [source.{source.name}]"
                    section.problem(key, unknown(what, name, source.columns))

    # --- sink, query, Spark
    def _sink(self, join: Join) -> Sink:
        section = self._section("sink", self.document.get("sink"))
        kind = section.text("format", SINKS, needed=True)
        sink = Sink(kind or "")
        if kind == "parquet":
            path = section.take("path", self._directory, needed=True)
            partition_by = section.take("partition_by", _names, ())
            sink = Sink(kind, path, partition_by, options=Options(*section.options()))
        elif kind == "console":
            sink = Sink(kind, rows=section.take("rows", _at_least(1), Sink.rows))
        elif kind == "kafka":
            topic = section.text("topic", needed=True)
            key = section.take("key", _names)
            options = self._kafka(section)
            plain = {"topic": topic or "", **options.plain}
            options = Options(plain, options.from_environment, options.login)
            sink = Sink(kind, key=key, options=options)
        if kind:
            section.done()
        return sink

    def _query(self, sink: Sink) -> Query:
        section = self._section("query", self.document.get("query"), required=False)
        name = section.take("name", _query_name, re.sub(r"\W+", "_", self.file.stem))
        checkpoint = section.take("checkpoint", self._directory)
        trigger = section.take("trigger", _trigger)
        section.done()
        if sink.format in ("parquet", "kafka") and "checkpoint" not in section.table:
            section.problem("checkpoint", f"is missing: a {sink.format} sink needs one to go on")
        return Query(name or "joinweir", checkpoint, trigger)

    def _spark(self, join: Join, sink: Sink) -> SparkSettings:
        section = self._section("spark", self.document.get("spark"), required=False)
        master, remote = section.text("master"), section.text("remote")
        jars = section.take("jars", self._directory)
        packages = section.take("packages", lambda value: _names(value) if value != [] else ())
        log = section.take("log", self._file)
        conf = section.options("conf")
        section.done()
        if master and remote:
            section.problem("remote", "master is given, too; keep one of them")
        if remote and sink.format == "console":
            section.problem("remote", "the console sink prints where the query runs; not with it")
        if not jars and "jars" not in section.table:
            jars = self.environment.get("JOINWEIR_JARS")
        if jars and "://" not in jars and not list(Path(jars).glob("*.jar")):
            section.problem("jars", f"{jars}: no directory with *.jar files")
        for name in (*conf[0], *conf[1]):
            if not name.startswith("spark."):
                section.problem(f"conf.{name}", "settings of Spark start with 'spark.'")
            if name in _OWN_SETTINGS:
                section.problem(f"conf.{name}", f"is set by {_OWN_SETTINGS[name]}")
        elsewhere = remote or (master and not re.match(r"local(\[|$)", master))
        if elsewhere and join.shards is None:
            at = f"{self.file}: [join] shards"
            self.problems.append(f"{at}: is missing: without a local master, say how many")
        return SparkSettings(
            None if remote else master or SparkSettings.master,
            remote,
            jars,
            packages,
            log,
            Options(*conf),
        )


_OWN_SETTINGS = {
    "spark.master": "[spark] master",
    "spark.remote": "[spark] remote",
    "spark.sql.shuffle.partitions": "[join] shards",
    "spark.jars": "[spark] jars",
    "spark.jars.packages": "[spark] packages",
    "spark.app.name": "[query] name",
    "spark.sql.streaming.stateStore.providerClass": "joinweir; it needs RocksDB",
}


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path of keys, value) of all values that are no tables; a list's items have its path."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, path)
    else:
        yield path, value


def _in_its_table(path: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """A path of keys as table and key; option names may have dots, with quotes or without."""
    for at, name in enumerate(path[:-1], start=1):
        if name.removesuffix("_env") in OPTION_TABLES:
            return path[:at], ".".join(path[at:])
    return path[:-1], path[-1]


# --- reading values ----------------------------------------------------------------------------
def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise JoinweirError(f"must be a text, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "a table" if isinstance(value, Mapping) else "a list"
    return repr(value)


def _at_least(low: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
            raise JoinweirError(f"must be a whole number >= {low}, not {_shown(value)}")
        return value

    return read


def _each(value: Any, read: Callable[[Any], Any], k: int) -> tuple:
    if not isinstance(value, list) or len(value) != k:
        given = f"a list of {len(value)}" if isinstance(value, list) else _shown(value)
        raise JoinweirError(f"must be a list of {k}, one a stream, not {given}")
    return tuple(read(item) for item in value)


def _one_or_each(value: Any, read: Callable[[Any], Any], k: int) -> Any:
    return _each(value, read, k) if isinstance(value, list) else read(value)


def _names(value: Any) -> tuple[str, ...]:
    """A name or a list of them."""
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise JoinweirError("must be a text, or a list of texts")
    return tuple(names)


def _key_columns(value: Any, k: int) -> tuple:
    """What the streams are joined on: names, or lists of one name a stream."""
    if isinstance(value, str):
        return (_text(value),)
    if not isinstance(value, list) or not value:
        raise JoinweirError("must be a column's name or a list of them; ['a', 'b'] within the list"
                            " where the names differ")  # fmt: skip
    return tuple(_one_or_each(item, _text, k) for item in value)


def _columns(value: Any, k: int) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], list):
        return _each(value, _names, k)
    return _names(value)


def _length(value: Any) -> Any:
    """A duration, or a number: seconds beside timestamps."""
    if isinstance(value, str):
        duration_us(value)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**60:
        raise JoinweirError(f"must be a duration such as '10 minutes', not {_shown(value)}")
    return value


def _window(value: Any) -> Any:
    kind, colon, every = value.partition(":") if isinstance(value, str) else (value, "", "")
    if colon and kind.strip() == "landmark":
        return _landmark(every)
    if colon and kind.strip() == "rows":
        raise JoinweirError("a window of rows does not work on Spark; give a duration")
    return _length(value)


def _landmark(every: str) -> Landmark:
    duration_us(every)
    return landmark(every.strip())


def _memory(value: Any) -> Any:
    memory_bytes(value)
    return value


def _policy(value: Any) -> str:
    params = read_policy(_text(value))
    if params.source_of_frequencies() == "oracle":
        raise JoinweirError("statistics=oracle needs the whole input; a stream has none")
    return str(params)


def _query_name(value: Any) -> str:
    if not re.fullmatch(r"\w[\w-]*", _text(value)):
        raise JoinweirError(f"must be of letters, digits, - and _, not {value!r}")
    return value


def _trigger(value: Any) -> str:
    text = " ".join(_text(value).replace("_", " ").split()).lower()
    if text != AVAILABLE_NOW:
        if duration_us(text) < 1000:
            raise JoinweirError("must be at least '1 ms'; leave it out for as soon as possible")
        return f"{duration_us(text) // 1000} milliseconds"
    return text


def _servers(value: Any) -> str:
    servers = [part.strip() for name in _names(value) for part in name.split(",")]
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise JoinweirError(f"must be 'host:port', or several with commas, not {server!r}")
    return ",".join(servers)


def _plain_options(value: Any) -> dict[str, str]:
    """Options as Spark takes them: texts; numbers and flags are written out."""
    if not isinstance(value, Mapping):
        raise JoinweirError(f"must be a table of options, not {_shown(value)}")
    options = {}
    for name, option in value.items():
        if isinstance(option, Mapping):  # a.b = 1 without quotes
            options |= {f"{name}.{below}": text for below, text in _plain_options(option).items()}
            continue
        items = option if isinstance(option, list) else [option]
        if not all(isinstance(item, str | int | float) for item in items):
            raise JoinweirError(f"{name} must be a text, a number or true/false")
        texts = [str(i).lower() if isinstance(i, bool) else str(i) for i in items]
        options[name] = ",".join(texts)
    return options


def _schema(value: Any) -> tuple[str, tuple[str, ...]]:
    """A schema as in SQL, and its columns' names."""
    text, columns, depth, start = _text(value), [], 0, 0
    quoted = False
    for at, sign in enumerate(text + ","):
        quoted ^= sign == "`"
        if quoted:
            continue
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            columns.append(_column(text[start:at]))
            start = at + 1
    if depth or quoted:
        raise JoinweirError(f"has an unclosed bracket or quote: {text!r}")
    double = {name for name in columns if columns.count(name) > 1}
    if double:
        raise JoinweirError(f"has the column {min(double)!r} twice")
    return text, tuple(columns)


def _column(text: str) -> str:
    term = re.match(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*:?\s+([a-zA-Z_]+)", text)
    if not term:
        raise JoinweirError(f"write columns as 'name type, …', not {text.strip()!r}")
    if term[3].lower() not in _TYPES:
        raise unknown("type", term[3], _TYPES)
    return term[2] or term[1].replace("``", "`")


def _matching(path: str) -> list[Path]:
    """The paths that a path, perhaps with * in it, stands for."""
    given = Path(path)
    if given.exists() or not re.search(r"[*?\[{]", path):
        return [given] if given.exists() else []
    fixed = Path(*takewhile(lambda part: not re.search(r"[*?\[{]", part), given.parts))
    return sorted(fixed.glob(str(given.relative_to(fixed))))


def _parquet_columns(section: _Section, places: list[Path]) -> tuple[str, ...] | None:
    """The columns of the first Parquet file; those in directory names (x=1/) are not among them."""
    for place in places:
        files = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
        for file in files:
            try:
                columns = pq.read_schema(file).names
            except (pa.ArrowException, OSError):
                section.problem("path", f"{file}: not readable as Parquet")
                return None
            named = (p.partition("=") for p in file.relative_to(place).parts[:-1])
            return (*columns, *(name for name, equals, _ in named if equals))
    section.problem("schema", "is missing: there is no Parquet file yet that tells it")
    return None
