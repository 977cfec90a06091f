"""Job files: what is read, and that everything wrong is told at once, by file, section and key."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinweir.errors import JoinweirError
from joinweir.job import JobError, Login, Options, read_job
from joinweir.simulation import landmark

EXAMPLES = Path(__file__).parent.parent / "examples"

GOOD = """
[source.left]
format = "json"
path = "left"
schema = "k bigint, ts timestamp, `odd name` array<struct<a: int, b: map<string, int>>>"

[source.right]
format = "kafka"
bootstrap_servers = "127.0.0.1:9092"
topic = "right"
schema = "k bigint, ts timestamp, price decimal(10, 2) NOT NULL"
starting_offsets = "earliest"

[join]
on = "k"
time = "ts"
within = "10 minutes"
memory = "64 MB"

[sink]
format = "parquet"
path = "out"

[query]
checkpoint = "checkpoint"
"""


@pytest.fixture
def read(tmp_path):
    """Read a job from its text; returns the job."""
    (tmp_path / "left").mkdir()

    def call(text: str, **environment: str):
        file = tmp_path / "job.toml"
        file.write_text(text)
        return read_job(file, environment)

    return call


@pytest.fixture
def problems(read, tmp_path):
    """Read a bad job; returns what was wrong, without the file's name, which begins each line."""

    def call(text: str, **environment: str) -> list[str]:
        with pytest.raises(JobError) as caught:
            read(text, **environment)
        start = f"{tmp_path / 'job.toml'}: "
        for line in caught.value.problems:
            assert line.startswith(start)
            assert "\n" not in line
        return [line.removeprefix(start) for line in caught.value.problems]

    return call


def changed(old: str, new: str, text: str = GOOD) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def test_a_good_job_is_read(read, tmp_path):
    job = read(GOOD)
    left, right = job.sources
    assert (left.name, left.format, left.path) == ("left", "json", str(tmp_path / "left"))
    assert left.columns == ("k", "ts", "odd name")
    assert right.columns == ("k", "ts", "price")
    assert right.options.filled({}) == {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "subscribe": "right",
        "startingOffsets": "earliest",
    }
    assert (job.join.on, job.join.time, job.join.within) == (("k",), "ts", "10 minutes")
    assert (job.join.memory, job.join.max_rows, job.join.policy) == ("64 MB", None, "gdj")
    assert job.sink.path == str(tmp_path / "out")
    assert job.query.checkpoint == str(tmp_path / "checkpoint")
    assert job.query.name == "job"
    assert job.spark.master == "local[*]"
    assert job.needs_kafka


def test_the_example_is_a_good_job():
    job = read_job(EXAMPLES / "job.toml", {})
    assert not job.needs_kafka
    assert [source.options.plain["side"] for source in job.sources] == ["1", "2"]


