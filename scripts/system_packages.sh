#!/bin/sh
# Installs the system packages that tests/integration needs (Debian names): as root with apt-get, else says which.

missing=
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || missing="$missing chromium"
command -v Xvfb >/dev/null 2>&1 || missing="$missing xvfb"
has_library() { ldconfig -p 2>/dev/null | grep -q "$1"; }
has_library libEGL.so.1 || missing="$missing libegl1"
has_library libGL.so.1 || missing="$missing libgl1"
has_library libX11.so.6 || missing="$missing libx11-6"
has_library libEGL_mesa.so.0 || missing="$missing libegl-mesa0"
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "error: tests/integration needs$missing; install it first (Debian: sudo apt-get install$missing)" >&2
    exit 1
fi
echo "installing$missing with apt-get"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get -qq update && apt-get -qq install --yes --no-install-recommends $missing; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "error: apt-get could not install$missing" >&2
    exit 1
fi
