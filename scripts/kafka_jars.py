"""Fetch Spark's Kafka connector and a Kafka broker, with all they need, through Maven.

    python scripts/kafka_jars.py DIRECTORY

puts them into DIRECTORY/connector and DIRECTORY/broker, and says what they are in
DIRECTORY/versions.json. Nothing is fetched twice. The broker has the version of the connector's
own Kafka client.

The connector is that of the installed PySpark, if it was published. Else it is the newest of
`TRIED` that is there: they were run on PySpark 4.3.0 by tests_kafka.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pyspark

SCALA = "2.13"
TRIED = ("4.2.0", "4.0.0")
SPARK = "org.apache.spark"
CONNECTOR = f"spark-sql-kafka-0-10_{SCALA}"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
POM = "{http://maven.apache.org/POM/4.0.0}"

Artifact = tuple[str, str, str]  # group, name, version


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    place = Path(sys.argv[1]).resolve()
    told = place / "versions.json"
    wanted = {"pyspark": pyspark.__version__}
    if told.exists() and json.loads(told.read_text()).items() >= wanted.items():
        return 0
    if shutil.which("mvn") is None:
        print("kafka_jars: there is no mvn; on Debian: apt-get install maven", file=sys.stderr)
        return 1
    place.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            versions = wanted | fetch(Path(folder))
            for part in ("connector", "broker"):
                shutil.rmtree(place / part, ignore_errors=True)
                os.replace(Path(folder) / part, place / part)
    except LookupError as error:
        print(f"kafka_jars: {error}", file=sys.stderr)
        return 1
    told.write_text(json.dumps(versions, indent=2) + "\n")
    print("Fetched for Kafka:", ", ".join(f"{name} {v}" for name, v in versions.items()))
    return 0


def fetch(folder: Path) -> dict[str, str]:
    """Put the jars into folder/connector and folder/broker; returns the versions."""
    connector = first_published(SPARK, CONNECTOR, (pyspark.__version__, *TRIED), folder)
    needs = [connector]
    for group, name, version in needs_of(connector, folder):
        if name == f"spark-tags_{SCALA}":  # every Spark has it
            continue
        if group == SPARK:
            # Registries that mirror on demand may lack a module of a release they have.
            needs.append(first_published(group, name, (version, *TRIED), folder))
        else:
            needs.append((group, name, version))
    client = next(version for _, name, version in needs if name == "kafka-clients")
    copy(needs, folder / "connector", transitive=False)
    kafka = "org.apache.kafka"
    broker = [
        (kafka, f"kafka_{SCALA}", client),
        (kafka, "kafka-tools", client),
        ("org.slf4j", "slf4j-simple", "1.7.36"),  # what the broker says goes to stderr
    ]
    copy(broker, folder / "broker", transitive=True)
    spark = {name: version for group, name, version in needs if group == SPARK}
    return spark | {"kafka": client}


def first_published(group: str, name: str, versions: tuple[str, ...], folder: Path) -> Artifact:
    for version in dict.fromkeys(versions):
        if maven("copy", folder, f"-Dartifact={group}:{name}:{version}:pom").returncode == 0:
            return group, name, version
    raise LookupError(f"Maven finds {group}:{name} in none of the versions {', '.join(versions)}")


def needs_of(artifact: Artifact, folder: Path) -> list[Artifact]:
    """What an artifact needs at run time, from its pom."""
    _, name, version = artifact
    root = ET.parse(folder / f"{name}-{version}.pom").getroot()
    found = []
    for one in root.iterfind(f"{POM}dependencies/{POM}dependency"):
        told = {child.tag.removeprefix(POM): (child.text or "").strip() for child in one}
        if told.get("scope", "compile") in ("compile", "runtime"):
            found.append((told["groupId"], told["artifactId"], told["version"]))
    return found


def copy(artifacts: list[Artifact], target: Path, *, transitive: bool) -> None:
    """Copy jars into a directory, with all they need in turn or without."""
    project = ET.Element("project", xmlns=POM.strip("{}"))
    own = {"modelVersion": "4.0.0", "groupId": "jars", "artifactId": "jars", "version": "1"}
    for tag, text in (own | {"packaging": "pom"}).items():
        ET.SubElement(project, tag).text = text
    dependencies = ET.SubElement(project, "dependencies")
    for artifact in artifacts:
        dependency = ET.SubElement(dependencies, "dependency")
        for tag, text in zip(("groupId", "artifactId", "version"), artifact):
            ET.SubElement(dependency, tag).text = text
        if not transitive:
            # Spark's poms name a repository of their own for what they need.
            exclusion = ET.SubElement(ET.SubElement(dependency, "exclusions"), "exclusion")
            ET.SubElement(exclusion, "groupId").text = "*"
            ET.SubElement(exclusion, "artifactId").text = "*"
    with tempfile.TemporaryDirectory() as folder:
        pom = Path(folder) / "pom.xml"
        ET.ElementTree(project).write(pom, encoding="utf-8", xml_declaration=True)
        done = maven("copy-dependencies", target, "-DincludeScope=runtime", "-f", str(pom))
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "[ERROR]" in line]
        raise LookupError((errors or ["mvn failed"])[0])


def maven(goal: str, output: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = ["mvn", "-B", "-U", f"{PLUGIN}:{goal}", f"-DoutputDirectory={output}", *arguments]
    return subprocess.run(
        command, cwd=output.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


if __name__ == "__main__":
    sys.exit(main())
