"""Every number of Sandlot once, with its unit and its reason. Nothing here is computed and nothing imports from above.

The numbers of the wire are also in `wire/limits.json`; a test holds the two (and the daemon's) against each other.
"""

from __future__ import annotations

from typing import Final

# --- wire (wire/contract.md) -------------------------------------------------------------------------------------
WIRE_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 2_097_152  # a script and an environment at their limits, with room for the rest
MAX_HELLO_BYTES: Final = 4_096  # before a peer has said who it is
MAX_DEPTH: Final = 4
MAX_CHUNK_BYTES: Final = 262_144
INLINE_BYTES: Final = 262_144  # output carried by the exit frame itself: one frame for a short command
WINDOW_BYTES: Final = 1_048_576  # unacknowledged bytes of one stream, the most that either side ever buffers for it
MAX_SCRIPT_BYTES: Final = 1_048_576
MAX_ARGV_BYTES: Final = 1_048_576
MAX_ENV_BYTES: Final = 262_144
MAX_PATH_BYTES: Final = 4_096  # PATH_MAX
MAX_KEY_CHARS: Final = 64
MAX_MESSAGE_CHARS: Final = 1_024
MAX_CALLS: Final = 4_096  # live calls on one connection
MAX_COMMANDS: Final = 1_024  # live commands in one sandbox
MAX_RESULTS: Final = 1_024  # finished commands whose results wait to be fetched
MAX_RESULT_BYTES: Final = 268_435_456
DEFAULT_CAP_BYTES: Final = 16_777_216  # output kept of one stream of one command
MAX_CAP_BYTES: Final = 268_435_456
KEEPALIVE_MS: Final = 10_000
LINK_DEAD_MS: Final = 60_000
MAX_HANDSHAKE_BYTES: Final = 512  # one message of a handshake, its length included
MAX_SEALED_BYTES: Final = 65_519  # plain text in one message of a sealed link
HANDSHAKE_MS: Final = 10_000  # from a connection to an authenticated link
MAX_HALF_OPEN: Final = 64  # connections that others have opened to a provider and not yet authenticated
MAX_HALF_OPEN_DAEMON: Final = 8  # the same of a daemon

# --- the client's own bounds ------------------------------------------------------------------------------------------
OPEN_TIMEOUT_S: Final = 10.0  # from a connected socket to the daemon's hello
REQUEST_PATIENCE_S: Final = 60.0  # a call that is no command: how long it may bring nothing at all
COMMAND_GRACE_S: Final = 30.0  # beyond a command's own time limit: its tree is killed and its output sent within this
REOPEN_WITHIN_S: Final = 30.0  # a lost link is given up after this
REOPEN_FIRST_PAUSE_S: Final = 0.02
REOPEN_LONGEST_PAUSE_S: Final = 2.0
MAX_READ_BYTES: Final = 268_435_456  # what one `read` brings into the client's memory
MAX_LISTED: Final = 100_000  # entries of one listing

# --- images ------------------------------------------------------------------------------------------------------------
MAX_LAYER_BYTES: Final = 68_719_476_736  # of one layer, decompressed; the largest task images seen have a quarter of it
MAX_LAYER_INODES: Final = 2_000_000  # files, links and directories of one layer
