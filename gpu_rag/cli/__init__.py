"""The command line: one file a command. The only place that reads the environment."""
