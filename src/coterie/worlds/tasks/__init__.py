"""Text tasks for teams of language models: roles that act in turn by writing."""
