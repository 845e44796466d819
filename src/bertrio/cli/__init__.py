"""The `bertrio` command, with one module per group of subcommands."""
