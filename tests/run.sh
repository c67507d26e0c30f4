#!/usr/bin/env bash
# Installs redis-server where it is missing, Python and Node with their libraries of locks too, and runs all tests;
# arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "Something is missing that only root can install: run '$*' as root, then run this again." >&2
        exit 1
    fi
}

if ! command -v "${REDIS_SERVER_BIN:-redis-server}" >/dev/null; then
    if [ -n "${REDIS_SERVER_BIN:-}" ]; then
        echo "REDIS_SERVER_BIN names $REDIS_SERVER_BIN, and there is no such program." >&2
        exit 1
    elif command -v apt-get >/dev/null; then
        as_root apt-get update
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends redis-server
    elif command -v dnf >/dev/null; then
        # Fedora's newer releases have Valkey in its place; valkey-compat-redis brings the old name.
        as_root dnf install -y redis || as_root dnf install -y valkey valkey-compat-redis
    elif command -v apk >/dev/null; then
        as_root apk add redis
    elif command -v brew >/dev/null; then
        brew install redis
    fi
    if ! command -v redis-server >/dev/null; then
        echo "The tests need redis-server (6.2 or newer, or Valkey) on the PATH: install it, then run this again." >&2
        exit 1
    fi
fi

# What the tests of locks in other languages use, in the folder of the build. Without it they fail, but nothing else does.
redis_py=7.1.0
redlock=5.0.0-beta.2
ioredis=5.11.1

install_programs() { # PACKAGE… of apt, dnf, apk
    if command -v apt-get >/dev/null; then
        as_root apt-get update &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
    elif command -v dnf >/dev/null; then
        as_root dnf install -y "$@"
    elif command -v apk >/dev/null; then
        as_root apk add "${@/python3-pip/py3-pip}"
    elif command -v brew >/dev/null; then
        brew install python node
    else
        echo "Install $*, then run this again." >&2
        return 1
    fi
}

redis_py_into() {
    python3 -m pip --version >/dev/null 2>&1 || install_programs python3 python3-pip || return
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
        python3 -m pip install --quiet --target "$1" "redis==$redis_py"
}

redlock_into() {
    { command -v node && command -v npm; } >/dev/null || install_programs nodejs npm || return
    npm install --silent --no-audit --no-fund --prefix "$1" "redlock@$redlock" "ioredis@$ioredis"
}

# Runs `$1 FOLDER`, unless the program $2 is there and the folder was filled with version $3 before.
library() {
    local folder="$languages/${1%_into}"
    if ! command -v "$2" >/dev/null || [ "$(cat "$folder/installed" 2>/dev/null)" != "$3" ]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        if (set +e; "$1" "$folder"); then
            echo "$3" >"$folder/installed"
        else
            echo "$1 $folder failed: the tests in languages.rs that need it will fail." >&2
        fi
    fi
}

build="$(cargo metadata --no-deps --format-version 1 --locked | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')"
languages="$build/languages"
library redis_py_into python3 "redis $redis_py"
library redlock_into node "redlock $redlock, ioredis $ioredis"

exec cargo test --workspace --all-features --locked "$@"
