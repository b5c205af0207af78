"""Roles of a language model other than acting: advisor, reward judge, and shield for rules."""
