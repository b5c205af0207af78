"""Language models that are trained: transformers, the engine that samples, their kernels, adapters."""
