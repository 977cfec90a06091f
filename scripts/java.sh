#!/usr/bin/env bash
# Finds a Java that Spark 4 runs on (17 or 21), or installs Debian's headless one when run as root.
#
#   scripts/java.sh          say which Java was found; install or explain when there is none
#   scripts/java.sh --home   print its JAVA_HOME, and nothing when there is none
#
# Looked at in this order: $JAVA_HOME, `java` on PATH, then what the distribution installed, so that
# a machine whose default Java is another version still works as long as 17 or 21 is there too.
# JAVA_DIR says where that is.
set -euo pipefail

PACKAGES=(openjdk-17-jre-headless openjdk-21-jre-headless)
JAVA_DIR=${JAVA_DIR:-/usr/lib/jvm}

# The major version of a java executable; nothing if it does not run.
major() {
    "$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\)[."-].*/\1/p' || true
}

# Sets JAVA and VERSION to the first Java 17 or 21.
find_java() {
    local candidate
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" \
        "$JAVA_DIR"/*17*/bin/java "$JAVA_DIR"/*21*/bin/java; do
        [ -n "$candidate" ] && [ -x "$candidate" ] || continue
        VERSION=$(major "$candidate")
        case $VERSION in
        17 | 21)
            JAVA=$(readlink -f "$candidate")
            return 0
            ;;
        esac
    done
    return 1
}

# The first of PACKAGES that apt offers here.
offered() {
    local package
    for package in "${PACKAGES[@]}"; do
        # Not `| grep -q`: it leaves early, and under pipefail apt-cache then fails now and then.
        if [[ $(apt-cache policy "$package" 2>/dev/null) == *"Candidate: "[0-9]* ]]; then
            echo "$package"
            return 0
        fi
    done
    return 1
}

if [ "${1:-}" = --home ]; then
    if find_java; then echo "${JAVA%/bin/java}"; fi
    exit 0
fi

if ! find_java; then
    if ! command -v apt-get >/dev/null; then
        echo "No Java 17 or 21 found: install one and set JAVA_HOME to it." >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        # Without package lists apt cannot say which of the two it has; run as root, this script can.
        if package=$(offered); then
            fix="sudo apt-get install -y $package"
        else
            fix="sudo make java"
        fi
        echo "No Java 17 or 21 found. Run:  $fix" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    if ! package=$(offered); then
        apt-get -qq update
        if ! package=$(offered); then
            echo "No Java 17 or 21 found, and apt offers neither: install one and set JAVA_HOME." >&2
            exit 1
        fi
    fi
    echo "No Java 17 or 21 found: installing $package"
    mkdir -p /usr/share/man/man1 # slim images lack it and the package's links then fail
    install=(apt-get -qq install -y --no-install-recommends "$package")
    # Package lists that are older than the mirror name files it no longer has.
    "${install[@]}" >/dev/null || { apt-get -qq update && "${install[@]}" >/dev/null; }
    find_java || {
        echo "$package is installed, but no Java 17 or 21 was found in $JAVA_DIR." >&2
        exit 1
    }
fi
echo "Java $VERSION: ${JAVA%/bin/java}"
