#!/bin/sh
# Prints the path of a Python that can run fleet_gym. Otherwise prints one line to stderr that names the remedy.
# usage: find_python.sh [PYTHON]    (without PYTHON: the first fit of python3.11, python3.10, python3)

# Runs on any Python since 2.7, so that an old one is named instead of crashing here.
PROBE='
import platform, sys
version = "%d.%d" % tuple(sys.version_info[:2])
fit = platform.python_implementation() == "CPython" and version in ("3.10", "3.11")
try:
    import ensurepip, venv
    has_venv = True
except ImportError:
    has_venv = False
print("%s %s %s" % ("fit" if fit else "unfit", "venv" if has_venv else "no-venv", platform.python_version()))
'

found=
without_venv=
for candidate in ${1:-python3.11 python3.10 python3}; do
    # A version manager may put a name on PATH that runs nothing.
    answer=$("$candidate" -c "$PROBE" 2>/dev/null) || continue
    version=${answer##* }
    case $answer in
        "fit venv "*) command -v "$candidate"; exit 0 ;;
        "fit no-venv "*) without_venv=${without_venv:-$candidate $version} ;;
        *) found="$found $candidate=$version" ;;
    esac
done

if [ -n "$without_venv" ]; then
    minor=$(echo "${without_venv#* }" | cut -d. -f1,2)
    echo "error: ${without_venv% *} (${without_venv#* }) has no venv module; install it: apt-get install python$minor-venv" >&2
else
    echo "error: fleet_gym needs CPython 3.10 or 3.11 (PyBullet has no wheel for others), found${found:- none};" \
        "install python3.11 and python3.11-venv, or name one: make PYTHON=/path/to/python3.11 ..." >&2
fi
exit 1
