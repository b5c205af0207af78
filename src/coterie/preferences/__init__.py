"""How a group values its rewards: individual, team, risk measures, learned reward models."""
