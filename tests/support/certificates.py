"""Certificates for servers that speak TLS, made without the openssl command."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

#: An extension that names the hosts the tests connect to.
LOCAL_NAMES: Final = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))])
CLIENT_USE: Final = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH])


class TlsFiles(NamedTuple):
    """A certificate and its key (PEM files)."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in `directory`, whose own certificate is for 127.0.0.1 and localhost."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("localhost")
        basic = x509.BasicConstraints(ca=True, path_length=None)
        built = self._builder(self._name, self._key).add_extension(LOCAL_NAMES, False).add_extension(basic, True)
        self.files = self._write("server", built, self._key)

    def sign(self, name: str, extension: x509.ExtensionType) -> TlsFiles:
        """A certificate `name` with one extension."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._write(name, self._builder(_name(name), key).add_extension(extension, False), key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        issuer_key = self._key.public_key()
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), False)
        )

    def _write(self, name: str, built: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> TlsFiles:
        files = TlsFiles(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        pem, unencrypted = serialization.Encoding.PEM, serialization.NoEncryption()
        files.certificate.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(pem))
        files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted))
        return files


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common_name)])
