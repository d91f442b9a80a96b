"""Agent runs to look at without a model provider: real LangChain loops, scripted answers."""
