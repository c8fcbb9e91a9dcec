"""Where runs are kept: memory, Valkey, Postgres, archiving; never a decision about a run."""
