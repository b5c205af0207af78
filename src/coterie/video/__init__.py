"""Videos: films of episodes, captions, GIF and MP4 files."""
