"""What reacts to finished runs: subscribers, the archiver, read models; never anything that runs one."""
