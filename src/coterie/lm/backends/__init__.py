"""Back ends of language models: local PyTorch models, servers, llama.cpp, sentence encoders, scripted models."""
