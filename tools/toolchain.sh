#!/usr/bin/env bash
# Installs the Rust toolchain that rust-toolchain.toml pins, with its components and the filter's target.
set -euo pipefail

channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
if ! rustup run "$channel" rustc --version >/dev/null 2>&1 ||
    ! rustup run "$channel" cargo clippy --version >/dev/null 2>&1 ||
    ! rustup run "$channel" rustfmt --version >/dev/null 2>&1; then
    rustup toolchain install "$channel" --profile minimal --component clippy --component rustfmt || {
        echo "missing: Rust $channel (rustup could not install it; is its server reachable?)" >&2
        exit 1
    }
fi
rustup target add --toolchain "$channel" wasm32-wasip1 || {
    echo "missing: the target wasm32-wasip1 of Rust $channel (rustup could not install it; is its server reachable?)" >&2
    exit 1
}
