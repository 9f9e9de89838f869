"""The corpus: what is read in which order, and one clear message for what cannot be."""

import os

import pytest

from elastic.errors import DataError
from jobs.corpus import AUTO_LIMIT_BYTES, TextDataset, read_corpus


def text_of(path):
    return read_corpus(str(path)).tokens.tobytes()


def test_a_file_and_a_directory_in_sorted_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.md").write_text("first é")
    (tmp_path / "sub" / "c.jsonl").write_text('{"text": "third"}\n\n{"text": "fourth", "more": 1}\n')
    (tmp_path / "ignored.bin").write_bytes(b"\xff\xfe")
    (tmp_path / "empty.txt").write_text(" \n")
    assert text_of(tmp_path / "b.txt") == b"second\0"
    assert text_of(tmp_path) == "first é\0second\0third\0fourth\0".encode()


def test_the_fingerprint_follows_the_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("some text")
    first = read_corpus(str(path)).fingerprint
    assert first == read_corpus(str(path)).fingerprint
    assert first.startswith("10-")
    path.write_text("some tex!")
    assert first != read_corpus(str(path)).fingerprint


def test_auto_is_large_real_and_the_same_each_time():
    corpus = read_corpus("auto")
    assert len(corpus.tokens) == AUTO_LIMIT_BYTES
    assert corpus.fingerprint == read_corpus("auto").fingerprint
    assert b"\nimport " in corpus.tokens.tobytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"ok \xff", r"a\.txt is not UTF-8 text: invalid start byte at byte 3"),
        ("a.txt", b"", r"holds no text"),
        (
            "a.jsonl",
            b'{"text": "fine"}\n{"words": 3}\n',
            r'a\.jsonl:2: expected an object .*; found {"words": 3}',
        ),
        ("a.jsonl", b'{"text": "fine"}\nnot json\n', r"a\.jsonl:2: .*found not json"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1: expected"),
        ("a.jsonl", b'{"text": 5}\n', r"a\.jsonl:1: expected"),
        ("a.jsonl", b"\n\n", r"holds no text"),
    ],
)
def test_bad_text_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_corpus(str(tmp_path / name))


def test_a_missing_path_and_a_directory_without_text(tmp_path):
    with pytest.raises(DataError, match="there is no file or directory"):
        read_corpus(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match=r"holds no text to train on: no \*\.jsonl, \*\.md"):
        read_corpus(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    path.chmod(0)
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: Permission denied"):
        read_corpus(str(path))


def test_windows_do_not_overlap_and_targets_follow(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("abcdefghij")  # 11 bytes with its end
    dataset = TextDataset(read_corpus(str(path)), context=4)
    assert len(dataset) == 2
    x, y = dataset[1]
    assert (bytes(x.tolist()), bytes(y.tolist())) == (b"efgh", b"fghi")
    with pytest.raises(IndexError, match=r"samples 0\.\.1; got 2"):
        dataset[2]


def test_a_text_shorter_than_one_sample_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("abc")
    with pytest.raises(DataError, match="holds 4 bytes; one sample takes 5"):
        TextDataset(read_corpus(str(path)), context=4)
