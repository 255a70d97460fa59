#!/bin/sh
# Installs requirements quietly. A failure shows what pip said; a missing PyBullet wheel is one line with the remedy.
# usage: pip_install.sh PYTHON REQUIREMENT...
python=$1
shift
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

# Without a wheel pip would compile PyBullet for many minutes, and fail with most current compilers.
if "$python" -m pip install --quiet --disable-pip-version-check --no-input --only-binary=pybullet "$@" >"$log" 2>&1; then
    exit 0
fi
if grep -q "No matching distribution found for pybullet" "$log" && ! grep -qi "retrying\|connection" "$log"; then
    echo "error: PyPI has no PyBullet wheel for $("$python" -c 'import platform, sysconfig; print("CPython", platform.python_version(), "on", sysconfig.get_platform())');" \
        "use CPython 3.10 or 3.11 on Linux x86_64, or conda-forge's pybullet (see \"Platforms\" in README.md)" >&2
else
    cat "$log" >&2
    echo "error: pip could not install $*" >&2
fi
exit 1
