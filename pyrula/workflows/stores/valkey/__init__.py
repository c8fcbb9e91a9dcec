"""The Valkey store: wire, functions, keys; the only room that names a key or a command."""
