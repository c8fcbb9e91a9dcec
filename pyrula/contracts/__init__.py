"""What every other room agrees on: events, errors, values, ids, options and the store protocols; never I/O."""
