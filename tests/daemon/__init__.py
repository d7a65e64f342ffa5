"""The daemon itself, spoken to directly over its sockets: nothing of the Python package is used here."""
