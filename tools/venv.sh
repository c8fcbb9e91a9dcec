#!/usr/bin/env bash
# Makes a virtual environment with a Python that this project serves, puts uv into it, and has uv do
# what the further arguments say.
#
#   tools/venv.sh DIR [UV_ARGUMENT...]
#
# An environment that works is kept. PYTHONS is the list of interpreters to try, best first; a name
# that is only a version manager's shim, and does not run, is passed over.
set -euo pipefail

venv=$1
shift
pythons=${PYTHONS:-python3.13 python3.12 python3.11 python3}
root=$(cd "$(dirname "$0")/.." && pwd)

serves() {
    "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# An index that is away for a moment is no reason to fail.
retry() {
    local try
    for try in 1 2 3; do
        "$@" && return 0
        echo "try $try of 3 failed: $*" >&2
        [ "$try" = 3 ] || sleep $((try * 5))
    done
    return 1
}

if ! serves "$venv/bin/python"; then
    chosen=
    for candidate in $pythons; do
        if serves "$candidate" && "$candidate" -c 'import ensurepip' >/dev/null 2>&1; then
            chosen=$candidate
            break
        fi
    done
    if [ -z "$chosen" ]; then
        echo "no Python 3.11 or newer with venv and pip among: $pythons (on Debian: apt-get install python3-venv)" >&2
        exit 1
    fi
    echo "making $venv with $("$chosen" -c 'import sys; print(sys.executable, sys.version.split()[0])')"
    "$chosen" -m venv --clear "$venv"
fi

if ! "$venv/bin/uv" --version >/dev/null 2>&1; then
    # The version that the lock file names.
    version=$(sed -n '/^name = "uv"$/{n;s/^version = "\(.*\)"$/\1/p;}' "$root/uv.lock")
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
    retry "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$version"
fi

[ $# = 0 ] || retry "$venv/bin/uv" "$@"
