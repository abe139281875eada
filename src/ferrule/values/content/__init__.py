"""Content of messages: text, images, audio, files, and custom types."""
