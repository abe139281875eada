"""Tools from elsewhere: files, LangChain, remote servers."""
