"""Configuration: the schema, reading, checking and writing."""
