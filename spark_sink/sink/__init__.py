"""The sink daemon: records the mesh and writes tables, each event once."""
