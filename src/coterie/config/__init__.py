"""From YAML and overrides to typed settings; the name tables."""
