"""The commands of the lab: parse, call, print."""
