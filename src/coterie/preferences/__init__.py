"""Preferences, the valuation of a group's rewards: individual, team, risk measures, learned reward models."""
