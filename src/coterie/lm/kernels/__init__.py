"""GPU kernels of a transformer in Triton, which exists only where a GPU may: import them where they are used."""
