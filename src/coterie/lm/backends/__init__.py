"""Where answers come from: local models, servers, llama.cpp, scripts."""
