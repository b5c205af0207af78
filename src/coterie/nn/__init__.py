"""Networks, distributions over actions, packed observations, normalisation and compiled kernels."""
