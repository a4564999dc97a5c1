#!/usr/bin/env bash
# need.sh THING...: says by name what is missing on this machine, and how to get it. Silent if all is there.
set -euo pipefail

missing=0
lack() {
    printf 'missing: %s\n  %s\n' "$1" "$2" >&2
    missing=1
}

for thing in "$@"; do
    case "$thing" in
    rust)
        command -v cargo >/dev/null || lack "cargo (Rust)" "Install Rust with rustup, then open a new shell."
        command -v rustup >/dev/null || lack "rustup" "The pinned toolchain and its wasm32-wasip1 target come through rustup; a distribution's Rust has neither."
        ;;
    cc)
        command -v cc >/dev/null || lack "cc (a C compiler; Rust links with it)" "Debian, Ubuntu: apt-get install build-essential. Fedora: dnf install gcc gcc-c++."
        ;;
    cxx)
        command -v c++ >/dev/null || lack "c++ (a C++ compiler; libFuzzer is built with it)" "Debian, Ubuntu: apt-get install build-essential. Fedora: dnf install gcc gcc-c++."
        ;;
    python)
        if ! command -v python3 >/dev/null; then
            lack "python3" "Debian, Ubuntu: apt-get install python3 python3-venv. Fedora: dnf install python3."
        elif ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
            lack "python3's venv module" "Debian, Ubuntu: apt-get install python3-venv."
        fi
        ;;
    chromium)
        for program in chromium chromedriver; do
            command -v "$program" >/dev/null || lack "$program" "Debian: apt-get install chromium chromium-driver."
        done
        ;;
    *)
        echo "need.sh: no check for '$thing'" >&2
        exit 2
        ;;
    esac
done
exit "$missing"
