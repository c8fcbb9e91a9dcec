"""The Postgres schema, one SQL file for each change, and its loader; never a connection."""
