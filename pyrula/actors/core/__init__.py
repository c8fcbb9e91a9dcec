"""Pure decisions: journal matching, branch paths, retry policy, the wait slot; never I/O, a loop or a clock."""
