"""Studies without any connection: steps of a study as signed and sealed files that people carry."""
