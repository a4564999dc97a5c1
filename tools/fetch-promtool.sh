#!/usr/bin/env bash
# Puts promtool out of Debian's package `prometheus` into .cache/promtool, pinned and checked, without root.
# Where that cannot be done it says why and succeeds: one test is then skipped, and says so.
set -euo pipefail

version=2.42.0+ds-5+deb12u1
place=.cache/promtool

skip() {
    echo "promtool is not here: $1" >&2
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "it comes from Debian's packages, and this is no Debian"
case "$(dpkg --print-architecture)" in
amd64) sum=81d59a24fce84f7fbe97a45a4f2914b6a5881b5cd1db2a6a0e129e515e1a5f55 ;;
arm64) sum=ca131aa102390083398afbc80be9c8dd1dda78f9f92154fc00df8f7f1f4556e9 ;;
*) skip "no checksum for $(dpkg --print-architecture)" ;;
esac

rm -rf "$place"
mkdir -p "$place/lists/partial" "$place/archives/partial" "$place/files"
download() {
    # Root would drop its rights for a user who may not write here.
    (cd "$place" && apt-get -o APT::Sandbox::User= "$@" download "prometheus=$version") >"$place/log" 2>&1
}
# The machine's own lists of packages may be missing or old; lists of our own need no root.
ours=(-o "Dir::State::Lists=$PWD/$place/lists" -o "Dir::Cache=$PWD/$place")
download || {
    apt-get -o APT::Sandbox::User= "${ours[@]}" update >"$place/log" 2>&1 && download "${ours[@]}"
} || {
    reason=$(grep '^E:' "$place/log" | tail -n 1 || true)
    rm -rf "$place"
    skip "apt-get could not download prometheus $version: ${reason:-no reason given}"
}
package=$(echo "$place"/prometheus_*.deb)
echo "$sum  $package" | sha256sum --check --quiet || {
    rm -rf "$place"
    echo "the package prometheus $version is not the one that is pinned in tools/fetch-promtool.sh" >&2
    exit 1
}
dpkg-deb --extract "$package" "$place/files"
mv "$place/files/usr/bin/promtool" "$place/promtool"
rm -rf "$package" "$place/files" "$place/lists" "$place/archives"
"$place/promtool" --version | head -n 1
touch "$place/.installed"
