"""Makes what a SuperLink and its SuperNodes need to know each other: TLS certificates and node keys.

python certificates.py FOLDER 5

writes ca.crt (for everybody), server.crt and server.key (SuperLink), node-0 ... node-4 (each for its own node) and
node-0.pub ... node-4.pub (to register at the SuperLink). The authority's own key is used once and not kept.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

DAYS = 30


def make(folder: Path, nodes: int, host: str = "127.0.0.1") -> None:
    """Write all files into `folder`, private ones readable by their owner alone."""
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _certificate("lightdp example authority", authority_key, authority_key, issuer=None)
    server = _certificate("lightdp example SuperLink", server_key, authority_key, issuer=authority, host=host)
    (folder / "ca.crt").write_bytes(authority.public_bytes(Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(Encoding.PEM))
    _private(folder / "server.key", server_key, PrivateFormat.PKCS8)
    for node in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())  # what Flower's node authentication takes
        _private(folder / f"node-{node}", key, PrivateFormat.OpenSSH)
        (folder / f"node-{node}.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def _private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Certificate | None,
    host: str | None = None,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_usage(authority=issuer is None), critical=True)
    )
    if host is not None:
        names = [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
