"""The commands of ``convx``, one module each: add_parser() says what it takes, and what runs it."""
