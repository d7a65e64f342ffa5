"""One socket around a session, on asyncio. Knows the wire contract only through `sandlot.protocol`, and no verb by name."""

from sandlot.connection.link import Connection, Reopen

__all__ = ["Connection", "Reopen"]
