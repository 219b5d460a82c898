"""The command line: `lastword`. One file a group of commands; none imports Arrow or Iceberg before it must."""
