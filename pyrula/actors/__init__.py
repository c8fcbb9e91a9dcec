"""What awaits and owns tasks: the run actor, its scope, the supervisors; never a key, a command or a driver."""
