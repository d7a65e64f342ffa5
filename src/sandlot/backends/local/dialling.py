"""A connection to a host by the path of its socket."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from sandlot.connection import Connection
from sandlot.errors import TransportLost

_PAUSE_S: Final = 0.002  # while the listener's queue is full; it holds thousands


async def dial(path: bytes) -> Connection:
    """Connect and exchange hellos.

    Raises:
        TransportLost: nobody listens there, or the host closed before its hello. Retriable.
    """
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            # A full queue is EAGAIN here, never "in progress": the loop's own connect would take it for success.
            sock.connect(os.fsdecode(path))
            return await Connection.open(sock, role="host")
        except BlockingIOError:
            sock.close()
            await asyncio.sleep(_PAUSE_S)
        except OSError as error:
            sock.close()
            raise TransportLost(f"the host at {os.fsdecode(path)} could not be reached: {error.strerror}") from error
        except BaseException:
            sock.close()
            raise