def test_the_complete_file_of_the_page_is_a_good_job(read, tmp_path):
    page = (EXAMPLES.parent / "docs" / "jobs.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    pq.write_table(pa.table({"symbol": ["a"], "ts": [1]}), tmp_path / "left" / "a.parquet")
    text = changed('"/data/quotes"', '"left"', text)
    job = read(text, KAFKA_PASSWORD="x", TRUSTSTORE_PASSWORD="y")
    assert [source.name for source in job.sources] == ["trades", "quotes"]
    # What is commented out is good as well, a key at a time; only one sink and one budget fit.
    for line in re.findall(r"^# (\w+ = .*?) *(?:#.*)?$", text, flags=re.MULTILINE):
        key = line.partition(" ")[0]
        if key in ("allocation", "closed", "accounting", "emit", "columns", "suffixes", "seed",
                   "partition_by", "packages", "log"):  # fmt: skip
            read(changed(f"# {line}", line, text), KAFKA_PASSWORD="x", TRUSTSTORE_PASSWORD="y")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"json"', '"jsn"', "[source.left] format: unknown choice 'jsn'; did you mean 'json'?"),
        ('path = "left"', 'path = "lft"', "[source.left] path: .*lft: no such directory"),
        ('path = "left"', "path = 3", "[source.left] path: must be a text, not 3"),
        ('path = "left"', "", "[source.left] path: is missing"),
        ("[join]", "[joins]", "unknown section 'joins'; did you mean 'join'?"),
        ("[source.right]", "[source.left.options]", "[source.NAME]: two or more are needed"),
        ('topic = "right"', "topic = []", "[source.right] topic: must be a text"),
        ('topic = "right"', 'topics = "x"', "[source.right] unknown key 'topics'; did you"),
        ('"127.0.0.1:9092"', '"nowhere"', "bootstrap_servers: must be 'host:port'"),
        ('"earliest"', '"erliest"', "starting_offsets: unknown choice 'erliest'; did you mean"),
        ("decimal(10, 2)", "decimal(10, 2", "schema: has an unclosed bracket"),
        ("decimal(10, 2)", "desimal(10, 2)", "schema: unknown type 'desimal'; did you mean"),
        ("price decimal(10, 2) NOT NULL", "price", "schema: write columns as 'name type, …'"),
        ("price decimal(10, 2) NOT NULL", "k int", "schema: has the column 'k' twice"),
        ('on = "k"', 'on = "kk"', "on: unknown column of [source.left] 'kk'; did you mean 'k'?"),
        ('on = "k"', 'on = [["k", "q"]]', "on: unknown column of [source.right] 'q'"),
        ('on = "k"', 'on = [["k", "k", "k"]]', "on: must be a list of 2, one a stream, not"),
        ('on = "k"', "on = []", "on: must be a column's name or a list"),
        ('time = "ts"', 'time = ["ts", "at"]', "time: unknown column of [source.right] 'at'"),
        ('"10 minutes"', '"10 minuets"', "within: cannot read '10 minuets' as a duration"),
        ('"10 minutes"', '"rows:10"', "within: a window of rows does not work on Spark"),
        ('"10 minutes"', "-1", "within: must be a duration such as '10 minutes', not -1"),
        ('"10 minutes"', "true", "within: must be a duration such as '10 minutes', not True"),
        ('"10 minutes"', '["1 s", "2 s", "3 s"]', "within: must be a list of 2, one a stream"),
        ('"64 MB"', '"64 XB"', "memory: cannot read '64 XB' as memory"),
        ('"64 MB"', '"64 MB"\nmax_rows = 10', "[join] memory: max_rows is given, too"),
        ('memory = "64 MB"', "max_rows = 0", "max_rows: must be a whole number >= 1, not 0"),
        ('memory = "64 MB"', "max_rows = true", "max_rows: must be a whole number >= 1, not Tr"),
        ('memory = "64 MB"', 'allocation = "even"', "allocation: needs memory or max_rows"),
        ('"64 MB"', '["1 MB", "2 MB"]\nallocation = "even"', "allocation: does not go with"),
        ('"64 MB"', '"64 MB"\npolicy = "gjd"', "policy: unknown policy 'gjd'; did you mean"),
        ('"64 MB"', '"64 MB"\npolicy = "gdj:x=1"', "policy: unknown parameter of gdj 'x'"),
        ('"64 MB"', '"64 MB"\npolicy = "prob:statistics=oracle"', "policy: statistics=oracle"),
        ('"64 MB"', '"64 MB"\nlateness = "soon"', "lateness: cannot read 'soon'"),
        ('"64 MB"', '"64 MB"\nclosed = "right"', "closed: unknown choice 'right'"),
        ('"64 MB"', '"64 MB"\nshards = 0', "shards: must be a whole number >= 1"),
        ('"64 MB"', '"64 MB"\nsuffixes = ["_l"]', "suffixes: must be a list of 2"),
        ('path = "out"', 'path = "job.toml"', "[sink] path: .*job.toml is a file; give a dir"),
        ('path = "out"', 'path = "checkpoint"', "[query] checkpoint: .* is [sink] path, too"),
        ('path = "out"', 'path = "left"', "[sink] path: .* is [source.left] path, too"),
        ('checkpoint = "checkpoint"', "", "[query] checkpoint: is missing: a parquet sink needs"),
        ("[query]", '[query]\ntrigger = "1 us"', "[query] trigger: must be at least '1 ms'"),
        ("[query]", '[query]\nname = "a b"', "[query] name: must be of letters"),
        ("[query]", '[spark]\nmaster = "yarn"\n[query]', "[join] shards: is missing"),
        ("[query]", '[spark]\njars = "left"\n[query]', "[spark] jars: .*no directory with *.jar"),
        ("[query]", '[spark.conf]\nx = 1\n[query]', "[spark] conf.x: settings of Spark start"),
        (
            "[query]",
            "[spark.conf]\n'spark.sql.shuffle.partitions' = 7\n[query]",
            "[spark] conf.spark.sql.shuffle.partitions: is set by [join] shards",
        ),
        (
            "[query]",
            "[spark]\nmaster = 'local[2]'\nremote = 'sc://x'\n[query]",
            "[spark] remote: master is given, too",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_section_and_key(problems, old, new, told):
    pattern = re.escape(told).replace(re.escape(".*"), ".*")
    found = problems(changed(old, new))
    assert any(re.search(pattern, line) for line in found), found


def test_everything_wrong_is_told_at_once(problems):
    text = changed('"json"', '"jsn"')
    text = changed('"10 minutes"', '"a while"', text)
    text = changed('"64 MB"', "0", text)
    text = changed('checkpoint = "checkpoint"', "chekpoint = 1", text)
    found = problems(text)
    starts = ["[source.left] format", "[join] within", "[join] memory", "[query] unknown key"]
    assert [line for start in starts for line in found if line.startswith(start)] == [
        line for line in found if not line.startswith("[query] checkpoint: is missing")
    ]
    assert len(found) == 5


def test_a_file_that_is_no_toml_or_not_there(tmp_path):
    (tmp_path / "job.toml").write_text("[join\n")
    with pytest.raises(JobError, match="not valid TOML"):
        read_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobError, match="cannot be read: not a text in UTF-8"):
        read_job(tmp_path / "job.toml")
    with pytest.raises(JobError, match=r"none\.toml: no such file"):
        read_job(tmp_path / "none.toml")
    with pytest.raises(JobError, match="cannot be read: Is a directory"):
        read_job(tmp_path)


# --- secrets -----------------------------------------------------------------------------------
SECRET = "hunter2-Secret-Value"
LOGIN = """
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "me"
sasl_password_env = "KAFKA_PASSWORD"
"""


@pytest.mark.parametrize(
    "line",
    [
        f'sasl_password = "{SECRET}"',
        f'password = "{SECRET}"',
        f'topic_token = "{SECRET}"',
        f'sasl_password_env = "{SECRET}"',
        f'options.kafka.sasl.jaas.config = "{SECRET}"',
        f'options."kafka.ssl.keystore.password" = "{SECRET}"',
        f'options."x.secret" = ["{SECRET}", "{SECRET}"]',
        f'options_env."x.secret" = "{SECRET}"',
        f'options_env.x.secret = ["{SECRET}"]',
        f'options."url" = "jdbc://me:{SECRET}@host/"',
    ],
)
def test_a_secret_in_the_file_is_refused_and_never_shown(problems, line):
    found = problems(changed('topic = "right"', f'topic = "right"\n{line}'))
    assert found
    assert all(line.startswith("[source.right") for line in found)
    assert not any(SECRET in line for line in found)


def test_a_secret_in_a_path_or_a_spark_setting_is_refused_and_never_shown(problems):
    text = changed('path = "out"', f'path = "s3a://me:{SECRET}@bucket/out"')
    text += f"[spark.conf]\n'spark.hadoop.fs.s3a.access.key' = '{SECRET}'\n"
    found = problems(text)
    assert "has a login in its address" in found[0]
    assert "[spark.conf_env] 'spark.hadoop.fs.s3a.access.key'" in found[1]
    assert not any(SECRET in line for line in found)


def test_a_variable_that_is_not_set_is_told_by_name(problems, read):
    text = changed('topic = "right"', f'topic = "right"\n{LOGIN}')
    assert problems(text) == [
        "[source.right] sasl_password_env: the environment variable KAFKA_PASSWORD is not set"
    ]
    assert problems(text, KAFKA_PASSWORD="") == problems(text)
    read(text, KAFKA_PASSWORD="x")


def test_a_job_holds_names_of_secrets_and_fills_them_in_for_spark_only(read):
    environment = {"KAFKA_PASSWORD": SECRET, "STORE": "other secret"}
    text = changed('topic = "right"', f'topic = "right"\n{LOGIN}')
    text += "[source.right.options_env]\nkafka.ssl.keystore.password = 'STORE'\n"
    job = read(text, **environment)
    assert SECRET not in repr(job)
    assert "other secret" not in repr(job)
    filled = job.sources[1].options.filled(environment)
    assert filled["kafka.ssl.keystore.password"] == "other secret"
    assert filled["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert filled["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="me" password="{SECRET}";'
    )


def test_a_login_has_all_its_parts(problems):
    text = changed('topic = "right"', 'topic = "right"\nsasl_username = "me"')
    assert [line.partition(" is missing")[0] for line in problems(text)] == [
        "[source.right] sasl_mechanism:",
        "[source.right] sasl_password_env:",
    ]
    text = changed('topic = "right"', f'topic = "right"\n{LOGIN}').replace("SASL_SSL", "SSL")
    assert problems(text, KAFKA_PASSWORD="x") == [
        "[source.right] security_protocol: SSL takes no sasl_ keys"
    ]


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_password_breaks_out_of_the_login_module_line(username, password):
    line = Login("PLAIN", username, "P").jaas({"P": password})
    quoted = re.findall(r'"((?:[^"\\]|\\.)*)"', line, flags=re.DOTALL)
    assert [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in quoted] == [
        username,
        password,
    ]
    assert line.endswith('";')


# --- more kinds --------------------------------------------------------------------------------
def test_parquet_tells_its_columns_itself(read, problems, tmp_path):
    text = changed('format = "json"', 'format = "parquet"')
    text = re.sub(r'schema = "k bigint, ts timestamp, `.*\n', "", text)
    assert problems(text) == [
        "[source.left] schema: is missing: there is no Parquet file yet that tells it"
    ]
    (tmp_path / "left" / "day=3").mkdir()
    file = tmp_path / "left" / "day=3" / "a.parquet"
    pq.write_table(pa.table({"k": [1], "at": [2]}), file)
    (found,) = problems(text)
    assert found.startswith("[join] time: unknown column of [source.left] 'ts'")
    job = read(changed('time = "ts"', 'time = ["at", "ts"]', text))
    assert job.sources[0].columns == ("k", "at", "day")
    assert job.join.time == ("at", "ts")
    pattern = changed('path = "left"', 'path = "le*/day=*"', text)
    assert read(changed('time = "ts"', 'time = ["at", "ts"]', pattern)).sources[0].columns == (
        "k", "at",
    )  # fmt: skip
    file.write_text("no Parquet")
    assert problems(text) == [f"[source.left] path: {file}: not readable as Parquet"]


def test_one_file_is_no_stream(problems, tmp_path):
    (tmp_path / "one.json").write_text("{}")
    assert problems(changed('path = "left"', 'path = "one.json"')) == [
        f"[source.left] path: {tmp_path / 'one.json'} is a file; give the directory that it is in"
    ]


def test_json_needs_a_schema(problems):
    text = re.sub(r'schema = "k bigint, ts timestamp, `.*\n', "", GOOD)
    assert problems(text) == [
        "[source.left] schema: is missing: json files do not tell their columns' types"
    ]


def test_windows_triggers_and_budgets_in_their_other_forms(read):
    text = changed('"10 minutes"', '["landmark:1 day", 30]')
    text = changed('memory = "64 MB"', "max_rows = [10, 20]\nlateness = ['1 s', 2]", text)
    text = changed("[query]", "[query]\ntrigger = 'available_now'", text)
    job = read(text)
    assert job.join.within == (landmark("1 day"), 30)
    assert job.join.max_rows == (10, 20)
    assert job.join.lateness == ("1 s", 2)
    assert job.query.trigger == "available now"
    assert read(text.replace("available_now", "1.5 s")).query.trigger == "1500 milliseconds"


def test_more_than_two_streams(read, problems):
    text = GOOD + '[source.third]\nformat = "generator"\nseed = 3\n'
    (found,) = problems(text)
    assert found.startswith("[join] on: unknown column of [source.third] 'k';")
    job = read(changed('on = "k"', 'on = [["k", "k", "key"]]', text))
    assert [source.name for source in job.sources] == ["left", "right", "third"]
    assert job.sources[2].options.plain == {"side": "3", "seed": "3"}


def test_a_generators_options_are_checked_by_who_knows_them(tmp_path):
    def check(options):
        raise JoinweirError(f"no good: {sorted(options.items())}")

    text = (EXAMPLES / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(
        JobError, match=r"\[source\.left\] no good: .*\n.*\[source\.right\] no good"
    ):
        read_job(tmp_path / "job.toml", {}, check)
    (tmp_path / "job.toml").write_text(text.replace("copy_pair", "copy_pear", 1))
    with pytest.raises(JobError, match="generator: unknown choice 'copy_pear'; did you mean"):
        read_job(tmp_path / "job.toml", {})


def test_jars_may_come_from_the_environment(read, problems, tmp_path):
    jars = tmp_path / "jars"
    jars.mkdir()
    (found,) = problems(GOOD, JOINWEIR_JARS=str(jars))
    assert "no directory with *.jar files" in found
    (jars / "a.jar").touch()
    assert read(GOOD, JOINWEIR_JARS=str(jars)).spark.jars == str(jars)


VALUES = st.one_of(
    st.none().map(lambda _: {}),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=True),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers())), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(data=st.data())
def test_whatever_a_value_is_the_job_is_read_or_refused_in_lines(data, tmp_path_factory):
    from joinweir.job import _JobReader, tomllib

    document = copy.deepcopy(tomllib.loads(GOOD))
    tables = [*document["source"].values(), document["join"], document["sink"], document["query"]]
    table = data.draw(st.sampled_from(tables))
    key = data.draw(st.sampled_from([*table, "options", "memory", "columns", "lateness"]))
    table[key] = data.draw(VALUES)
    try:
        _JobReader(Path("job.toml"), document, {}, None).job()
    except JobError as error:
        assert all(line.startswith("job.toml: ") for line in error.problems)


def test_options_may_not_say_the_same_twice(problems):
    text = GOOD + "[source.right.options]\na.b = 1\n[source.right.options_env]\n'a.b' = 'X'\n"
    assert problems(text, X="x") == [
        "[source.right] options.a.b: is in options_env, too; keep one of them"
    ]


def test_options_without_secrets_are_as_given():
    assert Options({"a": "1"}).filled({}) == {"a": "1"}
