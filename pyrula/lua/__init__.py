"""The Valkey function library, one Lua file for each concern, and its loader; never a client."""
