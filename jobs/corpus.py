"""Corpus: real text as bytes, from the user's files or from the Python sources that every installation holds."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from elastic.errors import DataError

AUTO = "auto"
AUTO_LIMIT_BYTES = 12 * 2**20
TEXT_SUFFIXES = (".jsonl", ".md", ".py", ".rst", ".txt")

_END_OF_DOCUMENT = b"\0"
_NOT_CORPUS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text as bytes, documents ended by a zero byte, and where it came from."""

    tokens: np.ndarray  # uint8, shape [bytes]
    source: str

    @property
    def fingerprint(self) -> str:
        """Length and hash: equal where the text is equal."""
        return f"{len(self.tokens)}-{hashlib.sha256(self.tokens.data).hexdigest()}"


class TextDataset(Dataset[tuple[Tensor, Tensor]]):
    """Windows of `context` bytes that do not overlap; an item is (bytes, the byte that follows each), int64."""

    def __init__(self, corpus: Corpus, *, context: int) -> None:
        self._length = (len(corpus.tokens) - 1) // context
        if self._length < 1:
            raise DataError(
                f"the corpus {corpus.source} holds {len(corpus.tokens)} bytes; one sample takes {context + 1}: "
                "give a longer text or a smaller context"
            )
        self._tokens = torch.from_numpy(corpus.tokens)
        self._context = context
        self.fingerprint = f"{corpus.fingerprint}-{context}"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self._length:
            raise IndexError(f"the corpus has samples 0..{self._length - 1}; got {index}")
        window = self._tokens[index * self._context : (index + 1) * self._context + 1].long()
        return window[:-1], window[1:]


def read_corpus(path: str) -> Corpus:
    """Read `auto`, a text file, a directory of text files, or a .jsonl file with {"text": ...} on each line.

    Raises:
        DataError: nothing there, nothing in it, or not UTF-8 text; the message names the file (and line).
    """
    if path == AUTO:
        return _joined(_python_sources(), source="auto (Python sources of this installation)", limit=AUTO_LIMIT_BYTES)
    root = Path(path)
    if not root.exists():
        raise DataError(f"there is no file or directory {path!r} to train on")
    documents = _directory(root) if root.is_dir() else _file(root)
    return _joined(documents, source=repr(path), limit=None)


def _joined(documents: Iterator[bytes], *, source: str, limit: int | None) -> Corpus:
    text = bytearray()
    for document in documents:
        if document.strip():
            text += document + _END_OF_DOCUMENT
        if limit is not None and len(text) >= limit:
            del text[limit:]
            break
    if not text:
        raise DataError(f"the corpus {source} holds no text")
    return Corpus(tokens=np.frombuffer(text, dtype=np.uint8), source=source)


def _python_sources() -> Iterator[bytes]:
    """The standard library, then sympy, which torch depends on: several megabytes of real text on any machine."""
    roots = [Path(sysconfig.get_path("stdlib"))]
    sympy = importlib.util.find_spec("sympy")
    if sympy is not None and sympy.origin is not None:
        roots.append(Path(sympy.origin).parent)
    for root in roots:
        for path in _python_files(root):
            yield _read(path)


def _python_files(directory: Path) -> Iterator[Path]:
    """*.py below a directory, sorted; tests and other packages are not even looked into."""
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            if path.name not in _NOT_CORPUS:
                yield from _python_files(path)
        elif path.suffix == ".py":
            yield path


def _directory(root: Path) -> Iterator[bytes]:
    paths = sorted(path for path in root.rglob("*") if path.suffix in TEXT_SUFFIXES and path.is_file())
    if not paths:
        wanted = ", ".join(f"*{suffix}" for suffix in TEXT_SUFFIXES)
        raise DataError(f"the directory {str(root)!r} holds no text to train on: no {wanted}")
    for path in paths:
        yield from _file(path)


def _file(path: Path) -> Iterator[bytes]:
    text = _read(path)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    if path.suffix == ".jsonl":
        yield from _lines(path, text)
    else:
        yield text


def _lines(path: Path, text: bytes) -> Iterator[bytes]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)["text"].encode()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            found = line[:60].decode(errors="replace")
            raise DataError(f'{path}:{number}: expected an object like {{"text": "..."}}; found {found}') from error
        yield document


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
