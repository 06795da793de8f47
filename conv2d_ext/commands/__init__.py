"""The commands of ``convx``, one module each: add_parser() defines its options and its function."""
