"""Policies: networks, action values, deterministic policies, scripts, language models, people."""
