"""Files of strangers: what is read, and the sentence with which everything else is refused."""

import gzip
import json
import os
import re
import socket
import zlib
from pathlib import Path

import pytest

from lightning_hooks.untrusted import (
    MissingError,
    UnreadableError,
    decompress,
    open_regular,
    parse_json,
    path_inside,
    read_bytes,
    read_json,
)


def test_a_file_of_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"step": [3, "é"]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"step": [3, "é"]}
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    assert read_json(tmp_path / "link.json") == {"step": [3, "é"]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "it is not UTF-8: invalid start byte at byte 0"),
        (b"{", "it is not JSON: Expecting property name"),
        (b"[" * 100_000, "its JSON is nested deeper than 100 levels"),
        (b"[" * 101 + b"]" * 101, "its JSON is nested deeper than 100 levels"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "its JSON is nested deeper than 100 levels"),
        (b"1" * 5000, "it is not JSON: Exceeds the limit"),
    ],
)
def test_json_that_cannot_be_read_is_refused_with_the_file_and_the_reason(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UnreadableError, match=re.escape(f"{tmp_path / 'a.json'}: {reason}")):
        read_json(tmp_path / "a.json")
    with pytest.raises(UnreadableError, match=f"^{re.escape(reason)}"):
        parse_json(content)


def test_the_depth_counts_lists_and_objects() -> None:
    assert parse_json("[" * 100 + "]" * 100) == json.loads("[" * 100 + "]" * 100)
    assert parse_json('["[[[["]', depth=1) == ["[[[["]
    assert parse_json("1", depth=0) == 1
    with pytest.raises(UnreadableError, match="deeper than 1 levels"):
        parse_json('{"a": []}', depth=1)


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 11)
    assert read_bytes(tmp_path / "a", most=11) == b"x" * 11
    with pytest.raises(UnreadableError, match="a is larger than 10 bytes"):
        read_bytes(tmp_path / "a", most=10)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 107 characters
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        for name, kind in (("pipe", "named pipe"), ("socket", "socket"), ("/dev/zero", "device"), (".", "folder")):
            with pytest.raises(UnreadableError, match=f"{name} is a {kind}, not a regular file"):
                open_regular(Path(name))


def test_a_missing_file_has_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="b.json does not exist"):
        read_json(tmp_path / "b.json")
    with pytest.raises(UnreadableError, match="cannot be read: File name too long"):
        read_bytes(tmp_path / ("x" * 300))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UnreadableError, match="loop cannot be read: Too many levels of symbolic links"):
        read_bytes(tmp_path / "loop")


def test_a_name_in_a_file_does_not_leave_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    folder.mkdir()
    (tmp_path / "secret").write_text("1")
    (folder / "batch.json").write_text("2")
    (folder / "inner").symlink_to("batch.json")
    (folder / "outer").symlink_to(tmp_path / "secret")
    (folder / "parent").symlink_to(tmp_path)
    assert read_json(path_inside(folder, "batch.json")) == read_json(path_inside(folder, "inner")) == 2
    for name in ("../secret", str(tmp_path / "secret"), "outer", "parent/secret"):
        with pytest.raises(UnreadableError, match="leads out of the folder .*record and is not read"):
            path_inside(folder, name)
    for name in (5, None, "", "a\0b", ["batch.json"]):
        with pytest.raises(UnreadableError, match="the name of a file must be a text"):
            path_inside(folder, name)


def test_compressed_bytes_have_a_limit() -> None:
    for compress in (zlib.compress, gzip.compress):
        packed = compress(b"x" * 10_000)
        assert decompress(packed, most=10_000) == b"x" * 10_000
        with pytest.raises(UnreadableError, match="larger than 9999 bytes"):
            decompress(packed, most=9999)
        with pytest.raises(UnreadableError, match="is cut short"):
            decompress(packed[:-1])
        with pytest.raises(UnreadableError, match="has bytes after its end"):
            decompress(packed + b"x")
    with pytest.raises(UnreadableError, match="is damaged: .*incorrect header check"):
        decompress(b"no zlib at all")
