"""For all tests."""

import asyncio

# pytest-asyncio asks for the current event loop before it brings its own. Up to Python 3.13 the answer is a new loop
# that nobody closes, unless it has been said that there is none.
asyncio.set_event_loop(None)
