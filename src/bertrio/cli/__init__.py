"""The `bertrio` command, one file a group of subcommands."""
