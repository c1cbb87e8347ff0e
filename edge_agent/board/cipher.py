"""The cipher of a board's connections: ChaCha20 where the processor has no AES instructions.

A Raspberry Pi 4 has none; AES-GCM there takes about 4.5 times the CPU time of ChaCha20. Python's `ssl` cannot choose a
cipher of TLS 1.3, and the broker prefers AES, so OpenSSL is told by a configuration file to offer nothing else.
"""

from __future__ import annotations

from pathlib import Path

from edgebed.errors import FileError

CPUINFO = Path("/proc/cpuinfo")

ONLY_CHACHA20 = """openssl_conf = init
[init]
ssl_conf = ssl
[ssl]
system_default = all
[all]
Ciphersuites = TLS_CHACHA20_POLY1305_SHA256
"""


def has_aes(cpuinfo: str) -> bool:
    """Whether the processor of this /proc/cpuinfo has AES instructions; True where it does not say."""
    lines = [line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith(("Features", "flags"))]
    return not lines or "aes" in lines[0]


def cipher_environment(folder: Path, cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Variables for a process that is to use the right cipher; writes the file they name into `folder`. Raises
    FileError."""
    try:
        if has_aes(cpuinfo.read_text(errors="replace")):
            return {}
        path = folder / "openssl.cnf"
        path.write_text(ONLY_CHACHA20)
    except OSError as error:
        raise FileError.of(error) from None
    return {"OPENSSL_CONF": str(path)}
