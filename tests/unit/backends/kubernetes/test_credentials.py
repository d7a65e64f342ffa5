"""Files that are no kubeconfig."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.backends.kubernetes.credentials import credentials
from sandlot.errors import Unsupported


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"hello\n", "not of a kubeconfig's form"),
        (b"", "not of a kubeconfig's form"),
        (b"[1, 2]\n", "not of a kubeconfig's form"),
        (b"\x00\xff\xfe", "it is no text"),
        (b"a: [b\n", "line 1, column 4"),
        (b"kind: Config\n", "current-context"),
    ],
)
async def test_what_is_no_kubeconfig_is_told_as_such(tmp_path: Path, content: bytes, told: str) -> None:
    """In words of files, not of the language that reads them; the file is named."""
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(Unsupported, match=told) as raised:
        await credentials(path)()
    assert str(path) in raised.value.message
    assert "object" not in raised.value.message
