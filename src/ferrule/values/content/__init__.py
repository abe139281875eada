"""Content of messages: text, pictures, audio, files, and custom types."""
