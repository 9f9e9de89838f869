"""Certificates for one test: an authority, a server's for loopback (v4, v6, localhost), and clients'."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic.local.etcd import EtcdTls


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A certificate and its key."""

    cert_file: Path
    key_file: Path


class Authority:
    """Signs what a test needs, with the openssl program."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.ca_file = directory / "ca.pem"
        self._key = directory / "ca.key"
        new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority"]
        _openssl(*new, "-keyout", str(self._key), "-out", str(self.ca_file))

    def sign(self, name: str, *, client: bool = False) -> Pair:
        """A pair for this common name."""
        key, request, cert, extra = (self._directory / f"{name}.{ending}" for ending in ("key", "csr", "pem", "ext"))
        _openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)
        )
        usage = "clientAuth" if client else "serverAuth,clientAuth"
        extra.write_text(f"extendedKeyUsage={usage}\nsubjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost\n")
        signing = ["x509", "-req", "-days", "2", "-CA", str(self.ca_file), "-CAkey", str(self._key), "-CAcreateserial"]
        _openssl(*signing, "-in", str(request), "-extfile", str(extra), "-out", str(cert))
        return Pair(cert_file=cert, key_file=key)

    def server(self, *, client_auth: bool = False) -> EtcdTls:
        """What an etcd needs to speak TLS."""
        pair = self.sign("server")
        files = {"ca_file": self.ca_file, "cert_file": pair.cert_file, "key_file": pair.key_file}
        return EtcdTls(**files, client_auth=client_auth)


def _openssl(*arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("the openssl program is needed to make certificates")
